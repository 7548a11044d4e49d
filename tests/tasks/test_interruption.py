"""What a flow leaves behind when its stage fails or when it is interrupted, and a busy database; with Prefect's
embedded server."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from sweetrl.config.settings import TrackingSettings
from sweetrl.tracking.store import connect
from tasks import workspace
from tasks.batches import REF, batches_of
from tests.signals import as_at_a_terminal, at_work, read_until
from tests.tasks.fake_project import end_work, git

ROOT = Path(__file__).resolve().parents[2]


def start(toy, module: str = "flows.run", **env: str) -> subprocess.Popen[str]:
    plain = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    own = {"PYTHONUNBUFFERED": "1", "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")])}
    return subprocess.Popen(
        [sys.executable, "-m", module],
        cwd=toy.root,
        env={**plain, **own, **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        preexec_fn=as_at_a_terminal,
    )


@pytest.mark.slow
def test_a_failing_stage_ends_the_flow_with_one_sentence(toy) -> None:
    toy.set(second="crash")
    flow = start(toy)
    printed, _ = flow.communicate(timeout=300)
    assert flow.returncode == 1
    assert "error: stage second failed: ZeroDivisionError: division by zero" in printed
    assert printed.count("Traceback") == 1, "the stage's own trace, none of Prefect's"
    assert at_work(toy.root) == []


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_flow_ends_soon_with_everything_it_started(toy, number: int) -> None:
    toy.set(first="hang")
    flow = start(toy)
    read_until(flow, "hanging")
    os.killpg(flow.pid, number)  # as a terminal does: the embedded server gets it too
    started = time.monotonic()
    assert flow.stdout is not None
    printed = flow.stdout.read()
    assert flow.wait(timeout=120) in {130, 143}, printed
    assert time.monotonic() - started < 60
    assert printed.count("interrupted; finished work is kept") == 1
    assert "Crash detected" not in printed
    assert at_work(toy.root) == []


def write_for(seconds: float, database: Path) -> None:
    """Commit to Prefect's database a thousand times a second: a transaction that has read there cannot write."""
    with contextlib.closing(sqlite3.connect(database, timeout=60, isolation_level=None)) as connection:
        connection.execute("CREATE TABLE busy (number)")
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            connection.execute("INSERT INTO busy VALUES (1)")
            time.sleep(0.001)
        connection.execute("DROP TABLE busy")


@pytest.mark.slow
def test_a_busy_database_of_the_embedded_server_is_waited_for(toy) -> None:
    """Prefect's server answers 503 while others write; two such answers, seconds apart, must not end a run."""
    flow = start(toy)
    assert flow.stdout is not None
    writer = threading.Thread(target=write_for, args=(8.0, toy.root / ".prefect/prefect.db"))
    printed = []
    for line in flow.stdout:
        printed.append(line)
        if "stage 1 of" in line:
            writer.start()
    writer.join()
    assert flow.wait() == 0, "".join(printed)
    assert toy.runs() == ["first", "second", "third"]


@pytest.mark.slow
def test_a_retraining_that_was_killed_is_finished_by_the_next_one(
    toy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """kill -9 in the middle of a stage: the next run goes on in the same worktree, branch and MLflow run."""
    home, recorded = toy.root, {"SWEETRL_TRACKING": "on", "MLFLOW_TRACKING_URI": f"sqlite:///{toy.root}/mlflow.db"}
    git(tmp_path, "init", "-q", "--bare", "origin.git")
    toy.set(second="hang")
    git(home, "remote", "add", "origin", str(tmp_path / "origin.git"))
    git(home, "commit", "-qam", "hang")
    workspace.dvc(home, "remote", "add", "-q", "-d", "store", str(tmp_path / "store"))
    flow = start(toy, "flows.retrain", **recorded)
    read_until(flow, "hanging")
    flow.kill()
    flow.wait()
    end_work(home)
    (tree,) = (home / ".scratch/worktrees").iterdir()
    (tree / "toy.yaml").write_text("first: a\nsecond: a\nthird: a\n")
    again = start(toy, "flows.retrain", **recorded)
    printed, _ = again.communicate(timeout=300)
    assert again.returncode == 0, printed
    assert "which was left unfinished" in printed and "data to store (" in printed
    (branch,) = git(home, "for-each-ref", "--format=%(refname:short)", "refs/heads/retrain").split()
    assert f"branch {branch} to origin" in printed
    assert any(path.is_file() for path in (tmp_path / "store").rglob("*"))
    assert not tree.exists() and len(batches_of(home, [REF])) == 1
    monkeypatch.setenv("MLFLOW_TRACKING_URI", recorded["MLFLOW_TRACKING_URI"])
    store = connect(TrackingSettings(), home)
    runs = store.client.search_runs([store.experiment_id])
    assert len(runs) == 1, [(run.info.run_id, run.info.run_name, run.info.status, run.data.tags) for run in runs]
    run = runs[0]
    assert (run.info.run_name, run.info.status, run.data.tags["stage.second"]) == ("train", "FINISHED", "ran")
    assert run.data.tags["stage.first"] == "skipped", "finished in the same worktree before the kill"
