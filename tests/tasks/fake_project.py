"""A project in real git repositories whose stages, data store and registry are files: a retraining in seconds.

All state is on the disk, so that the parent of a child process that dies in the middle sees what it has left.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import yaml

from sweetrl.config.settings import TrackingSettings
from sweetrl.errors import UserError
from sweetrl.gate.decision import Decision
from sweetrl.io import write_json
from sweetrl.tracking.registry import CHALLENGER, CHAMPION, Registration, Registry
from sweetrl.tracking.store import Store
from tasks import retraining, workspace
from tasks.journal import Journal
from tasks.pipeline import execute_stage
from tasks.promotion import GateResult
from tasks.training import Outcome, Steps

ROOT = Path(__file__).resolve().parents[2]
PARAMS = """seed: 7
collect: {tasks: 4, first: 0}
tracking: {uri: 'sqlite:///mlflow.db'}
# What git merges line by line needs lines between.
evaluate: {tasks: 8}
policy: {epochs: 1}
"""


def quiet(text: str) -> None:
    """Say nothing."""


def quiet_steps(say: Callable[[str], None] = quiet) -> Steps:
    """Real stages whose output nobody sees; `say` gets what the run itself says."""
    return Steps(run=lambda stage, root, env: execute_stage(root, stage, env, quiet), say=say)


def git(root: Path, *arguments: str) -> str:
    command = ["git", "-c", "user.name=t", "-c", "user.email=t@example.org", *arguments]
    return subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout.strip()


def python(*words: str, cwd: Path | None = None, **more: str) -> subprocess.CompletedProcess[str]:
    """Run Python with the project's code, and `more` in its environment."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")]), **more}
    command = [sys.executable, *words]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)


def end_work(root: Path) -> None:
    """Kill what is at work below a folder."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if Path(process.cwd()).is_relative_to(root):
                process.kill()


def commit(root: Path, files: Mapping[str, str], message: str = "Work") -> None:
    """Write files, and commit them and nothing else."""
    for name, text in files.items():
        (root / name).write_text(text)
    git(root, "add", "-f", "--", *files)
    git(root, "commit", "-qm", message)


def hook(hooks: Path, name: str, script: str) -> Path:
    """Write a hook of git's."""
    hooks.mkdir(exist_ok=True)
    (hooks / name).write_text(f"#!/bin/sh\n{script}\n")
    (hooks / name).chmod(0o755)
    return hooks / name


def start_dvc(root: Path, no_scm: bool = False) -> None:
    """Do what `dvc init` does, without a process of its own."""
    from dvc.repo import Repo

    Repo.init(str(root), no_scm=no_scm).close()


def start_checkout(root: Path, store: str) -> None:
    """Commit what lies in `root` under git and DVC, with `store` as DVC's remote and an origin beside it."""
    git(root.parent, "init", "-q", "--bare", "-b", "main", "origin.git")
    git(root, "init", "-q", "-b", "main")
    git(root, "remote", "add", "origin", str(root.parent / "origin.git"))
    start_dvc(root)
    (root / ".dvc/config").write_text(f"[core]\n    remote = store\n['remote \"store\"']\n    url = {store}\n")
    git(root, "add", ".")
    git(root, "commit", "-qm", "The project")


class Page(list[Any]):
    """What a search in MLflow returns; there is no next page."""

    token = None


