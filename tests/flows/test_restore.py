"""Restoring a version, with git and the registry's aliases in files: where a process dies, the next one finishes it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prefect.states import State

from flows import restore
from sweetrl.errors import UserError
from sweetrl.tracking.registry import Registry
from tasks import workspace
from tests.tasks.fake_project import Project, commit, git, hook, light, quiet


class Registered(Registry):
    """A registry whose versions hold the dvc.lock and params.yaml of their commits."""

    project: Project

    def get(self, reference: str) -> Any:
        return SimpleNamespace(version=reference, tags={})

    def download(self, version: Any, path: str, folder: Path) -> Path:
        lock = self.project.client.read()["versions"][int(version.version) - 1]
        first = int(lock.split()[-1])
        text = (self.project.home / "params.yaml").read_text()
        (folder / "dvc.lock").write_text(lock)
        text = re.sub("^collect:.*", f"collect: {{tasks: 4, first: {first}}}", text, flags=re.MULTILINE)
        (folder / "params.yaml").write_text(text)
        return folder


def registered(monkeypatch: pytest.MonkeyPatch, root: Path, modules: Sequence[Any], say: Any = quiet) -> Project:
    """A project whose versions are `Registered` for the modules; nothing is announced, and DVC has no remote."""
    made = Project.make(root)
    light(monkeypatch, made)

    def registry(settings: Any, root: Path) -> Registry:
        opened = Registered(settings, root, made.registry().store)
        opened.project = made
        return opened

    for module in modules:
        monkeypatch.setattr(module, "Registry", registry)
        monkeypatch.setattr(module, "announce", lambda *arguments: None, raising=False)
    monkeypatch.setattr(restore, "get_run_logger", lambda: SimpleNamespace(info=say))
    monkeypatch.setattr(workspace, "remote_name", lambda root: None)
    return made


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    made = registered(monkeypatch, tmp_path, [restore])
    made.retrain()
    made.retrain()
    return made


def back(project: Project, version: str = "2") -> restore.Restored:
    return restore.restore.fn(version, root=str(project.home))


def test_back_and_forward_each_leave_a_clean_checkout_and_keep_what_was_there(project: Project) -> None:
    for before, champion in (("3", "2"), ("2", "1"), ("1", "3"), ("3", "3")):
        done = back(project, champion)
        assert (done.before, done.champion) == (before, champion) and "and committed" in done.workspace
        project.check_done(champion)
        assert f"first: {4 * int(champion) - 4}" in (project.home / "params.yaml").read_text()
    kept = sorted((project.home / ".scratch/before-restore").iterdir())
    assert [(folder / "dvc.lock").read_text() for folder in kept] == [f"lock of batch {n}\n" for n in (8, 4, 0)]
    history = project.registry().history()
    assert [entry.version for entry in history] == ["1", "2", "3", "2", "1", "3"]
    assert history[-1].reason == "restored in the place of version 1"
    (done,) = project.retrain()
    assert not done.left, "the next promotion finds a clean checkout"
    project.check_done("4")
    with pytest.raises(UserError, match="which version"):
        back(project, "")


@pytest.mark.parametrize("missing", ["", "dvc_lock", "git_commit", "code"])
def test_what_git_holds_of_a_version_is_not_asked_for_elsewhere(
    project: Project, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    """The registry's server and the bucket may be down when a version is to be restored."""
    lock = project.client.read()["versions"][1]
    (branch,) = (
        name for name in project.branches(project.home) if git(project.home, "show", f"{name}:dvc.lock") in lock
    )
    tags = {"git_commit": git(project.home, "rev-parse", branch), "git_dirty": "false", "code": "{}"}
    tags |= {"dvc_lock": hashlib.md5(lock.encode()).hexdigest()}
    tags |= {missing: '{"suite": "mine:Own 0123"}' if missing == "code" else "0" * 32} if missing else {}
    downloads: list[str] = []
    download = Registered.download

    def downloading(registry: Registered, version: Any, path: str, folder: Path) -> Path:
        downloads.append(path)
        (folder / "there").mkdir()
        return download(registry, version, path, folder / "there")

    monkeypatch.setattr(Registered, "get", lambda registry, reference: SimpleNamespace(version=reference, tags=tags))
    monkeypatch.setattr(Registered, "download", downloading)
    back(project)
    assert downloads == (["lineage"] if missing else [])
    project.check_done("2")


