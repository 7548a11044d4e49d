"""Dialogues as traces: the sampled share of them, with every turn, under the stage's run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sweetrl.colbench.store import TrajectoryStore
from sweetrl.settings import TrackingSettings, parse_settings
from sweetrl.tracking.runs import RunLog
from sweetrl.tracking.traces import log_dialogues
from sweetrl.types import AgentTurn, Message, Task, Trajectory


def dialogue(number: int) -> Trajectory:
    task = Task(f"t-{number}", f"I want f{number}.", "def f(): ...", (("test1", "f()"),))
    said = [Message("user", f"I want f{number}."), Message("assistant", "Why?"), Message("user", "So.")]
    said.append(Message("assistant", "I WANT TO ANSWER: x"))
    turns = (AgentTurn(1, "Why?", (1, 2), (-0.5, -0.5), "stop"), AgentTurn(3, "I WANT TO ANSWER: x"))
    lost = number == 3
    return Trajectory(
        task,
        0,
        tuple(said),
        turns,
        None if lost else " x",
        None if lost else 0.5,
        (),
        "lost" if lost else "answered",
        policy="base",
        error="the server is on fire" if lost else "",
        extra={"leaks": "2:code"} if number == 4 else {},
    )


def test_a_share_of_the_dialogues_is_traced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.delenv("SWEETRL_TRACKING", raising=False)
    tracking = TrackingSettings(uri=f"sqlite:///{tmp_path / 'store.db'}", artifacts=str(tmp_path / "artifacts"))
    store = TrajectoryStore(tmp_path / "shards")
    store.write_shard(0, [dialogue(number) for number in range(20)])

    def log(share: float) -> tuple[int, list[Any]]:
        settings = parse_settings({"seed": 3, "tracking": tracking.model_copy(update={"traces": share}).model_dump()})
        run = RunLog(settings.tracking, "collect", root=tmp_path)
        count = log_dialogues(run, {"base": store}, settings)
        run.finish()
        if not count:
            return count, []
        assert run.store is not None and run.run_id is not None
        found = run.store.client.search_traces(
            locations=[run.store.experiment_id], run_id=run.run_id, max_results=100, include_spans=True
        )
        return count, list(found)

    assert log(0.0) == (0, [])
    some, traces = log(0.3)
    assert some == len(traces) and 0 < some < 20
    everything, traces = log(1.0)
    assert everything == len(traces) == 20
    by_task = {trace.info.tags["sweetrl.task"]: trace for trace in traces}
    assert len(by_task) == 20
    spans = by_task["t-1"].data.spans
    assert [span.name for span in spans] == ["base t-1", "turn 1", "turn 2"]
    assert spans[0].outputs["answer"] == " x" and spans[0].attributes["sweetrl.reward"] == 0.5
    assert (spans[1].inputs, spans[1].outputs) == ({"user": "I want f1."}, {"agent": "Why?"})
    assert by_task["t-3"].data.spans[0].outputs["error"] == "the server is on fire"
    assert str(by_task["t-3"].info.state) in ("TraceState.ERROR", "ERROR")
    assert by_task["t-4"].data.spans[0].attributes["sweetrl.leaks"] == "2:code"
