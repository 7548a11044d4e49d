"""Retraining beside the main checkout, promotion by hand and a version restored, on a clone with real stages."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from sweetrl.config.settings import load_settings
from sweetrl.tracking.comparisons import measured
from sweetrl.tracking.registry import Registry
from tasks.workspace import git
from tests.signals import at_work

if TYPE_CHECKING:
    from tests.end_to_end.conftest import Clone

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, clone_project: Callable[..., Clone]) -> Clone:
    clone = clone_project(tmp_path_factory.mktemp("home"))
    clone.check("flows.run")
    clone.check("flows.promote", "--accept", "the first")
    git(clone.root, "add", "dvc.lock")
    git(clone.root, "commit", "-qm", "The first run")
    return clone


def registry(clone: Clone) -> Registry:
    return Registry(load_settings(clone.root / "params.yaml").tracking, clone.root)


def test_retrain_promote_and_restore(trained: Clone, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    home = trained.root
    first_lock = (home / "dvc.lock").read_bytes()
    first_policy = (home / "models/policy/adapter_model.safetensors").read_bytes()

    done = trained.check("flows.retrain", "validate.reward_shift=1.0", "validate.turns_shift=10.0", "--no-merge")
    (branch,) = git(home, "for-each-ref", "--format=%(refname:short)", "refs/heads/retrain").stdout.split()
    assert f"branch:  {branch}" in done.stdout
    assert (home / "dvc.lock").read_bytes() == first_lock, "the main checkout is left alone"
    assert not (home / ".scratch/worktrees").exists() or not any((home / ".scratch/worktrees").iterdir())
    assert "first: 12" in git(home, "show", f"{branch}:params.yaml").stdout
    lines = {line.split()[0]: line.split()[1] for line in done.stdout.splitlines() if len(line.split()) > 1}
    assert lines["collect"] == "ran" and lines["tasks"] == "restored", "the run cache is shared"

    registered = registry(trained)
    second = registered.get("2")
    assert second.tags["git_commit"] == git(home, "rev-parse", branch).stdout.strip()
    assert at_work(trained.root) == []

    trained.check("flows.promote", "@challenger", "--accept", "for the test")
    git(home, "merge", "-q", "--ff-only", branch)
    assert trained.run("dvc", "checkout", "-q", "dvc.yaml").returncode == 0
    assert (home / "models/policy/adapter_model.safetensors").read_bytes() != first_policy
    assert registered.aliases()["champion"] == "2"
    settled = trained.run("flows.run")
    assert settled.returncode == 0 and "nothing had changed" in settled.stdout, settled.stdout + settled.stderr[-3000:]

    done = trained.check("sweetrl.cli", "restore", "1")
    assert "version 1 (was 2)" in done.stdout
    assert registered.aliases()["champion"] == "1"
    assert (home / "dvc.lock").read_bytes() == first_lock
    assert (home / "models/policy/adapter_model.safetensors").read_bytes() == first_policy
    history = trained.check("sweetrl.cli", "restore", "--json").stdout
    assert "restored in the place of version 2" in history and "accepted: for the test" in history


def test_an_older_version_is_measured_on_todays_tasks(trained: Clone, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    before = {path: path.read_bytes() for path in sorted((trained.root / "reports").glob("*.json"))}
    done = trained.check("flows.evaluate", "sweetrl-agent/1")
    assert "on 8 tasks" in done.stdout + done.stderr
    assert {path: path.read_bytes() for path in before} == before, "the project's own results are not touched"
    registered = registry(trained)
    assert len(measured(registered, registered.get("1")).rewards) == 8
    leftovers = list((trained.root / ".scratch").glob("evaluate-version-*"))
    assert leftovers == []
