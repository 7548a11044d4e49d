"""Reading a version's results back, comparisons with it, and the plan of the next comparison.

Comparisons that were made are in tests/tasks/test_promotion.py.
"""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from sweetrl.colbench.store import TrajectoryStore
from sweetrl.config.settings import GateSettings, TrackingSettings, parse_settings
from sweetrl.errors import UserError
from sweetrl.io import read_json
from sweetrl.tracking.comparisons import OUTCOMES, entries, plan, read_measured
from sweetrl.tracking.registry import write_dialogue_facts
from sweetrl.types import AgentTurn, Message, Result, Task, Trajectory


def dialogue(name: str, *tokens: int, simulator: str = "scripted") -> Trajectory:
    """A dialogue whose agent turns generated so many tokens each; 0 where the server did not count."""
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
    (folder / "evaluation.json").write_text("{}")


def test_tokens_and_users_of_evaluated_dialogues_are_kept(tmp_path: Path) -> None:
    store = TrajectoryStore(tmp_path / "data/evaluation/trained")
    store.write_shard(0, [dialogue("a", 3, 4), dialogue("b", 5, 0, simulator="scripted:terse")])
    path = write_dialogue_facts(tmp_path, tmp_path)
    assert read_json(path) == {
        "a": {"tokens": 7, "user": "scripted"},
        "b": {"tokens": None, "user": "scripted:terse"},
    }
    write_rows(tmp_path)
    measured = read_measured(tmp_path, ["topic", "held_out", "user", "outcome", "turns", "unknown"])
    assert measured.rewards == {"a": 1.0, "b": 0.5}, "neither the base's nor what was lost"
    assert (measured.turns, measured.tokens) == ({"a": 2.0, "b": 1.0}, {"a": 7.0})
    assert measured.groups == {
        "topic": {"a": "boat", "b": "taxi"},
        "held_out": {"a": "yes", "b": "no"},
        "user": {"a": "scripted", "b": "scripted:terse"},
    }


def test_every_column_is_a_group_of_tasks_or_what_became_of_them() -> None:
    """Groups by a challenger's own results (its turns, its mistakes) would show losses that are none."""
    assert {column.name for column in fields(Result)} - set(OUTCOMES) == {"topic", "held_out", "tests", "details"}


def test_without_dialogues_their_facts_are_empty(tmp_path: Path) -> None:
    assert read_json(write_dialogue_facts(tmp_path, tmp_path)) == {}
    write_rows(tmp_path)
    measured = read_measured(tmp_path, ["user"])
    assert measured.tokens == {} and measured.groups == {} and len(measured.turns) == 2


def test_comparisons_and_looks_are_apart_and_in_order() -> None:
    rows = {"x": {"time": "2026-01-02T00:00:00Z", "number": 2}, "y": {"time": "2026-01-01T00:00:00Z", "number": 1}}
    tags = {f"gate.comparison.{name}": json.dumps(row) for name, row in rows.items()}
    tags |= {"gate.look.z": json.dumps({"time": "2026-01-01T00:00:00Z"}), "gate": "{}", "base": ""}
    assert list(entries(tags, "comparison")) == ["y", "x"] and list(entries(tags, "look")) == ["z"]


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("SWEETRL_TRACKING", "on")
    return tmp_path


def test_a_new_project_has_a_plan_and_no_store_is_made_for_it(root: Path) -> None:
    settings = parse_settings({"gate": {"spending": "none"}})
    planned = plan(settings.gate, settings.tracking, 0.95, 1000, root)
    assert (planned.champion, planned.tasks, planned.number, planned.alpha) == (None, 1000, 1, pytest.approx(0.05))
    assert (planned.discordance, planned.seen, planned.needed, planned.slice_needed) == (0.2, 0, 626, 157)
    assert planned.detectable == pytest.approx(0.0396, abs=1e-3)
    rows = dict(planned.rows())
    assert rows["0.05 needs"] == "about 626 tasks, with a chance of 80 %"
    assert "assumed: gate.discordance" in rows["versions differ"]
    assert list(root.iterdir()) == []
    few = plan(settings.gate, settings.tracking, 0.95, 3, root, difference=0.1, discordance=0.4)
    assert (few.difference, few.detectable, few.discordance) == (0.1, None, 0.4)
    assert dict(few.rows())["these tasks show"] == "nothing"


@pytest.mark.parametrize("values", [{"difference": 0.0}, {"difference": 2.0}, {"discordance": -1.0}])
def test_what_cannot_be_is_one_sentence(root: Path, values: dict[str, float]) -> None:
    (name,) = values
    with pytest.raises(UserError, match=f"--{name}: .* cannot be; give a number above 0"):
        plan(GateSettings(), TrackingSettings(), 0.95, 1000, root, **values)  # type: ignore[arg-type]
