"""The loop in small: an agent is served, its dialogues collected and validated, it is retrained, promoted and restored.

git, DVC with an S3 of this machine, MLflow, Great Expectations, the endpoint and the gate are real; only the training
pretends: its agent is random, and the better the more dialogues it had.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from flows import restore
from sweetrl.config.settings import load_settings
from sweetrl.tracking.registry import Registry
from tasks import retraining
from tasks.ingestion import ingest
from tasks.training import Steps, run_pipeline
from tests.ingest.made import chat, write
from tests.signals import until
from tests.tasks.fake_project import git, quiet, start_checkout

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

ROOT = Path(__file__).resolve().parents[2]
MODEL = "looping-agent"
TRAIN = """
from pathlib import Path
import pyarrow as pa
from pyarrow import parquet
from sweetrl.colbench.store import TrajectoryStore
from sweetrl.io import write_json
from tests.serve.made import write_adapter

dialogues = len(TrajectoryStore("data/trajectories"))
write_adapter(Path("."), dialogues)
rewards = [float(number < 4 * dialogues) for number in range(40)]
rows = [{"task_id": f"t{number:02d}", "policy": "trained", "reward": reward} for number, reward in enumerate(rewards)]
parquet.write_table(pa.Table.from_pylist(rows), "reports/results.parquet")
overall = {"value": sum(rewards) / 40, "low": 0.0, "high": 1.0, "n": 40}
measured = {name: {"success": overall, "reward": overall} for name in ("base", "trained")}
difference = {**overall, "low": 0.1, "p_value": 0.001, "test": "none"}
report = {"tasks": 40, "confidence": 0.95, "policies": measured}
report["difference"] = {"success": difference, "reward": difference}
write_json(Path("reports/evaluation.json"), report)
"""
PIPELINE = """
stages:
  tasks:
    cmd: python -m sweetrl.stages.tasks
    params: [seed, tasks]
    outs: [data/tasks/train.parquet, data/tasks/validation.parquet, data/tasks/test.parquet, reports/runs/tasks.json]
  collect:
    cmd: python -m sweetrl.stages.collect
    deps: [data/tasks/validation.parquet, data/tasks/test.parquet, "${sources.trajectories}"]
    params: [collect]
    outs: [data/trajectories, reports/runs/collect.json]
  train:
    cmd: python train.py
    deps: [data/trajectories]
    outs: [models/policy, reports/results.parquet, reports/evaluation.json]
