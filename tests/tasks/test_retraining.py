"""The sequence of a retraining: wherever it dies, and whichever server is gone, the next run finishes it."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sweetrl.errors import UserError
from sweetrl.tracking.runs import RunLog
from tasks import batches, retraining, workspace
from tasks.batches import REF, Batch, batches_of
from tasks.journal import Journal
from tasks.training import Outcome
from tests.tasks.fake_project import PARAMS, Client, Project, commit, dying_at, git, in_child

STEPS = (
    *("taking", "taken", "worktree", "trained", "pushed"),
    *("registered", "decided", "merging", "merged", "promoted", "done"),
)


def steps_of(project: Project) -> list[str]:
    (path,) = (project.home / ".git/sweetrl/retrain").glob("*.jsonl")
    with Journal(path) as journal:
        return [row["step"] for row in journal.rows]


def leave(project: Project, server: str, **options: Any) -> None:
    """Let a retraining end at a server that is gone."""
    project.failing = {server}
    with pytest.raises(UserError):
        project.retrain(**options)
    project.failing = set()


def test_a_promoted_retraining_is_pushed_registered_merged_and_then_champion(project: Project) -> None:
    (done,) = project.retrain()
    assert set(steps_of(project)) == set(STEPS)
    assert done.outcome.gate is not None and done.outcome.gate.promoted and not done.left
    assert done.pushed == ("data to the store", f"branch {done.branch} to origin")
    assert done.merged == f"merged {done.branch} and checked its data out; main is pushed to origin"
    project.check_done("2")
    assert project.trained() == [4]
    project.retrain()
    project.check_done("3")
    assert project.trained() == [4, 8]


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("number", range(1, len(STEPS) + 1), ids=STEPS)
def test_whoever_dies_at_a_step_the_next_run_brings_it_to_its_end(
    project: Project, monkeypatch: pytest.MonkeyPatch, number: int, after: bool
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Journal, "note", dying_at(number, after))
        assert in_child(project.retrain) == 9
    project.check_others()
    commit(project.home, {"README": "somebody goes on working\n"})
    over = number == len(STEPS) and after
    assert len(project.retrain()) == 1
    project.check_done("3" if over else "2")
    assert set(project.trained()) == ({4, 8} if over else {4}), "no batch is lost, and none is new"
    assert len(batches_of(project.home, [REF])) == (2 if over else 1)
    assert [entry.version for entry in project.registry().history()] == ["1", "2", "3"][: 3 if over else 2]
    assert not list(retraining.unfinished(project.home))


@pytest.mark.parametrize("place", ["in the registry", "in the merge", "in taking the batch"])
def test_whoever_dies_within_a_step_the_next_run_brings_it_to_its_end(
    project: Project, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """For example: history written, alias not moved; main moved, its data not; the batch taken at the origin only."""

    def die(*arguments: object, **options: object) -> str:
        os._exit(9)

    def die_at_update(root: Path, *arguments: str, check: bool = True) -> object:
        return die() if arguments[0] == "update-ref" else workspace.git(root, *arguments, check=check)

    with monkeypatch.context() as patch:
        if place == "in the registry":
            write = Client.set_registered_model_alias
            patch.setattr(
                Client,
                "set_registered_model_alias",
                lambda self, name, alias, to: die() if alias == "champion" else write(self, name, alias, to),
            )
        elif place == "in the merge":
            patch.setattr(workspace, "dvc", die)
        else:
            patch.setattr(batches, "git", die_at_update)
        assert in_child(project.retrain) == 9
    project.check_others()
    assert len(project.retrain()) == 1
    project.check_done("2")
    assert project.trained() in ([4], [4, 4])
    assert [entry.version for entry in project.registry().history()] == ["1", "2"]


@pytest.mark.parametrize("server", ["stage", "data store", "git server", "registry", "gate", "alias"])
def test_a_server_that_is_gone_is_named_and_the_next_run_goes_on(project: Project, server: str) -> None:
    project.failing = {server}
    for _ in range(2):
        with pytest.raises(UserError, match=f"{server} does not answer"):
            project.retrain()
        project.check_others()
        assert project.champion() == "1"
    with pytest.raises(UserError, match=r"is unfinished \(none\)"):
        project.retrain(changes={"policy.epochs": 2})
    project.failing = set()
    assert len(retraining.go_on(project.home, project.steps())) == 1
    project.check_done("2")
    assert set(project.trained()) <= {4}
    assert retraining.go_on(project.home, project.steps()) == []


def test_a_loser_is_kept_and_nothing_is_merged(project: Project) -> None:
    project.better = False
    (done,) = project.retrain()
    assert (done.merged, done.left) == ("", "") and done.outcome.gate is not None and not done.outcome.gate.promoted
    project.check_done("1")
    assert project.registry().aliases() == {"champion": "1", "challenger": "2"}
    assert git(project.home, "show", f"{done.branch}:dvc.lock") == "lock of batch 4"


def test_what_cannot_be_merged_waits_and_holds_up_the_next_batch_unless_it_is_passed(project: Project) -> None:
    params = project.home / "params.yaml"
    params.write_text(PARAMS + "# being edited\n")
    (first,) = project.retrain()
    assert (
        "version 2 has won and is not merged" in first.left
        and "params.yaml has uncommitted changes: commit or undo" in first.left
    )
    project.check_others()
    assert project.champion() == "1"
    assert [done.branch for done in project.retrain()] == [first.branch]
    waits, second = project.retrain(past_waiting=True)
    assert waits.branch == first.branch != second.branch and second.left
    assert set(project.trained()) == {4, 8}
    params.write_text(PARAMS)
    retraining.go_on(project.home, project.steps())
    project.check_done("3")
    assert [entry.version for entry in project.registry().history()] == ["1", "2", "3"]


def test_a_checkout_that_has_gone_on_gets_the_champions_records_and_keeps_its_own_work(project: Project) -> None:
    leave(project, "registry")
    commit(project.home, {"dvc.lock": "lock of somebody's run\n", "stage.py": "new code\n"})
    project.retrain()
    project.check_done("2")
    assert (project.home / "stage.py").exists() and "first: 4" in (project.home / "params.yaml").read_text()


def test_parameters_that_people_have_changed_meanwhile_are_theirs_to_merge(project: Project) -> None:
    leave(project, "registry")
    commit(project.home, {"params.yaml": PARAMS.replace("epochs: 1", "epochs: 3")})
    (waits,) = retraining.go_on(project.home, project.steps())
    assert "params.yaml differs in" in waits.left and "(policy.epochs): `git merge retrain/" in waits.left
    project.check_others()
    git(project.home, "merge", "-q", "--no-edit", waits.branch)  # params.yaml is merged line by line
    (done,) = retraining.go_on(project.home, project.steps())
    assert not done.left
    project.check_done("2")
    assert "epochs: 3" in (project.home / "params.yaml").read_text()


def test_two_that_win_against_the_same_champion_both_end_on_main(project: Project) -> None:
    """The second is judged again, against the first, and main is merged into its branch."""
    leave(project, "alias")
    (held,) = (project.home / ".git/sweetrl/retrain").glob("*.jsonl")
    project.failing = set()
    with Journal(held):  # as if its process were still at work
        project.retrain()
    assert project.champion() == "3"
    judged: list[str] = []
    judge = project.judge
    project.judge = lambda settings, root, version: (judged.append(version), judge(settings, root, version))[1]  # type: ignore[method-assign]
    retraining.go_on(project.home, project.steps())
    assert judged == ["2"]
    assert project.champion() == "2"
    project.check_done("2")


def test_what_a_retraining_came_to_is_announced_though_the_next_one_fails(project: Project) -> None:
    """Before, an error of the second one hid that the first one's version was champion now."""
    leave(project, "gate")
    (held,) = (project.home / ".git/sweetrl/retrain").glob("*.jsonl")
    with Journal(held):  # as if its process were still at work
        leave(project, "gate")
    announced: list[str] = []

    def announce(outcome: Outcome) -> None:
        assert outcome.gate is not None and outcome.gate.promoted
        announced.append(outcome.gate.version)
        project.failing = {"stage"}

    with pytest.raises(UserError, match="stage does not answer"):
        retraining.go_on(project.home, replace(project.steps(), announce=announce))
    assert announced == ["2"]


