"""A retraining with real git, DVC and MLflow, and a stage that only pretends to train: from batch to alias and back."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from flows import rollback
from sweetrl.config.settings import load_settings
from sweetrl.errors import UserError
from sweetrl.tracking.registry import Registry
from tasks import retraining
from tasks.training import Steps, run_pipeline
from tests.tasks.fake_project import git

pytestmark = pytest.mark.slow

STAGE = """
import json, pathlib, sys
import pyarrow as pa, yaml
from pyarrow import parquet

first = yaml.safe_load(open("params.yaml"))["collect"]["first"]
for folder in ("models/policy", "reports", "data/tasks"):
    pathlib.Path(folder).mkdir(parents=True, exist_ok=True)
pathlib.Path("models/policy/adapter_config.json").write_text(json.dumps({"first": first}))
pathlib.Path("data/tasks/test.parquet").write_bytes(b"test tasks")
rewards = {f"task-{number:02d}": float(number < 5 + first) for number in range(40)}
known = {"policy": "trained", "topic": "boat", "held_out": False}
rows = [{"task_id": task, "reward": value, **known} for task, value in rewards.items()]
parquet.write_table(pa.Table.from_pylist(rows), "reports/results.parquet")
pathlib.Path("reports/evaluation.json").write_text(json.dumps({"mean": sum(rewards.values()) / 40}))
"""
PIPELINE = """
stages:
  train:
    cmd: python stage.py
    params: [collect]
    outs: [models/policy, data/tasks, reports/results.parquet, reports/evaluation.json]
"""
PARAMS = """seed: 7
collect: {tasks: 15, first: 0}
tracking: {uri: 'sqlite:///mlflow.db'}
"""


def quiet(text: str) -> None:
    """Say nothing."""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout whose version 1 is champion, with an origin, and a DVC remote set up as the guide says."""
    root = tmp_path / "home"
    for name, text in (("stage.py", STAGE), ("dvc.yaml", PIPELINE), ("params.yaml", PARAMS)):
        root.mkdir(exist_ok=True)
        (root / name).write_text(text)
    (root / ".gitignore").write_text("/data/\n/reports/\n/models/\n/.scratch/\n/.cache/\n/mlflow.db*\n/mlartifacts/\n")
    monkeypatch.chdir(root)
    monkeypatch.setenv("SWEETRL_TRACKING", "on")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "")  # MLflow sets it; the test's end takes it back
    git(root, "init", "-q", "-b", "main")
    git(root, "config", "user.name", "t")
    git(root, "config", "user.email", "t@example.org")
    subprocess.run([sys.executable, "-m", "dvc", "init", "-q"], check=True)
    run_pipeline(root, Steps(say=quiet))
    git(root, "add", ".")
    git(root, "commit", "-qm", "Trained once")
    git(tmp_path, "init", "-q", "--bare", "origin.git")
    git(root, "remote", "add", "origin", str(tmp_path / "origin.git"))
    store = str(tmp_path / "store" / "data")
    subprocess.run([sys.executable, "-m", "dvc", "remote", "add", "-q", "-d", "store", store], check=True)
    return root


def test_a_store_that_is_gone_keeps_the_version_from_everybody_until_it_is_back(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = Registry(load_settings(home / "params.yaml").tracking, home)
    assert registry.aliases() == {"champion": "1"}
    store, steps = home.parent / "store", Steps(say=quiet)
    store.write_text("no folder")
    with pytest.raises(UserError, match="`dvc push` failed"):
        retraining.retrain(home, steps)
    assert registry.aliases() == {"champion": "1"} and len(registry.versions()) == 1
    assert git(home, "ls-remote", "origin", "refs/heads/*") == ""
    store.unlink()

    (done,) = retraining.retrain(home, steps)
    assert done.outcome.gate is not None and done.outcome.gate.promoted, done
    assert registry.aliases() == {"champion": "2"} and len(registry.versions()) == 2
    version = registry.get("champion")
    assert version.tags["git_dirty"] == "false"
    assert git(home, "rev-parse", "HEAD") == version.tags["git_commit"]
    assert git(home, "ls-remote", "origin", f"refs/heads/{done.branch}").startswith(version.tags["git_commit"])
    assert any(path.is_file() for path in store.rglob("*"))
    assert (home / "models/policy/adapter_config.json").read_text() == '{"first": 15}'
    assert git(home, "status", "--porcelain") == "M .dvc/config"
    runs = registry.store.client.search_runs([registry.store.experiment_id])
    assert {run.info.status for run in runs} == {"FINISHED"} and len(runs) == 2
    assert version.tags["parent_run"] in {run.info.run_id for run in runs}

    monkeypatch.setattr(rollback, "announce", lambda *arguments: None)
    monkeypatch.setattr(rollback, "get_run_logger", lambda: SimpleNamespace(info=lambda *arguments: None))
    assert rollback.rollback.fn(str(home)).champion == "1"
    assert registry.aliases() == {"champion": "1"}
    assert git(home, "status", "--porcelain") == "M .dvc/config"
    assert (home / "models/policy/adapter_config.json").read_text() == '{"first": 0}'
    (done,) = retraining.retrain(home, steps)
    assert registry.aliases() == {"champion": "3"} and not done.left, done
    assert (home / "models/policy/adapter_config.json").read_text() == '{"first": 30}'
