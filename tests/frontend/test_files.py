"""Official frontend files: tasks and trajectories, both ways, and what is said of broken ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sweetrl.colbench.files import read_tasks, read_trajectories, write_trajectories
from sweetrl.colbench.store import TrajectoryStore
from sweetrl.errors import UserError
from sweetrl.frontend import Frontend
from sweetrl.types import AgentTurn, Message, Task, Trajectory

PAGE = '<html>\n<body class="bg-white">\u2028é</body></html>'
FRONTEND = Frontend()
TASK = Task("pages-00000", "A page.", PAGE, suite="frontend")


def trajectory(attempt: int, answer: str | None = PAGE) -> Trajectory:
    said = f"Here it is: {answer}" if answer else "Which colour?"
    messages = (
        Message("user", "A page."),
        Message("assistant", said),
        Message("user", "Blue."),
        Message("assistant", "I WANT TO ANSWER: that"),
    )
    turns = (AgentTurn(1, said), AgentTurn(3, "hm OUTPUT:I WANT TO ANSWER: that"))
    return Trajectory(TASK, attempt, messages, turns, answer, 0.8125)


def write(path: Path, *rows: Any) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_task_without_a_page_is_one_sentence(tmp_path: Path) -> None:
    path = write(tmp_path / "pages.jsonl", {"problem_description": "A page.", "ground_truth": "def f(): pass"})
    with pytest.raises(UserError, match="line 1: `ground_truth` holds no HTML"):
        list(read_tasks(path, FRONTEND))


def test_trajectories_both_ways(tmp_path: Path) -> None:
    attempts = [trajectory(0), trajectory(1, None)]
    path = tmp_path / "dialogues.jsonl"
    assert write_trajectories(path, attempts, 2) == 2
    first, second = (json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line)
    assert first["answer"] == PAGE and second["answer"] == "No answer"
    assert "test_cases" not in first["task"] and first["dialogue_history"][3]["output"].startswith("hm OUTPUT:")
    found = list(read_trajectories(path, FRONTEND))
    assert found == attempts and [one.attempt for one in found] == [0, 1]
    store = TrajectoryStore(tmp_path / "shards")
    store.write_shard(0, attempts)
    assert list(store.read()) == attempts


def test_where_a_file_names_a_picture_the_answer_is_the_last_page(tmp_path: Path) -> None:
    path = tmp_path / "dialogues.jsonl"
    write_trajectories(path, [trajectory(0)], 1)
    row = json.loads(path.read_text(encoding="utf-8")) | {"answer": "pictures/7.png"}
    write(path, row)
    assert list(read_trajectories(path, FRONTEND)) == [trajectory(0)]


def test_the_real_pages_are_read_and_written_as_they_are(
    real_frontend_tasks: Path, tmp_path: Path, write_tasks: Callable[..., Path]
) -> None:
    tasks = list(read_tasks(real_frontend_tasks, FRONTEND))
    assert len(tasks) == 150 and tasks[7].id == "frontend_150-00007"
    write_tasks(tmp_path / "again.jsonl", tasks)
    assert list(read_tasks(tmp_path / "again.jsonl", FRONTEND)) == tasks
    rows = [json.loads(line) for line in real_frontend_tasks.read_text(encoding="utf-8").split("\n") if line]
    again = [json.loads(line) for line in (tmp_path / "again.jsonl").read_text(encoding="utf-8").split("\n") if line]
    assert [{**row, "id": one["id"]} for row, one in zip(rows, again, strict=True)] == again