def test_two_retrainings_at_once_train_on_two_batches_and_agree_in_the_end(project: Project) -> None:
    """Both processes win, one after the other, and neither takes the other's batch, version or merge away."""
    context = multiprocessing.get_context("fork")
    gate = context.Barrier(2)
    processes = [context.Process(target=lambda: (gate.wait(), project.retrain())) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(600)
    assert [process.exitcode for process in processes] == [0, 0]
    assert sorted(project.trained()) == [4, 8]
    assert [entry.version for entry in project.registry().history()] in (["1", "2", "3"], ["1", "3", "2"])
    project.check_done(str(project.champion()))
    for branch in project.branches(project.home):
        git(project.home, "merge-base", "--is-ancestor", branch, "main")


def test_a_batch_that_another_machine_takes_at_the_last_moment_is_left_to_it(project: Project) -> None:
    other, seen = project.clone("other"), []
    with retraining.begin(project.home, {}, True, True) as journal:
        assert journal.order["batch"]["collect.first"] == 4

    def choose(taken):
        seen.append([batch.first for batch in taken])
        if len(seen) == 1:
            retraining.begin(project.home, {}, True, True).close()
        return Batch(max(seen[-1]) + 4, 4, "retrain/three")

    assert retraining.take_batch(other.home, "origin", choose, lambda batch, commit: None).first == 12
    assert seen == [[4], [8, 4]]


def test_a_remote_that_does_not_answer_is_an_error_before_anything_is_trained(project: Project) -> None:
    git(project.home, "remote", "set-url", "origin", str(project.root / "gone.git"))
    with pytest.raises(UserError, match=r"`git ls-remote` failed: fatal: ") as raised:
        project.retrain()
    assert "\n" not in str(raised.value)
    assert project.trained() == [] and not list(retraining.unfinished(project.home))
    (done,) = project.retrain(push=False)
    assert done.pushed == ("nothing: --no-push",) and project.champion() == "2"
    assert project.trained() == [4], "a batch that was not taken is not lost"


def test_a_batch_that_may_have_been_taken_is_looked_for_again(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection breaks after the remote has recorded the batch: it is this retraining's, and no other is taken."""
    push_ref = batches.push_ref

    def broken(*arguments) -> bool:
        push_ref(*arguments)
        raise UserError("the connection broke")

    with monkeypatch.context() as patch:
        patch.setattr(batches, "push_ref", broken)
        with pytest.raises(UserError, match="the connection broke"):
            project.retrain()
    project.retrain()
    assert project.trained() == [4] and len(batches_of(project.origin, [REF])) == 1
    project.check_done("2")


def test_withdrawing_leaves_nothing_but_what_was_trained(project: Project) -> None:
    leave(project, "gate")
    (message,) = retraining.withdraw(project.home)
    assert "is withdrawn (the branch keeps what was trained)" in message
    assert "`python -m flows.retrain collect.first=4` takes its batch again" in message
    project.check_done("1")
    assert project.registry().aliases() == {"champion": "1"}
    leave(project, "stage")
    retraining.withdraw(project.home)
    assert len(project.branches(project.home)) == 1, "a branch without a commit of its own is removed"
    project.failing = set()
    project.retrain(changes={"collect.first": 4})
    assert project.trained() == [4, 4]


def test_who_withdraws_while_mlflows_server_is_gone_withdraws_again(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else its run would be RUNNING for ever; it is in the experiment that the retraining has set."""
    from mlflow.exceptions import MlflowException

    def lose(log: RunLog) -> None:
        assert log.settings.experiment == "trial"
        log.failure = MlflowException("Connection refused")

    leave(project, "gate", changes={"tracking.experiment": "trial"})
    with monkeypatch.context() as patch:
        patch.setattr(RunLog, "take_over", lose)
        with pytest.raises(UserError, match=r"^MLflow's server fails, .*Connection refused"):
            retraining.withdraw(project.home)
    assert len(retraining.withdraw(project.home)) == 1
    project.check_done("1")


def test_code_that_git_does_not_have_takes_no_batch(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its worktree has only what is in git: before, the first stage there ended with "there is no module"."""
    monkeypatch.chdir(project.home)
    Path("mine_alone.py").write_text("import sweetrl\n\nclass Best(sweetrl.Method):\n    pass\n")
    with pytest.raises(UserError, match=r"^mine_alone\.py: git does not have it as it is here"):
        project.retrain(changes={"method": "mine_alone:Best"})
    assert project.trained() == [] and not list(retraining.unfinished(project.home))


def test_every_attempt_at_a_retraining_has_the_mark_by_which_its_run_is_found(project: Project) -> None:
    leave(project, "stage")
    project.retrain()
    project.retrain()
    first, again, *others = project.marks
    assert first and first == again and first not in others, "another retraining has another one"


def test_a_champion_is_not_withdrawn(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Journal, "note", dying_at(len(STEPS) - 1, after=True))
        assert in_child(project.retrain) == 9
    with pytest.raises(UserError, match="version 2 is the champion already; `python -m flows"):
        retraining.withdraw(project.home)


def test_an_unfinished_worktree_is_gone_on_with(project: Project) -> None:
    """Stages resume from what they keep in .scratch, which lies in the worktree."""
    leave(project, "stage")
    (tree,) = (project.home / ".scratch/worktrees").glob("*")
    (tree / ".scratch").mkdir()
    (tree / ".scratch/shard-1").write_text("half of the work")
    # Git was killed while it wrote its index.
    (project.home / ".git/worktrees" / tree.name / "index.lock").touch()
    seen = []
    pipeline = project.pipeline

    def spy(tree: Path, *rest, **options):
        seen.append((tree / ".scratch/shard-1").read_text())
        return pipeline(tree, *rest, **options)

    retraining.run_pipeline = spy  # the fixture puts it back
    project.failing = set()
    project.retrain()
    assert seen == ["half of the work"], "the same folder"
    project.check_done("2")


def test_a_worktree_that_was_cleaned_away_is_made_again(project: Project) -> None:
    leave(project, "registry")
    shutil.rmtree(project.home / ".scratch")
    project.failing = set()
    project.retrain()
    project.check_done("2")


def test_parameters_that_are_wrong_take_no_batch(project: Project) -> None:
    with pytest.raises(UserError, match=rf"^{project.home}/params\.yaml: unknown parameter `policy\.epoch`"):
        project.retrain(changes={"policy.epoch": 2})
    assert batches_of(project.home, [REF] if batches.head(project.home, REF) else []) == []
    (done,) = project.retrain(changes={"policy.epochs": 2})
    assert "policy: {epochs: 2.0}" in git(project.home, "show", f"{done.branch}:params.yaml")


def test_a_project_without_git_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "params.yaml").write_text(PARAMS)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    with pytest.raises(UserError, match="not a git repository with a commit"):
        retraining.retrain(tmp_path, Project(tmp_path).steps())
    assert [path.name for path in tmp_path.iterdir()] == ["params.yaml"]


def test_a_retraining_on_fresh_test_tasks_has_them_in_its_parameters(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So has the retraining that finishes it, whatever is due by then."""
    commit(project.home, {"params.yaml": PARAMS + "tasks: {test: 5, test_first: 0}\n"})
    monkeypatch.setattr(retraining, "tracking_enabled", lambda: True)
    monkeypatch.setattr(retraining, "recording_at", lambda settings, home: contextlib.nullcontext())
    monkeypatch.setattr(retraining, "fresh_test_first", lambda settings, home: settings.tasks.test_first + 5)
    project.failing = {"stage"}
    with pytest.raises(UserError, match="stage does not answer"):
        project.retrain()
    project.failing = set()
    monkeypatch.setattr(retraining, "fresh_test_first", lambda settings, home: 99)
    (done,) = project.retrain()
    assert "test_first: 5" in git(project.home, "show", f"{done.branch}:params.yaml")
    assert "test_first: 5" in (project.home / "params.yaml").read_text(), "it has won, and is merged"


def test_what_another_checkout_has_left_is_its_own(project: Project) -> None:
    leave(project, "stage")
    other = project.root / "other"
    git(project.home, "worktree", "add", "-q", "-b", "other", str(other))
    assert list(retraining.unfinished(other)) == []
    assert [journal.order["batch"]["collect.first"] for journal in retraining.unfinished(project.home)] == [4]


@pytest.mark.parametrize("end", ["--continue", "--withdraw", "another machine wins"])
def test_a_version_that_is_merged_and_not_promoted_is_finished_or_undone(project: Project, end: str) -> None:
    """Before, `--continue` failed each night, and `--withdraw` silently left the merge."""
    project.failing = {"alias"}
    says = r"^version 2 is merged and not promoted: alias does not answer; .*--continue`, or .*--withdraw"
    for _ in range(2):
        with pytest.raises(UserError, match=says):
            project.retrain()
    assert (project.champion(), (project.home / "dvc.lock").read_text()) == ("1", "lock of batch 4\n")
    project.failing = set()
    commit(project.home, {"README": "somebody goes on working\n"})
    if end == "--continue":
        retraining.go_on(project.home, project.steps())
        project.check_done("2")
        return
    if end == "--withdraw":
        (message,) = retraining.withdraw(project.home)
    else:
        project.another_wins()
        message = project.retrain()[0].merged
    assert "its merge is taken back: dvc.lock, params.yaml and the data are put back" in message
    assert (project.home / "dvc.lock").read_text() == "lock of batch 0\n" and (project.home / "README").exists()
    assert git(project.home, "status", "--porcelain") == "" and not list(retraining.unfinished(project.home))


def test_a_retraining_that_a_hook_starts_works_in_its_own_worktree(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Git's hooks set the repository in the environment: before, a version that had lost was committed on main."""
    handed = {"GIT_DIR": project.home / ".git", "GIT_WORK_TREE": project.home, "GIT_INDEX_FILE": ".git/index"}
    project.better = False
    project.push = lambda root, branch: ["nothing"]  # type: ignore[method-assign]
    for name, value in handed.items():
        monkeypatch.setenv(name, str(value))
    (done,) = project.retrain()
    for name in handed:
        monkeypatch.delenv(name)
    assert git(project.home, "log", "--format=%s", "main") == "first"
    assert git(project.home, "show", f"{done.branch}:dvc.lock") == "lock of batch 4"
    assert git(project.home, "status", "--porcelain") == ""
