"""Runs on a real embedded store: written in batches, safe beside each other, and never in the way."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import pytest

from sweetrl.config.settings import TrackingSettings
from sweetrl.tracking.runs import ERROR_TAG, RETRAINING_TAG, RunLog, git_state
from sweetrl.tracking.store import connect, tracking_enabled, tracking_uri
from tests.tasks.fake_project import commit, git

SETTINGS = TrackingSettings()


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.delenv("SWEETRL_TRACKING", raising=False)
    return tmp_path


def test_everything_noted_is_written_once_at_the_end(here: Path) -> None:
    (here / "data").mkdir()
    (here / "data/a.txt").write_text("a")
    (here / "notes.txt").write_text("look here")
    log = RunLog(SETTINGS, "collect", tags={"sweetrl.stage": "collect"})
    log.log_params({"seed": 7, "agent": {"max_turns": 10, "system": None}, "long": "x" * 7000})
    for step in range(1500):
        log.log_metrics({"loss": 1.0 / (step + 1), "rate": 0.1}, step)
    data_input = log.log_input("data", "data", context="training")
    log.log_artifact("notes.txt")
    assert log.run_id is None and not (here / "mlflow.db").exists(), "nothing is opened before there is need"
    log.finish()
    client = connect(SETTINGS, here).client
    run = client.get_run(log.run_id)
    assert run.info.status == "FINISHED"
    assert (run.data.params["agent.max_turns"], run.data.params["agent.system"]) == ("10", "None")
    assert len(run.data.params["long"]) == 6000
    assert len(client.get_metric_history(log.run_id, "loss")) == 1500
    (dataset,) = run.inputs.dataset_inputs
    assert dataset.dataset.digest == data_input.hash and dataset.dataset.digest.endswith(".dir")
    assert [item.path for item in client.list_artifacts(log.run_id)] == ["notes.txt"]
    assert run.data.tags["sweetrl.stage"] == "collect"


@pytest.mark.usefixtures("postgres_lengths")
def test_names_and_texts_that_mlflow_does_not_take_are_written_otherwise_and_nothing_else_is_lost(here: Path) -> None:
    """Before, one odd key of a domain's own options dropped all records of the run."""
    odd = ("how many [of each]?", "how many [of each]!", "x" * 300, "../up", "a//b", "", ".", "é/ö", "new\nline")
    log = RunLog(SETTINGS, "collect " * 99, tags={"note\0": "t" * 9000})
    log.log_params({"seed": 7, "options": {name: f"{name}\0" for name in odd}, "long": "ü" * 7000})
    log.log_metrics({"reward": 0.5, **dict.fromkeys(odd, 1.0)})
    log.log_input("d" * 600, here, "in")
    log.finish()
    run = connect(SETTINGS, here).client.get_run(log.run_id)
    assert run.info.status == "FINISHED" and len(run.inputs.dataset_inputs) == 1
    assert len(run.data.params) == len(odd) + 2 and len(run.data.metrics) == len(odd) + 1
    assert (run.data.params["seed"], run.data.params["options.é/ö"]) == ("7", "é/ö\ufffd")
    assert len(run.data.params["long"]) == 6000 and run.data.metrics["é/ö"] == 1.0


def test_the_experiment_opens_where_runs_and_models_are(here: Path) -> None:
    store = connect(SETTINGS, here)
    tags = store.client.get_experiment(store.experiment_id).tags
    assert tags["mlflow.experimentKind"] == "custom_model_development"
    assert "**Model training**" in tags["mlflow.note.content"]


