"""A retraining and a restore with other people's pushes: main is pulled before, pushed after, and never forced."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sweetrl.errors import UserError
from tasks import origin, retraining, workspace
from tests.tasks.fake_project import Project, commit, git, hook, in_child


def other_checkout(project: Project, name: str = "stage.py", text: str = "new code\n") -> Project:
    """Another checkout, with a commit of its own that is pushed."""
    other = project.clone("other")
    commit(other.home, {name: text}, "Code of others")
    git(other.home, "push", "-q", "origin", "main")
    return other


def protect(project: Project) -> Path:
    refuse = '{ echo "main is protected: open a pull request" >&2; exit 1; }'
    script = f"while read old new ref; do\n[ $ref != refs/heads/main ] || {refuse}\ndone"
    return hook(project.origin / "hooks", "pre-receive", script)


def test_a_retraining_is_made_of_what_others_have_pushed_and_they_get_it(project: Project) -> None:
    """Before, a server's checkout trained on old code, and was 11 commits ahead after 11 nights."""
    parameters = (project.home / "params.yaml").read_text().replace("tasks: 4", "tasks: 5")
    other = other_checkout(project, "params.yaml", parameters)
    (done,) = project.retrain()
    assert project.trained() == [5], "the batch begins where their params.yaml says"
    assert "main is pushed to origin" in done.merged
    project.check_done("2")
    git(other.home, "pull", "-q", "--ff-only")
    assert (other.home / "dvc.lock").read_text() == "lock of batch 5\n"


def test_an_unfinished_retraining_is_gone_on_with_on_the_code_of_today(project: Project) -> None:
    project.failing = {"stage"}
    with pytest.raises(UserError):
        project.retrain()
    other_checkout(project)
    project.failing = set()
    (done,) = retraining.go_on(project.home, project.steps())
    assert git(project.home, "show", f"{done.branch}:stage.py") == "new code"
    project.check_done("2")


def test_who_dies_in_a_pull_leaves_its_data_to_the_next_one(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    other_checkout(project, "dvc.lock", "lock of somebody's run\n")
    with monkeypatch.context() as patch:
        patch.setattr(workspace, "dvc", lambda root, *arguments: os._exit(9))
        assert in_child(project.retrain) == 9
    assert (project.home / "dvc.lock").read_text() == "lock of somebody's run\n" and project.trained() == []
    calls: list[tuple[Path, str]] = []
    monkeypatch.setattr(workspace, "dvc", lambda root, *arguments: str(calls.append((root, arguments[0])) or ""))
    project.better = False
    project.retrain()
    assert calls == [(project.home, "checkout")], "once, and not each night"
    project.retrain()
    assert len(calls) == 1


@pytest.mark.parametrize("conflict", ["apart", "edited"])
def test_what_cannot_be_pulled_is_an_error_and_takes_no_batch(project: Project, conflict: str) -> None:
    other_checkout(project, "stage.py" if conflict == "apart" else "params.yaml")
    if conflict == "apart":
        commit(project.home, {"mine": "mine\n"})
        says = (
            r"`git merge` failed: .*Not possible to fast-forward, aborting\..*"
            r"`git merge [0-9a-f]{40} && dvc checkout dvc\.yaml`"
        )
    else:
        (project.home / "params.yaml").write_text((project.home / "params.yaml").read_text() + "# edited\n")
        says = r"params\.yaml has uncommitted changes: commit or undo them"
    with pytest.raises(UserError, match=says):
        project.retrain()
    assert project.trained() == [] and not list(retraining.unfinished(project.home))


def test_where_main_is_protected_the_winner_waits_for_its_pull_request(project: Project) -> None:
    """The pull request may be squashed to one commit; with merge_promoted=False the branch waits for a person."""
    protected = protect(project)
    (waits,) = project.retrain()
    assert "version 2 has won and is not merged: " in waits.left and waits.left.count("main is protected: open a") == 1
    assert f"merge {waits.branch} into main of origin (a pull request); then `python -m flows.retrain" in waits.left
    assert project.champion() == "1" and (project.home / "dvc.lock").read_text() == "lock of batch 0\n"
    (again,) = project.retrain()
    assert again.left == waits.left and project.trained() == [4, 4]
    protected.unlink()
    other = project.clone("other")
    git(other.home, "merge", "-q", "--squash", f"origin/{waits.branch}")
    git(other.home, "commit", "-qm", "Their pull request")
    git(other.home, "push", "-q", "origin", "main")
    protect(project)
    (done,) = retraining.go_on(project.home, project.steps())
    assert not done.left
    project.check_done("2")
    (waits,) = project.retrain(merge_promoted=False)
    assert waits.merged.startswith("not merged, as asked: a pull request of it") and project.champion() == "3"
    assert waits.branch in project.branches(project.origin)


def test_what_others_push_in_the_last_moment_is_merged_and_never_overwritten(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    share = origin.share

    def late(*arguments: str) -> bool:
        if not (project.root / "other").exists():
            other_checkout(project)
        return share(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(retraining, "share", late)
    (done,) = project.retrain()
    assert not done.left
    project.check_done("2")
    assert git(project.origin, "show", "main:stage.py") == "new code"


@pytest.mark.parametrize("end", ["--continue", "--withdraw", "another wins"])
def test_who_dies_between_the_push_and_the_merge_is_finished_or_undone_there_too(
    project: Project, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    def die_behind(*arguments: str) -> None:
        assert origin.share(*arguments)  # type: ignore[arg-type]
        os._exit(9)

    with monkeypatch.context() as patch:
        patch.setattr(retraining, "share", die_behind)
        assert in_child(project.retrain) == 9
    assert git(project.origin, "show", "main:dvc.lock") == "lock of batch 4"
    assert (project.home / "dvc.lock").read_text() == "lock of batch 0\n"
    if end == "--continue":
        retraining.go_on(project.home, project.steps())
        project.check_done("2")
        return
    other_checkout(project)
    if end == "--withdraw":
        protected = protect(project)
        with pytest.raises(UserError, match="main is protected"):
            retraining.withdraw(project.home)
        protected.unlink()
        (message,) = retraining.withdraw(project.home)
    else:
        project.another_wins()
        message = project.retrain()[0].merged
    assert "its merge is taken back" in message and not list(retraining.unfinished(project.home))
    assert (
        git(project.origin, "show", "main:dvc.lock") == "lock of batch 0" == git(project.home, "show", "main:dvc.lock")
    )
    assert git(project.origin, "show", "main:stage.py") == "new code"


def test_without_origin_or_with_no_push_nothing_is_pulled_or_pushed(project: Project) -> None:
    before = git(other_checkout(project).home, "rev-parse", "HEAD")
    (done,) = project.retrain(push=False)
    assert not done.left and "`git push` shows it to others" in done.merged
    assert git(project.origin, "rev-parse", "main") == before and not (project.home / "stage.py").exists()
    git(project.home, "remote", "remove", "origin")
    project.push = lambda root, branch: ["nothing"]  # type: ignore[method-assign]
    (done,) = project.retrain()
    assert project.champion() == "3" and done.merged.endswith("checked its data out")
    assert "Code of others" not in git(project.home, "log", "--format=%s", "main")


def test_a_branch_that_the_remote_does_not_have_is_not_made_there(project: Project) -> None:
    git(project.home, "switch", "-q", "-c", "mine")
    (done,) = project.retrain()
    assert "`git push` shows it to others" in done.merged
    assert "mine" not in git(project.origin, "branch")
