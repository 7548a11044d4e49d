"""Parquet and JSON Lines wherever one of them is taken, and dialogues wherever they lie."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from sweetrl.cli import main
from sweetrl.colbench.store import TrajectoryStore, write_task_table
from sweetrl.types import Message, Task, Trajectory

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
    said = (Message("user", TASK.problem_description), Message("assistant", "Well?"), Message("user", "It is 7."))
    one = Trajectory(TASK, 0, (*said, Message("assistant", "No.")), reward=0.5, policy="models/base")
    TrajectoryStore(path).write_shard(0, [one, replace(one, attempt=1), replace(one, task=replace(TASK, id="t-2"))])
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
    found = []
    for tasks, answers in (
        ("tasks.jsonl", "answers.jsonl"),
        ("own.parquet", "answers.parquet"),
        ("others.parquet",) * 2,
    ):
        answers = "answers.parquet" if answers == "others.parquet" else answers
        result = CliRunner().invoke(main.app, ["score", "--tasks", tasks, "--answers", answers, "--json"])
        assert result.exit_code == 0, result.exception
        found.append(json.loads(result.stdout))
    assert found[0] == found[1] == found[2]
    assert [row["score"] for row in found[0]["results"]] == [1.0, 0.0]


def test_dialogues_are_shown_from_a_folder_of_policies_from_a_shard_and_as_json(folder: Path) -> None:
    shard = next(folder.glob("*.parquet"))
    moved = folder / "trained"
    moved.mkdir()
    shard = shard.rename(moved / shard.name)
    for place in (folder, moved, shard):
        result = CliRunner().invoke(main.app, ["show", "--dialogues", str(place), "--json", "--limit", "2"])
        assert [row["task"] for row in json.loads(result.stdout)] == ["t-1", "t-1"], result.exception
    result = CliRunner().invoke(main.app, ["show", "t-1", "--dialogues", str(shard), "--json"])
    one = json.loads(result.stdout)
    assert one["reward"] == 0.5 and one["messages"][2]["content"].startswith("It is 7.")
    assert "hidden" not in result.stdout and "rate: 7" not in result.stdout
    result = CliRunner().invoke(main.app, ["show", "t-1", "--dialogues", str(shard), "--json", "--privileged"])
    assert json.loads(result.stdout)["privileged"]["hidden_information"] == "rate: 7"


def test_logs_in_parquet_are_imported_like_those_in_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    said = [{"role": "user", "content": "Where is it?"}, {"role": "assistant", "content": "It arrives tomorrow."}]
    rows = [{"messages": said, "reward": 1.0}, {"messages": [*said, *said], "reward": 0.0}]
    (tmp_path / "logs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "logs.parquet")
    found = []
    for name in ("logs.jsonl", "logs.parquet"):
        result = CliRunner().invoke(main.app, ["import", name, "--out", f"out-{name}", "--json"])
        assert result.exit_code == 0, result.exception
        found.append(json.loads(result.stdout) | {"written": ""})
        dialogues = [one.messages for one in TrajectoryStore(tmp_path / f"out-{name}")]
    assert found[0] == found[1] and found[0]["dialogues"] == 2
    assert [len(messages) for messages in dialogues] == [2, 4]


def test_a_table_of_the_project_is_no_file_of_rows(folder: Path, tmp_path: Path) -> None:
    shard = next(folder.glob("*.parquet"))
    result = CliRunner().invoke(main.app, ["import", str(shard), "--out", str(tmp_path / "out")])
    assert "this is a table of this project (trajectories/2)" in str(result.exception)


def test_columns_that_no_row_needs_are_not_read_and_bad_ones_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said = [{"role": "user", "content": "Where is it?"}, {"role": "assistant", "content": "It arrives tomorrow."}]
    rows = pa.Table.from_pylist([{"messages": said, "reward": 1.0}, {"messages": said, "reward": 0.0}])
    at = pa.array([1, 2], pa.timestamp("ns"))
    pq.write_table(rows.append_column("created_at", at), "times.parquet")
    result = CliRunner().invoke(main.app, ["import", "times.parquet", "--out", "out", "--json"])
    assert result.exit_code == 0 and json.loads(result.stdout)["dialogues"] == 2, result.exception
    inside = pa.StructArray.from_arrays([at], ["at"])
    words = pa.Array.from_buffers(pa.string(), 2, pa.array([b"\xff\xfe", b"x"], pa.binary()).buffers())
    pq.write_table(rows.append_column("metadata", inside), "inside.parquet")
    result = CliRunner().invoke(main.app, ["import", "inside.parquet", "--out", "inside", "--json"])
    assert result.exit_code == 0 and json.loads(result.stdout)["dialogues"] == 2, result.exception
    pq.write_table(rows.append_column("note", words), "bad.parquet")
    result = CliRunner().invoke(main.app, ["import", "bad.parquet", "--out", "bad"])
    assert "bad.parquet: this cannot be read as Parquet with rows of text" in str(result.exception)
