"""Rolling back, with git and the registry's aliases in files: whoever dies where, the next one finishes it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flows import rollback
from sweetrl.errors import UserError
from sweetrl.tracking.registry import Registry
from tasks import workspace
from tests.tasks.fake_project import Project, git, light, quiet


class Registered(Registry):
    """A registry whose versions hold the dvc.lock and params.yaml of their commits."""

    project: Project

    def get(self, reference: str) -> Any:
        return SimpleNamespace(version=reference)

    def download(self, version: Any, path: str, folder: Path) -> Path:
        lock = self.project.client.read()["versions"][int(version.version) - 1]
        first = int(lock.split()[-1])
        text = (self.project.home / "params.yaml").read_text()
        (folder / "dvc.lock").write_text(lock)
        (folder / "params.yaml").write_text("".join(_set(line, first) for line in text.splitlines(True)))
        return folder


def _set(line: str, first: int) -> str:
    return f"collect: {{tasks: 4, first: {first}}}\n" if line.startswith("collect:") else line


def registered(monkeypatch: pytest.MonkeyPatch, root: Path, modules: Sequence[Any], say: Any = quiet) -> Project:
    """A project whose versions are `Registered` for the modules; nothing is announced, and DVC has no remote."""
    made = Project.make(root)
    light(monkeypatch, made)

    def registry(settings: Any, root: Path) -> Registry:
        found = Registered(settings, root, made.registry().store)
        found.project = made
        return found

    for module in modules:
        monkeypatch.setattr(module, "Registry", registry)
        monkeypatch.setattr(module, "announce", lambda *arguments: None, raising=False)
    monkeypatch.setattr(rollback, "get_run_logger", lambda: SimpleNamespace(info=say))
    monkeypatch.setattr(workspace, "remote_name", lambda root: None)
    return made


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    made = registered(monkeypatch, tmp_path, [rollback])
    made.retrain()
    made.retrain()
    return made


def test_rollbacks_one_after_the_other_leave_a_clean_checkout_each_and_keep_what_was_there(project: Project) -> None:
    for champion in ("2", "1"):
        done = rollback.rollback.fn(str(project.home))
        assert done.champion == champion and "and committed" in done.workspace
        project.check_done(champion)
        assert f"first: {4 * int(champion) - 4}" in (project.home / "params.yaml").read_text()
    kept = sorted((project.home / ".scratch/before-rollback").iterdir())
    assert [(folder / "dvc.lock").read_text() for folder in kept] == ["lock of batch 8\n", "lock of batch 4\n"]
    (done,) = project.retrain()
    assert not done.left, "the next promotion finds a clean checkout"
    project.check_done("4")


def test_edited_files_are_kept_and_others_are_not_committed(project: Project) -> None:
    (project.home / "dvc.lock").write_text("being edited")
    (project.home / "notes").write_text("mine")
    git(project.home, "add", "notes")
    rollback.rollback.fn(str(project.home))
    (kept,) = (project.home / ".scratch/before-rollback").iterdir()
    assert (kept / "dvc.lock").read_text() == "being edited"
    assert git(project.home, "status", "--porcelain") == "A  notes"


def test_a_rollback_whose_data_cannot_be_had_changes_nothing(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(root: Path, *arguments: str) -> str:
        if "--with-deps" in arguments:  # fetching and checking out; not putting back
            raise UserError("the store does not answer")
        return ""

    with monkeypatch.context() as patch:
        patch.setattr(workspace, "dvc", gone)
        with pytest.raises(UserError, match=r"does not answer .*the data and the alias are as they were"):
            rollback.rollback.fn(str(project.home))
    project.check_done("3")


def test_a_champion_that_was_deleted_is_passed_over(project: Project) -> None:
    """Nobody could go back behind it, and each attempt left what the next one had to finish."""
    project.client.set_registered_model_tag("", "deleted", "2")
    done = rollback.rollback.fn(str(project.home))
    assert (done.left, done.champion) == ("3", "1")
    project.check_done("1")
    with pytest.raises(UserError, match="there is no earlier champion to return to"):
        rollback.rollback.fn(str(project.home))


def test_a_champion_of_another_machine_that_comes_meanwhile_stays(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The alias went to the one before it, whose data were not those that had been brought back."""
    commit = rollback.commit_records
    with monkeypatch.context() as patch:
        patch.setattr(
            rollback, "commit_records", lambda *given: (commit(*given), project.registry().promote("1", "elsewhere"))
        )
        with pytest.raises(UserError, match="version 1 has become champion meanwhile"):
            rollback.rollback.fn(str(project.home))
    assert project.champion() == "1"


@pytest.mark.parametrize("where", ["restore", "commit_records", "step_back"])
def test_a_rollback_that_died_is_finished_and_goes_no_further_back(
    project: Project, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    def die(*arguments: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Registry if where == "step_back" else rollback, where, die)
        with pytest.raises(KeyboardInterrupt):
            rollback.rollback.fn(str(project.home))
    done = rollback.rollback.fn(str(project.home))
    assert (done.left, done.champion) == ("3", "2")
    project.check_done("2")
    assert rollback.rollback.fn(str(project.home)).champion == "1", "and the one after that goes on"
