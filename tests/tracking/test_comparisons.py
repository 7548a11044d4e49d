"""What is read back of a version: rewards, turns, tokens and groups, and what was compared with it."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
from pyarrow import parquet

from sweetrl.colbench.store import TrajectoryStore
from sweetrl.evaluation.metrics import COLUMNS
from sweetrl.io import read_json
from sweetrl.tracking.comparisons import OUTCOMES, entries, read_measured
from sweetrl.tracking.packing import write_dialogue_facts
from sweetrl.types import AgentTurn, Message, Task, Trajectory


def dialogue(name: str, *tokens: int, simulator: str = "scripted") -> Trajectory:
    """A dialogue whose agent turns generated so many tokens each; 0: the server did not say."""
    messages = [Message("user", "I want a function.")]
    turns = []
    for count in tokens:
        turns.append(AgentTurn(len(messages), "What for?", tuple(range(count)), (-1.0,) * count))
        messages += [Message("assistant", "What for?"), Message("user", "For this.")]
    task = Task(name, "I want a function.", "def f(): return 1")
    return Trajectory(task, 0, tuple(messages), tuple(turns), reward=1.0, simulator=simulator)


def write_rows(folder: Path) -> None:
    rows = [
        {"task_id": "a", "policy": "trained", "reward": 1.0, "turns": 2, "topic": "boat", "held_out": True},
        {"task_id": "b", "policy": "trained", "reward": 0.5, "turns": 1, "topic": "taxi", "held_out": False},
        {"task_id": "lost", "policy": "trained", "reward": None, "turns": 1, "topic": "taxi", "held_out": False},
        {"task_id": "a", "policy": "base", "reward": 0.0, "turns": 9, "topic": "boat", "held_out": True},
    ]
    parquet.write_table(pa.Table.from_pylist(rows), folder / "results.parquet")


def test_tokens_and_users_of_evaluated_dialogues_are_kept(tmp_path: Path) -> None:
    store = TrajectoryStore(tmp_path / "data/evaluation/trained")
    store.write_shard(0, [dialogue("a", 3, 4), dialogue("b", 5, 0, simulator="scripted:terse")])
    path = write_dialogue_facts(tmp_path, tmp_path)
    assert read_json(path) == {
        "a": {"tokens": 7, "user": "scripted"},
        "b": {"tokens": None, "user": "scripted:terse"},
    }
    write_rows(tmp_path)
    found = read_measured(tmp_path, ["topic", "held_out", "user", "outcome", "turns", "unknown"])
    assert found.rewards == {"a": 1.0, "b": 0.5}, "neither the base's nor what was lost"
    assert (found.turns, found.tokens) == ({"a": 2.0, "b": 1.0}, {"a": 7.0})
    assert found.groups == {
        "topic": {"a": "boat", "b": "taxi"},
        "held_out": {"a": "yes", "b": "no"},
        "user": {"a": "scripted", "b": "scripted:terse"},
    }


def test_every_column_is_a_group_of_tasks_or_what_became_of_them() -> None:
    """Groups by what a challenger did (its turns, its mistakes) are its own, and would show losses that are none."""
    assert set(COLUMNS) - set(OUTCOMES) == {"topic", "held_out", "tests", "details"}


def test_without_dialogues_nothing_is_known_of_them(tmp_path: Path) -> None:
    assert read_json(write_dialogue_facts(tmp_path, tmp_path)) == {}
    write_rows(tmp_path)
    found = read_measured(tmp_path, ["user"])
    assert found.tokens == {} and found.groups == {} and len(found.turns) == 2


def test_comparisons_and_looks_are_apart_and_in_order() -> None:
    rows = {"x": {"time": "2026-01-02T00:00:00Z", "number": 2}, "y": {"time": "2026-01-01T00:00:00Z", "number": 1}}
    tags = {f"gate.comparison.{name}": json.dumps(row) for name, row in rows.items()}
    tags |= {"gate.look.z": json.dumps({"time": "2026-01-01T00:00:00Z"}), "gate": "{}", "base": ""}
    assert list(entries(tags, "comparison")) == ["y", "x"] and list(entries(tags, "look")) == ["z"]
