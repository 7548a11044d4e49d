"""Parquet and JSON Lines wherever one of them is taken, and dialogues wherever they lie."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sweetrl.colbench.store import TrajectoryStore, write_task_table
from sweetrl.errors import UserError
from sweetrl.types import Message, Task, Trajectory
from tests.stages.conftest import sweetrl

TASK = Task(
    id="t-1",
    problem_description="I want a function for the price of a ticket. def price(hours)",
    ground_truth="def price(hours):\n    return hours * 7",
    test_cases=(("test1", "price(1)"), ("test2", "price(2)")),
    hidden_information="rate: 7",
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "trajectories"
    messages = (Message("user", TASK.problem_description), Message("assistant", "Well?"), Message("user", "It is 7."))
    first = Trajectory(TASK, 0, (*messages, Message("assistant", "No.")), reward=0.5, policy="models/base")
    dialogues = [first, replace(first, attempt=1), replace(first, task=replace(TASK, id="t-2"))]
    TrajectoryStore(path).write_shard(0, dialogues)
    return path


def test_rows_in_parquet_are_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write_tasks: Callable[..., Path]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_tasks(tmp_path / "tasks.jsonl", [TASK, replace(TASK, id="t-2")])
    write_task_table(tmp_path / "own.parquet", [TASK, replace(TASK, id="t-2")])
    rows = [{"index": 1, "answer": TASK.ground_truth}, {"index": 0, "answer": None}]
    (tmp_path / "answers.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "answers.parquet")
    others = [json.loads(line) for line in (tmp_path / "tasks.jsonl").read_text().splitlines()]
    pq.write_table(pa.Table.from_pylist(others), tmp_path / "others.parquet")
    reports = []
    for tasks, kind in (("tasks.jsonl", "jsonl"), ("own.parquet", "parquet"), ("others.parquet", "parquet")):
        reports.append(json.loads(sweetrl("score", "--tasks", tasks, "--answers", f"answers.{kind}", "--json")))
    assert reports[0] == reports[1] == reports[2]
    assert [row["score"] for row in reports[0]["results"]] == [1.0, 0.0]


def test_dialogues_are_shown_from_a_folder_of_policies_from_a_shard_and_as_json(folder: Path) -> None:
    shard = next(folder.glob("*.parquet"))
    moved = folder / "trained"
    moved.mkdir()
    shard = shard.rename(moved / shard.name)
    for place in (folder, moved, shard):
        shown = json.loads(sweetrl("show", "--dialogues", place, "--json", "--limit", 2))
        assert [row["task"] for row in shown] == ["t-1", "t-1"]
    printed = sweetrl("show", "t-1", "--dialogues", shard, "--json")
    dialogue = json.loads(printed)
    assert dialogue["reward"] == 0.5 and dialogue["messages"][2]["content"].startswith("It is 7.")
    assert "hidden" not in printed and "rate: 7" not in printed
    dialogue = json.loads(sweetrl("show", "t-1", "--dialogues", shard, "--json", "--privileged"))
    assert dialogue["privileged"]["hidden_information"] == "rate: 7"


def test_logs_in_parquet_are_imported_like_those_in_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    messages = [{"role": "user", "content": "Where is it?"}, {"role": "assistant", "content": "It arrives tomorrow."}]
    rows = [{"messages": messages, "reward": 1.0}, {"messages": [*messages, *messages], "reward": 0.0}]
    (tmp_path / "logs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "logs.parquet")
    reports = []
    for name in ("logs.jsonl", "logs.parquet"):
        reports.append(json.loads(sweetrl("import", name, "--out", f"out-{name}", "--json")) | {"written": ""})
        dialogues = [dialogue.messages for dialogue in TrajectoryStore(tmp_path / f"out-{name}")]
    assert reports[0] == reports[1] and reports[0]["dialogues"] == 2
    assert [len(messages) for messages in dialogues] == [2, 4]


def test_a_table_of_the_project_is_no_file_of_rows(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"this is a table of this project \(trajectories/2\)"):
        sweetrl("import", next(folder.glob("*.parquet")), "--out", tmp_path / "out")


def test_columns_that_no_row_needs_are_not_read_and_bad_ones_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    messages = [{"role": "user", "content": "Where is it?"}, {"role": "assistant", "content": "It arrives tomorrow."}]
    rows = pa.Table.from_pylist([{"messages": messages, "reward": 1.0}, {"messages": messages, "reward": 0.0}])
    at = pa.array([1, 2], pa.timestamp("ns"))
    for name, column in (("created_at", at), ("metadata", pa.StructArray.from_arrays([at], ["at"]))):
        pq.write_table(rows.append_column(name, column), f"{name}.parquet")
        assert json.loads(sweetrl("import", f"{name}.parquet", "--out", name, "--json"))["dialogues"] == 2
    words = pa.Array.from_buffers(pa.string(), 2, pa.array([b"\xff\xfe", b"x"], pa.binary()).buffers())
    pq.write_table(rows.append_column("note", words), "bad.parquet")
    with pytest.raises(UserError, match=r"bad\.parquet: this cannot be read as Parquet with rows of text"):
        sweetrl("import", "bad.parquet", "--out", "bad")
