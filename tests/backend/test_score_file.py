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


def test_score_file(tasks: Path, tmp_path: Path) -> None:
    trajectory = {"task": json.loads(tasks.read_text().splitlines()[1]), "dialogue_history": [], "answer": REFERENCE}
    rows = [{"index": 1, "answer": "def f(x): return {'half': 0.5}"}, trajectory, {"index": 0, "answer": None}]
    report = score_file(tasks, write(tmp_path / "a.jsonl", *rows), "official", tmp_path / "out.json")
    assert [(row["index"], row["score"]) for row in report["results"]] == [(1, 0.5), (1, 1.0), (0, 0.0)]
    assert report["summary"]["score"] == 0.5 and report["summary"]["success"] == pytest.approx(1 / 3)
    assert report["summary"]["isolation"].endswith("rlimits")
    assert json.loads((tmp_path / "out.json").read_text()) == report


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("{broken", "line 2"),
        ({"index": 5, "answer": ""}, "line 2: `index` is 5"),
        ({"index": "1", "answer": ""}, "line 2: `index` must be"),
        ({"index": 1}, "line 2: the key `answer` is missing"),
        ({"index": 1, "answer": 3}, "line 2: `answer` must be"),
        ({"answer": ""}, "line 2: expected the keys"),
        ({"task": {"problem_description": "x", "ground_truth": "y"}, "answer": ""}, "line 2: this task is not in"),
    ],
)
def test_bad_rows_are_named(tasks: Path, tmp_path: Path, row: Any, message: str) -> None:
    answers = write(tmp_path / "a.jsonl", {"index": 0, "answer": ""}, row)
    with pytest.raises(UserError, match=message):
        score_file(tasks, answers, "fixed")
