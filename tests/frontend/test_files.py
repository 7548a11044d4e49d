"""Official frontend files: tasks and trajectories, both ways, and the messages about broken files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sweetrl.colbench.files import read_tasks, read_trajectories, write_trajectories
from sweetrl.errors import UserError
from sweetrl.frontend import Frontend
from sweetrl.types import AgentTurn, Message, Task, Trajectory

PAGE = '<html>\n<body class="bg-white">\u2028é</body></html>'
FRONTEND = Frontend()
TASK = Task("pages-00000", "A page.", PAGE, suite="frontend")


def trajectory(attempt: int, answer: str | None = PAGE) -> Trajectory:
    reply = f"Here it is: {answer}" if answer else "Which colour?"
    messages = (
        Message("user", "A page."),
        Message("assistant", reply),
        Message("user", "Blue."),
        Message("assistant", "I WANT TO ANSWER: that"),
    )
    turns = (AgentTurn(1, reply), AgentTurn(3, "hm OUTPUT:I WANT TO ANSWER: that"))
    return Trajectory(TASK, attempt, messages, turns, answer, 0.8125)


def write(path: Path, *rows: Any) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_task_without_a_page_is_one_sentence(tmp_path: Path) -> None:
    path = write(tmp_path / "pages.jsonl", {"problem_description": "A page.", "ground_truth": "def f(): pass"})
    with pytest.raises(UserError, match="line 1: `ground_truth` holds no HTML"):
        list(read_tasks(path, FRONTEND))


def test_where_a_file_names_a_picture_the_answer_is_the_last_page(tmp_path: Path) -> None:
    path = tmp_path / "dialogues.jsonl"
    write_trajectories(path, [trajectory(0)], 1)
    row = json.loads(path.read_text(encoding="utf-8")) | {"answer": "pictures/7.png"}
    write(path, row)
    assert list(read_trajectories(path, FRONTEND)) == [trajectory(0)]
