"""Files of answers scored against task files, and what is said about bad rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sweetrl.cli.score import score_file
from sweetrl.errors import UserError

REFERENCE = "def f(x):\n    return {'half': x / 2}"


def write(path: Path, *rows: Any) -> Path:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    row = {"problem_description": "halve", "ground_truth": REFERENCE, "test_cases": {"test1": "f(1)", "test2": "f(2)"}}
    return write(tmp_path / "tasks.jsonl", row, {**row, "problem_description": "halve again"})


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("{broken", "line 2"),
        ({"index": 5, "answer": ""}, "line 2: `index` is 5, but .* holds tasks 0 to 1"),
        ({"index": 1}, "line 2: the key `answer` is missing"),
        ({"task": {"problem_description": "x", "ground_truth": "y"}, "answer": ""}, "line 2: this task is not in"),
    ],
)
def test_bad_rows_are_named(tasks: Path, tmp_path: Path, row: Any, message: str) -> None:
    answers = write(tmp_path / "a.jsonl", {"index": 0, "answer": ""}, row)
    with pytest.raises(UserError, match=message):
        score_file(tasks, answers, "fixed")
