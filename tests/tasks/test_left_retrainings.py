"""Retrainings that were left unfinished, and what has changed around them before the next one comes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sweetrl.errors import UserError
from tasks import retraining
from tasks.batches import REF, known
from tasks.ingestion import ingests
from tests.tasks.fake_project import Project, git, light


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    made = Project.make(tmp_path)
    light(monkeypatch, made)
    return made


def leave(project: Project, server: str) -> None:
    """Let a retraining end at a server that is gone."""
    project.failing = {server}
    with pytest.raises(UserError):
        project.retrain()
    project.failing = set()


def test_a_checkout_that_was_moved_finishes_what_was_left_in_it(project: Project) -> None:
    """It was another checkout's, which there was no more, and its batch was left out without a word."""
    leave(project, "stage")
    (tree,) = (project.home / ".scratch/worktrees").glob("*")
    (tree / ".scratch").mkdir()
    (tree / ".scratch/shard-1").write_text("half of the work")
    project.home = project.home.rename(project.root / "moved")
    seen, pipeline = [], project.pipeline

    def spy(tree: Path, *rest):
        seen.append((tree / ".scratch/shard-1").read_text())
        return pipeline(tree, *rest)

    retraining.run_pipeline = spy  # the fixture puts it back
    project.retrain()
    assert project.trained() == [4] and seen == ["half of the work"]
    project.check_done("2")


def test_what_another_checkout_has_left_is_its_own(project: Project) -> None:
    leave(project, "stage")
    other = project.root / "other"
    git(project.home, "worktree", "add", "-q", "-b", "other", str(other))
    assert list(retraining.unfinished(other)) == []
    assert [journal.fact("taking", "first") for journal in retraining.unfinished(project.home)] == [4]


def test_a_branch_that_is_gone_is_told(project: Project) -> None:
    git(project.home, "switch", "-q", "-c", "feature")
    leave(project, "stage")
    git(project.home, "switch", "-q", "main")
    git(project.home, "branch", "-q", "-D", "feature")
    with pytest.raises(UserError, match=r"the branch feature, on which retrain/.* began, is gone; bring it back, or"):
        project.retrain()
    retraining.withdraw(project.home)
    project.retrain()
    assert project.trained() == [8] and project.champion() == "2"


def test_a_branch_that_was_merged_before_another_machine_won_is_told(project: Project) -> None:
    """The alias could not be moved, and meanwhile another machine's version has become champion."""
    leave(project, "alias")
    project.client.change("versions", lambda known: [*known, "lock of another machine\n"])
    project.registry().promote("3", "better")
    project.better = False
    (done,) = project.retrain()
    assert done.merged.startswith("merged before version 3 became champion; `git revert`") and not done.left
    assert project.champion() == "3"


@pytest.mark.parametrize("names", [("GIT_DIR",), ("GIT_DIR", "GIT_WORK_TREE"), ("GIT_INDEX_FILE",)])
def test_a_retraining_that_a_hook_starts_works_in_its_own_worktree(
    project: Project, monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...]
) -> None:
    """Git's hooks hand the repository on that they are in: what had lost was committed on main."""
    handed = {"GIT_DIR": project.home / ".git", "GIT_WORK_TREE": project.home, "GIT_INDEX_FILE": ".git/index"}
    project.better = False
    project.push = lambda root, branch: ["nothing"]  # type: ignore[method-assign]
    for name in names:
        monkeypatch.setenv(name, str(handed[name]))
    (done,) = project.retrain()
    for name in names:
        monkeypatch.delenv(name)
    assert git(project.home, "log", "--format=%s", "main") == "first"
    assert git(project.home, "show", f"{done.branch}:dvc.lock") == "lock of batch 4"
    assert git(project.home, "status", "--porcelain") == ""


def test_commits_of_others_among_the_batches_are_no_batches_and_newer_ones_are(project: Project) -> None:
    """A commit by hand, or a batch of a newer version on another machine, ended every retraining with a trace."""
    project.retrain()
    newer = {"first": 90, "tasks": 5, "branch": "retrain/newer", "gpus": 4}
    for message in ("Tidy up", "[]", json.dumps(newer)):
        tip, tree = git(project.home, "rev-parse", REF), git(project.home, "rev-parse", "HEAD^{tree}")
        commit = git(project.home, "commit-tree", tree, "-p", tip, "-m", message)
        git(project.home, "push", "-q", "origin", f"{commit}:{REF}")
        git(project.home, "update-ref", REF, commit)
    assert [batch.first for batch in known(project.home, [REF])] == [90, 4]
    project.retrain()
    assert project.trained() == [4, 95]
    assert ingests(project.home, git(project.home, "rev-parse", REF)) == []
