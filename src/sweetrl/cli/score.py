"""A file of answers, {"index", "answer"} rows or an official trajectory file, scored against a task file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sweetrl.backend.domain import Backend
from sweetrl.backend.rewards import CodeScorer
from sweetrl.colbench.jsonl import Row, TaskRow, read_as, read_rows
from sweetrl.config.settings import RewardSettings
from sweetrl.console.progress import Meter
from sweetrl.errors import UserError
from sweetrl.evaluation.metrics import means_over_tasks
from sweetrl.io import write_json
from sweetrl.stages.standalone import read_any_tasks
from sweetrl.types import Task


def score_file(tasks: Path, answers: Path, reward: RewardSettings, out: Path | None = None) -> dict[str, Any]:
    """Score a file of answers against an official task file: the body of `sweetrl score`.

    A row of `answers` is {"index": task row from 0, "answer": text} or an official trajectory ({"task": ..., "answer":
    ...}). Returns, and writes to `out` if given, {"summary": {...}, "results": [{"index", "score", "tests": [...]},
    ...]} in the order of the answers. Raises UserError naming file and row for bad input, before anything is scored.
    """
    attempted = read_any_tasks(tasks, Backend())
    rows = list(read_answers(answers, attempted, tasks))
    results: list[dict[str, Any]] = []
    reasons: Counter[str] = Counter()
    isolation = ""
    with CodeScorer(reward) as scorer, Meter("score", len(rows), "answers") as meter:
        scores = scorer.stream((attempted[index], answer) for index, answer in rows)
        for (index, _), score in zip(rows, scores, strict=True):
            meter(1)
            reasons.update(test.reason for test in score.tests)
            isolation = score.isolation if score.isolation != "not run" else isolation
            results.append({"index": index, "score": score.reward, "tests": [asdict(test) for test in score.tests]})
    total = len(results)
    summary = {
        "answers": total,
        "tasks": len({row["index"] for row in results}),
        "score": sum(row["score"] for row in results) / total,
        "success": sum(row["score"] == 1.0 for row in results) / total,
        "over_tasks": means_over_tasks((row["index"], row["score"] == 1.0, row["score"]) for row in results),
        "reasons": dict(sorted(reasons.items())),
        "semantics": reward.semantics,
        "isolation": isolation or "not run",
    }
    report = {"summary": summary, "results": results}
    if out is not None:
        write_json(out, report)
    return report


class AnswerRow(Row):
    """A row of answers: the task's number, or (from an official trajectory) the task; null where there is no answer."""

    index: int | None = None
    task: TaskRow | None = None
    answer: str | None


def read_answers(path: Path, tasks: Sequence[Task], source: Path) -> Iterator[tuple[int, str | None]]:
    """Yield (index of the task in `tasks`, answer) for every row of `path`, in order.

    A trajectory's task is found by its content. Raises UserError naming file, line and key for a bad row, a task that
    `source` (the file of `tasks`) does not hold, or an empty file.
    """
    by_content: dict[tuple[str, str], int] = {}
    for place, task in enumerate(tasks):
        by_content.setdefault((task.problem_description, task.ground_truth), place)
    number = 0
    for number, row in read_rows(path):
        where = f"{path}: line {number}"
        parsed = read_as(AnswerRow, row, where)
        index = parsed.index
        if index is not None:
            if not 0 <= index < len(tasks):
                raise UserError(f"{where}: `index` is {index}, but {source} holds tasks 0 to {len(tasks) - 1}.")
        elif parsed.task is not None:
            index = by_content.get((parsed.task.problem_description, parsed.task.ground_truth))
            if index is None:
                raise UserError(f"{where}: this task is not in {source}; give the trajectories' own task file.")
        else:
            raise UserError(f"{where}: neither `index` and `answer` nor an official trajectory with a `task`.")
        yield index, parsed.answer
    if not number:
        raise UserError(f"{path}: the file holds no answers; expected one JSON object a line.")