def test_a_run_that_was_killed_or_has_failed_goes_on(here: Path) -> None:
    mark = {RETRAINING_TAG: "4"}
    assert RunLog(SETTINGS, "train", mark).take_over() is None
    killed = RunLog(SETTINGS, "train", mark)
    killed.open()
    child = RunLog(SETTINGS, "collect", parent=killed.run_id)
    child.open()
    client = connect(SETTINGS, here).client
    again = RunLog(SETTINGS, "train", mark)
    assert again.take_over() == again.open() == killed.run_id
    assert client.get_run(child.run_id).info.status == "KILLED"
    left = RunLog(SETTINGS, "rank", parent=killed.run_id)
    left.open()
    again.set_tags({ERROR_TAG: "the store was gone"})
    again.close_children()
    again.finish("FAILED")
    assert client.get_run(left.run_id).info.status == "KILLED"
    assert client.get_run(left.run_id).data.tags["mlflow.parentRunId"] == killed.run_id
    assert client.get_run(killed.run_id).info.status == "FAILED"
    last = RunLog(SETTINGS, "train", mark)
    last.take_over()
    assert client.get_run(killed.run_id).info.status == "RUNNING"
    last.finish()
    run = client.get_run(killed.run_id)
    assert run.info.status == "FINISHED" and ERROR_TAG not in run.data.tags


@pytest.mark.slow
def test_three_processes_open_a_fresh_store_together(here: Path) -> None:
    code = (
        "from sweetrl.config.settings import TrackingSettings; from sweetrl.tracking.runs import RunLog\n"
        "log = RunLog(TrackingSettings(), 'together'); log.log_metrics({'x': 1}); log.finish(); assert log.run_id"
    )
    started = [subprocess.Popen([sys.executable, "-c", code], cwd=here, stderr=subprocess.PIPE) for _ in range(3)]
    for process in started:
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors.decode()[-2000:]
    store = connect(SETTINGS, here)
    assert len(store.client.search_runs([store.experiment_id])) == 3


def test_a_store_that_cannot_be_reached_is_a_warning(here: Path, caplog: pytest.LogCaptureFixture) -> None:
    (here / "file").write_text("in the way")
    log = RunLog(TrackingSettings(uri=f"sqlite:///{here}/file/mlflow.db"), "collect")
    log.log_metrics({"x": 1.0})
    with caplog.at_level(logging.WARNING):
        log.finish()
    assert log.run_id is None and not log.enabled
    assert caplog.text.count("this run goes on without being recorded") == 1


def test_tracking_can_be_switched_off(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWEETRL_TRACKING", "off")
    assert not tracking_enabled()
    log = RunLog(SETTINGS, "collect")
    log.log_metrics({"x": 1.0})
    log.finish()
    assert log.run_id is None and not (here / "mlflow.db").exists()


def test_where_the_store_is(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert tracking_uri(SETTINGS) == f"sqlite:///{here}/mlflow.db"
    assert tracking_uri(SETTINGS, Path("/elsewhere")) == "sqlite:////elsewhere/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://mlflow.example.org")
    assert tracking_uri(SETTINGS) == "https://mlflow.example.org"


def test_a_folder_that_is_no_repository_has_no_commit(here: Path) -> None:
    assert git_state(here) == ("", False)
    git(here, "init", "-q")
    assert git_state(here) == ("", False)


def test_what_a_run_writes_itself_is_no_uncommitted_change(here: Path) -> None:
    (here / "iterations").mkdir()
    git(here, "init", "-q")
    commit(here, dict.fromkeys(("dvc.lock", "iterations/dvc.lock", "params.yaml"), "before\n"))
    (here / "dvc.lock").write_text("after\n")
    (here / "iterations/dvc.lock").write_text("after\n")
    assert git_state(here)[1] is False
    assert git_state(here / "iterations")[1] is False
    (here / "params.yaml").write_text("after\n")
    assert git_state(here)[1] is True
    assert git_state(here / "iterations")[1] is True, "wherever one stands"


def test_the_embedded_store_is_for_its_user_alone(here: Path) -> None:
    connect(SETTINGS, here)
    modes = {name: (here / name).stat().st_mode & 0o777 for name in ("mlflow.db", "mlflow.db.lock", "mlartifacts")}
    assert modes == {"mlflow.db": 0o600, "mlflow.db.lock": 0o600, "mlartifacts": 0o700}
    (here / "mlflow.db").chmod(0o640)  # shared on purpose
    connect(SETTINGS, here)
    assert (here / "mlflow.db").stat().st_mode & 0o777 == 0o640