class Client:
    """As much of MLflow's client as `Registry` needs for aliases and tags, kept in one file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> dict[str, Any]:
        empty: dict[str, Any] = {"versions": [], "aliases": {}, "tags": {}, "deleted": []}
        return json.loads(self.path.read_text()) if self.path.exists() else empty

    def change(self, part: str, update: Callable[[Any], Any]) -> None:
        """Change one part; processes take turns, as at a server."""
        with self.path.with_suffix(".lock").open("w") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            parts = self.read()
            write_json(self.path, parts | {part: update(parts[part])})

    def get_registered_model(self, name: str) -> SimpleNamespace:
        return SimpleNamespace(**self.read())

    def search_model_versions(self, query: str, page_token: str | None = None) -> Any:
        parts = self.read()
        numbers = [str(number + 1) for number in range(len(parts["versions"]))]
        kept = [number for number in numbers if number not in parts["deleted"]]
        return Page(SimpleNamespace(version=number, tags=parts["tags"].get(number, {})) for number in kept)

    def set_model_version_tag(self, name: str, version: str, key: str, value: str) -> None:
        self.change("tags", lambda tags: tags | {version: tags.get(version, {}) | {key: value}})

    def set_registered_model_alias(self, name: str, alias: str, version: str) -> None:
        self.change("aliases", lambda aliases: aliases | {alias: version})

    def delete_registered_model_alias(self, name: str, alias: str) -> None:
        self.change("aliases", lambda aliases: {key: aliases[key] for key in aliases if key != alias})


class Project:
    """A checkout with an origin; version 1 is champion, and the next version is better unless `better` is False."""

    def __init__(self, root: Path) -> None:
        self.root, self.home, self.origin = root, root / "home", root / "origin.git"
        self.client = Client(root / "registry.json")
        self.failing: set[str] = set()  # steps whose server is gone
        self.marks: list[str] = []  # of the attempts at pipelines
        self.better = True

    @classmethod
    def make(cls, root: Path) -> Project:
        project = cls(root)
        git(root, "init", "-q", "--bare", "-b", "main", "origin.git")
        git(root, "init", "-q", "-b", "main", "home")
        (project.home / "params.yaml").write_text(PARAMS)
        (project.home / "dvc.lock").write_text("lock of batch 0\n")
        (project.home / ".gitignore").write_text("/.scratch/\n/data/\n")
        git(project.home, "add", ".")
        git(project.home, "commit", "-qm", "first")
        git(project.home, "remote", "add", "origin", str(project.origin))
        git(project.home, "push", "-q", "origin", "main")
        (root / "data").mkdir()
        project.client.change("versions", lambda locks: ["lock of batch 0\n"])
        project.registry().promote("1", "the first")
        return project

    def clone(self, name: str) -> Project:
        """Another machine: a clone of the origin, with the same registry and data store."""
        other = Project(self.root)
        other.home = self.root / name
        git(self.root, "clone", "-q", str(self.origin), str(other.home))
        return other

    def registry(self) -> Registry:
        return Registry(TrackingSettings(), store=Store(self.client, "a file", "0"))  # type: ignore[arg-type]

    def steps(self) -> Steps:
        return Steps(
            register=self.register, gate=self.judge, promote=self.promote, push=self.push, say=lambda text: None
        )

    def reach(self, server: str) -> None:
        if server in self.failing:
            raise UserError(f"{server} does not answer; start it.")

    def pipeline(
        self,
        tree: Path,
        steps: Steps,
        home: Path,
        hand_over: Callable[[Path], object],
        crown: Callable[[GateResult], GateResult],
    ) -> Outcome:
        """What `run_pipeline` does, with one stage that writes dvc.lock."""
        parameters = yaml.safe_load((tree / "params.yaml").read_text())
        batch = parameters["collect"]["first"]
        if (source := Path(parameters.get("sources", {}).get("trajectories", ""))).parent.name == "batches":
            batch = source.name
        self.marks.append(steps.mark)
        self.reach("stage")
        with (self.root / "trained").open("a") as stream:
            print(batch, file=stream)
        (tree / "dvc.lock").write_text(f"lock of batch {batch}\n")
        hand_over(tree)
        settings: Any = None
        registration = steps.register(settings, tree, None, home)
        steps.note("registered", version=registration.version)
        return Outcome((), registration, crown(steps.judge(settings, tree, registration.version)))

    def push(self, root: Path, branch: str | None) -> list[str]:
        self.reach("data store")
        lock = (root / "dvc.lock").read_text()
        (self.root / "data" / lock.strip().replace(" ", "-")).write_text(lock)
        self.reach("git server")
        assert branch is not None
        git(root, "push", "-q", "origin", branch)
        return ["data to the store", f"branch {branch} to origin"]

    def register(self, settings: Any, root: Path, parent: str | None, home: Path) -> Registration:
        self.reach("registry")
        lock, before = (root / "dvc.lock").read_text(), self.client.read()["versions"]
        self.client.change("versions", lambda locks: locks if lock in locks else [*locks, lock])
        version = str(self.client.read()["versions"].index(lock) + 1)
        if lock not in before:
            self.registry().set_alias(CHALLENGER, version)
        return Registration("sweetrl-agent", version, lock not in before)

    def judge(self, settings: Any, root: Path, version: str) -> GateResult:
        self.reach("gate")
        champion = self.champion()
        if champion == version:
            return GateResult(version, False, version, champion, "is the champion already")
        decision = Decision(self.better, "better" if self.better else "worse", 0.1, (0.0, 0.2), 9, 0.01, 0.95, 0.1, 0.2)
        return GateResult(version, False, str(champion), champion, decision.reason, decision)

    def promote(self, settings: Any, root: Path, result: GateResult) -> GateResult:
        self.reach("alias")
        assert self.champion() in (result.before, result.version)
        self.registry().promote(result.version, result.reason)
        return GateResult(result.version, True, result.version, result.before, result.reason, result.decision)

    def another_wins(self) -> None:
        """Another machine makes its version 3 champion, and the version of this one is no better."""
        self.client.change("versions", lambda locks: [*locks, "lock of another machine\n"])
        self.registry().promote("3", "better")
        self.better = False

    def champion(self) -> str | None:
        return self.registry().aliases().get(CHAMPION)

    def retrain(self, **options: Any) -> list[retraining.Retraining]:
        return retraining.retrain(self.home, self.steps(), **options)

    def branches(self, root: Path) -> list[str]:
        return git(root, "for-each-ref", "--format=%(refname:short)", "refs/heads/retrain").split()

    def trained(self) -> list[int]:
        path = self.root / "trained"
        return [int(line) for line in path.read_text().split()] if path.exists() else []

    def check_others(self) -> None:
        """Others can get each version's data and branch, and main has had the champion's dvc.lock."""
        at_origin = {git(self.origin, "show", f"{name}:dvc.lock") + "\n" for name in self.branches(self.origin)}
        for lock in self.client.read()["versions"][1:]:
            assert (self.root / "data" / lock.strip().replace(" ", "-")).exists()
            assert lock in at_origin
        champion = self.client.read()["versions"][int(str(self.champion())) - 1]
        past = git(self.home, "log", "--format=%H", "main").split()
        assert champion in {git(self.home, "show", f"{commit}:dvc.lock") + "\n" for commit in past}

    def check_done(self, champion: str) -> None:
        """Main, alias, data and branches agree, and nothing is left of the work."""
        self.check_others()
        assert self.champion() == champion
        assert (self.home / "dvc.lock").read_text() == self.client.read()["versions"][int(champion) - 1]
        assert git(self.home, "status", "--porcelain") == ""
        assert git(self.origin, "show", "main:dvc.lock") == git(self.home, "show", "main:dvc.lock")
        assert not list(retraining.unfinished(self.home))
        assert git(self.home, "worktree", "list").count("\n") == 0
        assert not list((self.home / ".scratch/worktrees").glob("*"))


def light(monkeypatch: pytest.MonkeyPatch, project: Project) -> None:
    """Put the project's files in the place of DVC, MLflow and the stages."""
    monkeypatch.setenv("SWEETRL_TRACKING", "off")
    monkeypatch.setattr(retraining, "run_pipeline", project.pipeline)
    monkeypatch.setattr(retraining, "champion", lambda settings, root: project.champion())
    monkeypatch.setattr(retraining, "Registry", lambda settings, root: project.registry())
    monkeypatch.setattr(workspace, "share_dvc_settings", lambda home, folder: None)
    monkeypatch.setattr(workspace, "dvc", lambda root, *arguments: "")


def in_child(action: Callable[[], object]) -> int:
    """Run `action` in a child process that ends with it, and return its exit status."""
    child = os.fork()
    if not child:
        try:
            action()
            os._exit(0)
        except BaseException:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def dying_at(number: int, after: bool) -> Callable[..., None]:
    """A `Journal.note` that ends the process at its `number`th call: before or right after the entry is written."""
    noted, write = 0, Journal.note

    def note(self: Journal, step: str, **facts: Any) -> None:
        nonlocal noted
        noted += 1
        if noted == number and not after:
            os._exit(9)
        write(self, step, **facts)
        if noted == number:
            os._exit(9)

    return note