"""
PARAMS = f"""seed: 7
method: rft
tasks: {{train: 4, validation: 2, test: 4}}
collect: {{source: files, first: 0, tasks: 1}}
sources: {{trajectories: first}}
agent: {{max_turns: 3, max_new_tokens: 12, temperature: 0.0}}
model: {{threads: 1}}
gate: {{slices: []}}
tracking: {{model: {MODEL}}}
ingest: {{source: "s3://team/served/"}}
"""
IGNORED = """/.scratch/
/.cache/
/.prefect/
/kept/
/mlflow.db*
/mlartifacts/
/reports/
/models/*
!/models/base/
/data/?*
!/data/batches/
/data/batches/?*
!/data/batches/*.dvc
"""


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The bucket `team` of an S3 server on this machine."""
    import boto3
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    for name, value in {
        "AWS_ENDPOINT_URL": "http://{}:{}".format(*server.get_host_and_port()),
        "AWS_ACCESS_KEY_ID": "nobody",
        "AWS_SECRET_ACCESS_KEY": "nothing",
        "AWS_DEFAULT_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    client = boto3.client("s3")
    client.create_bucket(Bucket="team")
    yield client
    server.stop()


@pytest.fixture
def home(tiny_model: Path, bucket: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with an origin, a DVC remote in the bucket, and a first champion."""
    root = tmp_path / "home"
    shutil.copytree(tiny_model, root / "models/base")
    for name, text in {"train.py": TRAIN, "dvc.yaml": PIPELINE, "params.yaml": PARAMS, ".gitignore": IGNORED}.items():
        (root / name).write_text(text)
    write(root / "first/dialogues.jsonl", *(chat(number) for number in range(2)))
    monkeypatch.chdir(root)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / "src"), str(ROOT)]))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "")  # MLflow sets it; the test's end takes it back
    monkeypatch.delenv("SWEETRL_TRACKING", raising=False)
    start_checkout(root, "s3://team/dvc")
    run_pipeline(root, Steps(say=quiet))
    git(root, "add", ".")
    git(root, "commit", "-qm", "Trained once")
    git(root, "push", "-q", "origin", "main")
    return root


@contextlib.contextmanager
def serving(home: Path) -> Iterator[httpx.Client]:
    """`sweetrl serve` of the champion, keeping dialogues; ended as a service manager ends it."""
    words = f"-m sweetrl.cli serve {MODEL}@champion --port 0 --dialogues kept".split()
    server = subprocess.Popen([sys.executable, *words], cwd=home, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        address = re.search(r"http://\S+", server.stdout.readline())
        assert address is not None
        with httpx.Client(base_url=address[0], trust_env=False, timeout=120) as client:
            until(lambda: version(client) != "", "the endpoint did not answer", 180)
            yield client
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(60)


def version(client: httpx.Client) -> str:
    """The version that answers; "" where nobody does yet."""
    with contextlib.suppress(httpx.ConnectError):
        return str(client.get("../health").json()["version"])
    return ""


def talk(client: httpx.Client, number: int, consent: str) -> None:
    """Hold a dialogue of two turns about task `number`, and send its outcome."""
    messages = [{"role": "user", "content": f"I want a function for case {number}."}]
    notes = {"consent": consent}
    for words in ("It adds.", ""):
        answer = client.post("/chat/completions", json={"model": MODEL, "messages": messages, "metadata": notes}).json()
        messages.append({"role": "assistant", "content": answer["choices"][0]["message"]["content"]})
        if words:
            messages.append({"role": "user", "content": words})
        notes["dialogue"] = answer["sweetrl"].get("dialogue", "")
    feedback = client.post("/feedback", json={"dialogue": notes["dialogue"], "outcome": "success"})
    assert feedback.status_code == (200 if consent == "true" else 404), feedback.text


def status(home: Path) -> str:
    done = subprocess.run([sys.executable, "-m", "dvc", "status"], cwd=home, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_what_is_served_is_learnt_from_and_the_new_agent_is_served(
    home: Path, bucket: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = Registry(load_settings(home / "params.yaml").tracking, home)
    assert registry.aliases() == {"champion": "1"} and status(home) == "Data and pipelines are up to date."

    with serving(home) as client:
        for number in range(8):
            talk(client, number, "true")
        talk(client, 8, "false")
    kept = sorted((home / "kept").glob("served-*.jsonl"))
    assert sum(len(path.read_text().splitlines()) for path in kept) == 8
    for path in kept:
        bucket.upload_file(str(path), "team", f"served/{path.name}")
    bucket.put_object(Bucket="team", Key="served/\u202etxt.jsonl", Body=b"{}")

    done = ingest(home, say=quiet)
    assert done.made is not None and (done.made.rows, done.made.bad, done.made.lacks) == (8, 1, "")
    assert done.waiting == "dialogues-000001" and ingest(home, say=quiet).made is None

    with serving(home) as client:
        assert version(client) == "1"
        (retrained,) = retraining.retrain(home, Steps(say=quiet))
        assert retrained.left == "" and registry.aliases() == {"champion": "2"}, retrained
        until(lambda: version(client) == "2", "the new champion did not take over", 180)
        talk(client, 9, "true")
    assert status(home) == "Data and pipelines are up to date."
    assert git(home, "status", "--porcelain") == ""
    tags = registry.get("champion").tags
    assert tags["git_commit"] == git(home, "rev-parse", "HEAD") and tags["git_dirty"] == "false"
    assert "data/batches/dialogues-000001.dvc" in git(home, "ls-tree", "-r", "--name-only", "HEAD").split()

    monkeypatch.setattr(restore, "announce", lambda *arguments: None)
    monkeypatch.setattr(restore, "get_run_logger", lambda: SimpleNamespace(info=lambda *arguments: None))
    assert restore.restore.fn("1", root=str(home)).champion == "1"
    assert status(home) == "Data and pipelines are up to date." and git(home, "status", "--porcelain") == ""
