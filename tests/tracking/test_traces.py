"""Dialogues as traces: some of them, with every turn, under the stage's run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sweetrl.colbench.store import TrajectoryStore
from sweetrl.config.settings import parse_settings
from sweetrl.tracking.runs import RunLog, log_dialogues
from sweetrl.types import AgentTurn, Message, Task, Trajectory


def dialogue(number: int, simulator: str = "scripted") -> Trajectory:
    task = Task(f"t-{number}", f"I want f{number}.", "def f(): ...", (("test1", "f()"),))
    messages = [Message("user", f"I want f{number}."), Message("assistant", "Why?"), Message("user", "So.")]
    messages.append(Message("assistant", "I WANT TO ANSWER: x"))
    turns = (AgentTurn(1, "Why?", (1, 2), (-0.5, -0.5), "stop"), AgentTurn(3, "I WANT TO ANSWER: x"))
    ending: Any = (None, None, (), "lost") if number == 3 else (" x", 0.5, (), "answered")
    error = "the server is on fire" if number == 3 else ""
    extra = {"leaks": "2:code"} if number == 4 else {}
    facts: Any = {"policy": "base", "simulator": simulator, "error": error, "extra": extra}
    return Trajectory(task, 0, tuple(messages), turns, *ending, **facts)


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One store for all tests: making its tables takes seconds."""
    return tmp_path_factory.mktemp("records")


@pytest.fixture
def here(records: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("SWEETRL_TRACKING", raising=False)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{records / 'store.db'}")
    monkeypatch.chdir(records)
    return tmp_path


def traced(stores: dict[str, TrajectoryStore], **changes: Any) -> tuple[int, dict[tuple[str, str], Any], RunLog]:
    """Log dialogues by the settings; return how many were logged, the traces by policy and task, and the run."""
    settings = parse_settings({"seed": 3, "tracking": changes})
    run = RunLog(settings.tracking, "evaluate")
    count = log_dialogues(run, stores, settings.tracking, settings.seed)
    run.log_metrics({"success": 0.5})
    run.finish()
    assert run.store is not None and run.run_id is not None
    traces = run.store.client.search_traces(
        locations=[run.store.experiment_id], run_id=run.run_id, max_results=100, include_spans=True
    )
    keys = [(trace.info.tags["sweetrl.policy"], trace.info.tags["sweetrl.task"]) for trace in traces]
    return count, dict(zip(keys, traces, strict=True)), run


def store_of(folder: Path, dialogues: Iterable[Trajectory]) -> TrajectoryStore:
    store = TrajectoryStore(folder)
    store.write_shard(0, list(dialogues))
    return store


def test_so_many_dialogues_of_each_policy_are_traced_on_the_same_tasks(here: Path) -> None:
    assert parse_settings({}).tracking.traces == 5
    stores = {name: store_of(here / name, map(dialogue, range(6))) for name in ("base", "trained")}
    assert traced(stores, traces=0)[:2] == (0, {})
    count, traces, _ = traced(stores, traces=2)
    assert count == len(traces) == 4
    base = {task for policy, task in traces if policy == "base"}
    assert base == {task for policy, task in traces if policy != "base"}
    count, traces, _ = traced({"base": stores["base"]}, traces=10)
    assert count == len(traces) == 6
    spans = traces["base", "t-1"].data.spans
    assert [span.name for span in spans] == ["base t-1", "turn 1", "turn 2"]
    assert spans[0].outputs["answer"] == " x" and spans[0].attributes["sweetrl.reward"] == 0.5
    assert (spans[1].inputs, spans[1].outputs) == ({"user": "I want f1."}, {"agent": "Why?"})
    assert traces["base", "t-3"].data.spans[0].outputs["error"] == "the server is on fire"
    assert str(traces["base", "t-3"].info.state) in ("TraceState.ERROR", "ERROR")
    assert traces["base", "t-4"].data.spans[0].attributes["sweetrl.leaks"] == "2:code"


@pytest.mark.parametrize("simulator", ["", "human"])
def test_dialogues_with_people_are_traced_only_where_settings_say_so(here: Path, simulator: str) -> None:
    stores = {"collect": store_of(here / "shards", (dialogue(number, simulator) for number in range(3)))}
    assert traced(stores)[:2] == (0, {})
    assert traced(stores, traces_of_people=True)[0] == 3


def test_hostile_text_is_kept_as_text(here: Path) -> None:
    words = "<img src=x onerror=alert(1)>\0 ![](http://example.org/x)"
    trajectory = dialogue(0)
    messages = (replace(trajectory.messages[0], content=words), *trajectory.messages[1:])
    trajectory = replace(trajectory, task=replace(trajectory.task, id=words + "x" * 5000), messages=messages)
    count, traces, _ = traced({"base": store_of(here / "shards", [trajectory])})
    ((_, task),) = traces
    assert count == 1 and len(task) == 200 and "\0" not in task
    assert traces["base", task].data.spans[1].inputs == {
        "user": "<img src=x onerror=alert(1)>\ufffd !\u200b[](http://example.org/x)"
    }, "no picture that MLflow's pages would load"
