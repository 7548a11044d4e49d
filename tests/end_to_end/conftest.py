"""Real clones of the project in temporary folders, with git, DVC, MLflow and Prefect, made small by parameters only."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import filelock
import pytest
import yaml

from tasks.workspace import change_parameters, git

ROOT = Path(__file__).resolve().parents[2]

# Enough that every stage has something to do, little enough for two cores.
SMALL: dict[str, Any] = {
    "model.processes": 1,  # other tests run beside it
    "tasks.train": 40,
    "tasks.validation": 4,
    "tasks.test": 12,
    "collect.tasks": 12,
    "collect.attempts": 4,
    "collect.batch": 48,
    "collect.shard": 24,
    "validate.minimum_pairs": 1,
    "critic.learning_rate": 1e-3,  # so that the few steps move something
    "critic.epochs": 4,
    "critic.checkpoints": 2,
    "rank.share": 0.2,
    "rank.candidates": 4,
    "rank.margin": 0.0,  # so short a training leaves small advantages
    "policy.learning_rate": 1e-4,
    "policy.epochs": 1,
    "policy.checkpoints": 2,
    "evaluate.tasks": 8,
    "evaluate.resamples": 200,
    "evaluate.confidence": 0.995,  # so few tasks show neither gain nor harm, whatever the training has come to
}


class Clone:
    """A copy of the project as it is in the working tree, committed in a repository of its own."""

    def __init__(self, root: Path):
        self.root = root

    def run(self, module: str, *arguments: str, seconds: float = 2700) -> subprocess.CompletedProcess[str]:
        """Run `python -m module` there, with the clone's own sources."""
        return subprocess.run(
            [sys.executable, "-m", module, *arguments],
            cwd=self.root,
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )

    def check(self, module: str, *arguments: str, seconds: float = 2700) -> subprocess.CompletedProcess[str]:
        """Run `python -m module`, which must succeed."""
        done = self.run(module, *arguments, seconds=seconds)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
        return done

    def environment(self) -> dict[str, str]:
        """The environment of a user with an activated environment, without the variables of this test run."""
        own = ("MLFLOW_", "PREFECT_", "SWEETRL_")
        plain = {name: value for name, value in os.environ.items() if not name.startswith(own)}
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        return {**plain, "PATH": path, "PYTHONPATH": str(self.root / "src"), "COLUMNS": "200"}

    def lock(self) -> dict[str, dict[str, str]]:
        """Stage -> output -> hash."""
        stages = yaml.safe_load((self.root / "dvc.lock").read_text())["stages"]
        return {name: {out["path"]: out["md5"] for out in stage["outs"]} for name, stage in stages.items()}


def make_clone(root: Path, **changes: Any) -> Clone:
    """Copy the working tree's files (not the ignored ones) to `root`, shrink its parameters, and commit."""
    listed = git(ROOT, "ls-files", "--cached", "--others", "--exclude-standard", "-z").stdout.split("\0")
    for name in filter(None, listed):
        if (ROOT / name).is_file() or (ROOT / name).is_symlink():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, root / name, follow_symlinks=False)
    (root / "dvc.lock").unlink(missing_ok=True)
    change_parameters(root, SMALL | changes)
    git(root, "init", "-q", "-b", "main")
    git(root, "config", "user.name", "clone")
    git(root, "config", "user.email", "clone@example.org")
    git(root, "add", "-A")
    git(root, "commit", "-qm", "A clone")
    return Clone(root)


@pytest.fixture(scope="session")
def clone_project() -> Callable[..., Clone]:
    """Return `make_clone`; skips where the project is not a git checkout with its base model."""
    if git(ROOT, "rev-parse", "HEAD", check=False).returncode:
        pytest.skip("the end-to-end tests copy the files that git knows, and this is no git checkout")
    if not (ROOT / "models/base/config.json").exists():
        pytest.skip("models/base is missing: git pull, or make base-model")
    return make_clone


@pytest.fixture(scope="session")
def first(tmp_path_factory: pytest.TempPathFactory, clone_project: Callable[..., Clone]) -> tuple[Clone, str]:
    """A clone after its first run, and what the run printed: made once, whichever test process comes first."""
    shared = shared_folder(tmp_path_factory)
    root, printed = shared / "first", shared / "first.txt"
    with filelock.FileLock(shared / "first.lock"):
        if not printed.exists():
            shutil.rmtree(root, ignore_errors=True)  # what a run that failed in another process left
            clone = clone_project(root)
            done = clone.check("flows.run")
            clone.check("flows.promote", "--accept", "so few tasks show nothing")
            shutil.copytree(root, shared / "kept", symlinks=True)
            printed.write_text(done.stdout)
    return Clone(root), printed.read_text()


@pytest.fixture(scope="session")
def first_kept(tmp_path_factory: pytest.TempPathFactory, first: tuple[Clone, str]) -> Path:
    """A copy of the clone right after its first run, which other tests do not touch: to be copied, not changed."""
    return shared_folder(tmp_path_factory) / "kept"


def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that all processes of a test run have in common."""
    folder = tmp_path_factory.getbasetemp()
    return folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder
