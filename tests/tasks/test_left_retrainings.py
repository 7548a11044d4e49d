"""Retrainings that were left unfinished, and what has changed around them before the next one comes."""

from __future__ import annotations

from pathlib import Path

import pytest

from sweetrl.errors import UserError
from tasks import retraining
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
