"""How a pipeline run's end is recorded in MLflow."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sweetrl.config.settings import parse_settings
from sweetrl.errors import UserError
from sweetrl.gate.decision import Decision
from sweetrl.io import write_json
from sweetrl.tracking.registry import Registration
from sweetrl.tracking.runs import RunLog
from sweetrl.tracking.store import NOTE
from tasks import training
from tasks.pipeline import StageResult
from tasks.promotion import GateResult
from tasks.training import PipelineRecord, Steps


@pytest.fixture
def ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A pipeline record of a project with an evaluation; tracking is off, so that nothing is written."""
    monkeypatch.setenv("SWEETRL_TRACKING", "off")
    numbers: dict[str, Any] = {"tasks": 8, "confidence": 0.95, "resamples": 100}
    gain = {"value": 0.25, "low": 0.0, "high": 0.5, "p_value": 0.5, "test": "a test"}
    change = {"difference": dict.fromkeys(("success", "reward"), gain)}
    for name in change["difference"]:
        numbers |= {f"{name}_before": 0.25, f"{name}_after": 0.5, f"{name}_difference": 0.25}
    write_json(tmp_path / "reports/evaluation.json", numbers | change)
    record = PipelineRecord(parse_settings({}), tmp_path, tmp_path)
    record.log = RunLog(record.settings.tracking, "train", root=tmp_path)
    return record


def test_a_run_that_ends_well_says_what_it_led_to(ended: Any) -> None:
    gate = GateResult("3", True, "3", "2", "it wins by 3 points.")
    ended.finish([], Registration("agent", "3", True), gate, evaluated=True)
    note = ended.log._pending.tags[NOTE]
    assert note.startswith("**Gate:** it wins by 3 points.\n\n") and "**Registered as** agent/3" in note
    assert "| on 8 held-out tasks | before | after | difference [95 % interval] |" in note
    assert "| **tasks solved, %** | 25.0 | **50.0** | +25.0 [+0.0, +50.0] |" in note
    assert "| **mean reward** | 0.250 | **0.500** | +0.250 [+0.000, +0.500] |" in note
    logged = {name for name, *_ in ended.log._pending.metrics}
    assert len(logged) == 1 + 2 * 5 and logged.isdisjoint({"confidence", "resamples"}), "settings are no results"


def test_a_run_is_closed_when_what_it_says_is_true(ended: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, it was FINISHED and "promoted" ahead of the merge and the alias, even where these failed."""
    decision = Decision(True, "promoted: it wins.")
    won = GateResult("3", False, "2", "2", decision.reason, decision)
    ended.finish([], Registration("agent", "3", True), won, evaluated=True)
    assert ended.log._pending.tags["sweetrl.gate"] == "promoted: it wins. (It has yet to become champion.)"

    order: list[str] = []
    monkeypatch.setattr(training, "stage_states", lambda root: {"train": False})
    monkeypatch.setattr(training, "_register", lambda *given: (Registration("agent", "3", True), won))
    monkeypatch.setattr(training, "result_of", lambda *given: StageResult("train", "skipped"))
    for name in ("finish", "finish_failed"):
        monkeypatch.setattr(PipelineRecord, name, lambda *given, name=name, **options: order.append(name))

    def crown(result: GateResult) -> GateResult:
        order.append("crown")
        if len(order) > 2:
            raise UserError("merged and not promoted")
        return replace(result, promoted=True)

    (ended.root / "params.yaml").write_text("seed: 7\n")
    given = (ended.root, Steps(say=lambda text: None), ended.root.parent)
    outcome = training.run_pipeline(*given, hand_over=lambda root: None, crown=crown)
    assert outcome.gate is not None and outcome.gate.promoted
    with pytest.raises(UserError, match="merged and not promoted"):
        training.run_pipeline(*given, hand_over=lambda root: None, crown=crown)
    assert order == ["crown", "finish", "crown", "finish_failed"]


def test_who_is_killed_leaves_its_run_with_its_parameters_to_the_next_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("MLFLOW_TRACKING_URI", "SWEETRL_TRACKING"):
        monkeypatch.delenv(name, raising=False)
    settings = parse_settings({})
    # Each attempt but the second is killed. Other retrainings, and runs of none, have runs of their own.
    records = [PipelineRecord(settings, tmp_path, tmp_path, Steps(mark=mark)) for mark in ("4", "4", "5", "")]
    for record in records[:2]:
        record.environment()
    again = records[1]
    again.finish_failed([], RuntimeError("enough"))
    assert again.log is not None and again.log.store is not None
    (run,) = again.log.store.client.search_runs([again.log.store.experiment_id])
    assert (run.info.run_id, run.info.status) == (records[0].run_id, "FAILED")
    assert run.data.params["seed"] == "7" and run.data.tags["sweetrl.retraining"] == "4"
    for record in records[2:]:
        record.environment()
    assert len({record.run_id for record in records}) == 3


def test_the_run_of_a_retraining_is_closed_or_the_retraining_is_unfinished(
    ended: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, where MLflow's server was gone at the end, the retraining was done and its run RUNNING for ever."""
    from mlflow.exceptions import MlflowException

    monkeypatch.delenv("SWEETRL_TRACKING")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    record = PipelineRecord(ended.settings, ended.root, ended.root, Steps(mark="4"))
    record.environment()
    assert record.log is not None and record.log.store is not None
    client, close = record.log.store.client, record.log.store.client.set_terminated
    stage = RunLog(ended.settings.tracking, "rank", parent=record.run_id, root=ended.root)
    stage.open()  # its process lost the server, and nobody closed it

    def refuse(*given: Any) -> None:
        raise MlflowException("Connection refused")

    monkeypatch.setattr(client, "set_terminated", refuse)
    with pytest.raises(UserError, match=r"^MLflow's server fails, .*Connection refused.*run the same command again"):
        record.finish([], None, None, evaluated=True)
    again = PipelineRecord(ended.settings, ended.root, ended.root, Steps(mark="4"))
    again.environment()
    assert again.run_id == record.run_id
    monkeypatch.setattr(client, "set_terminated", close)
    again.finish([], None, None, evaluated=True)
    states = {run.info.run_id: run.info.status for run in client.search_runs([record.log.store.experiment_id])}
    assert states == {record.run_id: "FINISHED", stage.run_id: "KILLED"}
