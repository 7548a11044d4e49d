"""Whatever moves the champion's alias (promotions by hand, the gate, runs, restores) waits for the others."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flows import promote, restore
from sweetrl.errors import UserError
from sweetrl.tracking.registry import Registration
from tasks import promotion, retraining, training
from tasks.journal import promoting
from tests.flows.test_restore import registered
from tests.tasks.fake_project import Project


@pytest.fixture
def lines() -> list[str]:
    """What the flows have printed."""
    return []


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: list[str]) -> Project:
    """Versions 1 to 3 were champion, one after the other; 4 is registered."""
    made = registered(monkeypatch, tmp_path, [promote, promotion, restore], lines.append)
    steps = replace(made.steps(), promote=promotion.take_over, say=lines.append)
    monkeypatch.setattr(promote, "prefect_steps", lambda: steps)
    made.client.change(
        "versions", lambda locks: [*locks, "lock of batch 40\n", "lock of batch 80\n", "lock of a run\n"]
    )
    for version in ("2", "3"):
        made.registry().promote(version, "better")
    return made


def by_hand(project: Project) -> object:
    return promote.promote.fn("sweetrl-agent/1", "demo", str(project.home))


def gate(project: Project) -> object:
    return promote.promote.fn("sweetrl-agent/4", root=str(project.home))


def run(project: Project) -> object:
    """The end of `make run`, whose version 4 is better than the champion."""
    registration = Registration("sweetrl-agent", "4", True)
    steps = replace(project.steps(), register=lambda *arguments: registration, promote=promotion.take_over)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "tracking_enabled", lambda: True)
        patch.setattr(training, "stage_states", lambda root: {"train": False})
        patch.setattr(training.PipelineRecord, "finish", lambda *arguments, **options: None)
        patch.setattr(training, "current_registration", lambda *arguments: None)
        for name in ("POLICY", "EVALUATION"):
            patch.setattr(training, name, Path("params.yaml"))  # there
        patch.setattr(training, "read_json", lambda path: {})
        return training.run_pipeline(project.home, steps)


def test_a_promotion_while_a_version_is_restored_comes_behind_it(
    project: Project, monkeypatch: pytest.MonkeyPatch, lines: list[str]
) -> None:
    """Before, it came between the data and the alias, and the alias then moved to a version that nobody had named."""
    put_back, other = restore.put_back, threading.Thread(target=by_hand, args=(project,))

    def restoring(*arguments: Any) -> tuple[str, list[str]]:
        other.start()
        other.join(1)
        return put_back(*arguments)

    monkeypatch.setattr(restore, "put_back", restoring)
    assert restore.restore.fn("2", root=str(project.home)).champion == "2"
    other.join(600)
    assert [entry.version for entry in project.registry().history()] == ["1", "2", "3", "2", "1"]
    assert project.champion() == "1" and (project.home / "dvc.lock").read_text() == "lock of batch 40\n"
    assert any("waiting until another process of this repository has ended its promotion" in line for line in lines)


@pytest.mark.parametrize("promoter", ["a run", "the gate", "by hand"])
def test_a_promotion_during_a_retrainings_merge_comes_behind_its_alias(
    project: Project, monkeypatch: pytest.MonkeyPatch, promoter: str
) -> None:
    """Before, it came between the two, so that the merged version was not the champion."""
    merge = retraining.merge
    promote_here = {"a run": run, "the gate": gate, "by hand": by_hand}[promoter]
    refused: list[UserError] = []

    def other() -> None:
        try:
            promote_here(project)
        except UserError as error:
            refused.append(error)

    thread = threading.Thread(target=other)

    def merging(*arguments: Any) -> str:
        done = merge(*arguments)
        thread.start()
        thread.join(1)
        return done

    monkeypatch.setattr(retraining, "merge", merging)
    (done,) = project.retrain()
    thread.join(600)
    assert not done.left and not list(retraining.unfinished(project.home))
    assert [entry.version for entry in project.registry().history()][:4] == ["1", "2", "3", "5"]
    assert (project.home / "dvc.lock").read_text() == "lock of batch 4\n"
    assert project.champion() == {"a run": "5", "the gate": "4", "by hand": "1"}[promoter]
    if promoter == "a run":
        assert "version 5 became champion meanwhile" in str(refused.pop())
    assert not refused


def test_a_folder_outside_git_waits_for_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    with promoting(tmp_path):
        assert list(tmp_path.iterdir()) == []