def test_edited_files_are_kept_and_others_are_not_committed(project: Project) -> None:
    (project.home / "dvc.lock").write_text("being edited")
    (project.home / "notes").write_text("mine")
    git(project.home, "add", "notes")
    back(project)
    (kept,) = (project.home / ".scratch/before-restore").iterdir()
    assert (kept / "dvc.lock").read_text() == "being edited"
    assert git(project.home, "status", "--porcelain") == "A  notes"


def test_a_version_whose_data_cannot_be_had_changes_nothing(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(root: Path, *arguments: str) -> str:
        if "--with-deps" in arguments:  # fetching and checking out; not putting back
            raise UserError("the store does not answer")
        return ""

    with monkeypatch.context() as patch:
        patch.setattr(workspace, "dvc", gone)
        with pytest.raises(UserError, match=r"does not answer .*the data and the alias are as they were"):
            back(project)
    project.check_done("3")


def test_a_champion_of_another_machine_that_comes_meanwhile_stays(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, the alias moved to the version before it, whose data were not the restored ones."""
    commit = restore.commit_records
    with monkeypatch.context() as patch:
        patch.setattr(
            restore, "commit_records", lambda *given: (commit(*given), project.registry().promote("1", "elsewhere"))
        )
        with pytest.raises(UserError, match="version 1 has become champion meanwhile"):
            back(project)
    assert project.champion() == "1"


@pytest.mark.parametrize("step", ["put_back", "commit_records", "promote", "announce"])
def test_a_restore_that_died_is_finished_and_goes_no_further_back(
    project: Project, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def die(*arguments: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Registry if step == "promote" else restore, step, die)
        with pytest.raises(KeyboardInterrupt):
            back(project)
    assert back(project).champion == "2"
    project.check_done("2")
    assert [entry.version for entry in project.registry().history()] == ["1", "2", "3", "2"]


def test_a_restore_comes_behind_what_others_have_pushed_and_is_pushed(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = project.clone("other")
    commit(other.home, {"stage.py": "new code\n"}, "Theirs")
    git(other.home, "push", "-q", "origin", "main")
    seen: list[str] = []  # of main, by those who could get its data by then
    monkeypatch.setattr(restore, "push", lambda root: seen.append(git(project.origin, "show", "main:dvc.lock")))
    assert back(project).workspace.endswith("and committed; main is pushed to origin")
    project.check_done("2")
    assert seen == ["lock of batch 8"] and git(project.origin, "show", "main:dvc.lock") == "lock of batch 4"
    assert git(project.home, "rev-parse", "main") == git(project.origin, "rev-parse", "main")
    assert git(project.origin, "show", "main:stage.py") == "new code"


@pytest.mark.parametrize("fault", ["refused", "gone"])
def test_a_version_is_champion_though_git_s_server_does_not_take_it(project: Project, fault: str) -> None:
    """The same command, given again, pushes it."""
    refusing = hook(project.origin / "hooks", "pre-receive", "echo main is protected >&2\nexit 1")
    moved = project.root / "moved.git"
    if fault == "gone":
        project.origin.rename(moved)
    says = "main is protected" if fault == "refused" else "`git ls-remote` failed"
    state = back(project)
    assert isinstance(state, State) and state.name == "Waiting"
    assert state.message is not None and says in state.message
    assert "version 2 is champion, and others do not have its main: " in state.message
    assert project.champion() == "2" and git(project.home, "show", "main:dvc.lock") == "lock of batch 4"
    if fault == "gone":
        moved.rename(project.origin)
    refusing.unlink()
    assert back(project).workspace.endswith("main is pushed to origin")
    project.check_done("2")
