"""A file of answers scored against a task file: the body of `sweetrl score`."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from sweetrl.colbench.files import read_tasks
from sweetrl.colbench.store import format_of, read_task_table
from sweetrl.domains.backend.answers import read_answers
from sweetrl.domains.backend.domain import Backend
from sweetrl.domains.backend.rewards import CodeScorer
from sweetrl.io import write_json
from sweetrl.progress import Meter
from sweetrl.settings import RewardSettings


def score_file(
    tasks: Path,
    answers: Path,
    semantics: str,
    out: Path | None = None,
    reward: RewardSettings | None = None,
    cache: Path | None = None,
) -> dict[str, Any]:
    """Score a file of answers against an official task file: the body of `sweetrl score`.

    A row of `answers` is {"index": task row from 0, "answer": text} or an official trajectory ({"task": ..., "answer":
    ...}). Returns, and writes to `out` if given, {"summary": {...}, "results": [{"index", "score", "tests": [...]},
    ...]} in the order of the answers. Raises UserError naming file and row for bad input, before anything is scored.
    """
    reward = (reward or RewardSettings()).model_copy(update={"semantics": semantics})
    own = tasks.suffix == ".parquet" and format_of(tasks) is not None
    attempted = read_task_table(tasks) if own else list(read_tasks(tasks, Backend()))
    rows = list(read_answers(answers, attempted, tasks))
    results: list[dict[str, Any]] = []
    reasons: Counter[str] = Counter()
    isolation = ""
    with CodeScorer(reward, cache) as scorer, Meter("score", len(rows), "answers") as meter:
        scores = scorer.stream((attempted[index], answer) for index, answer in rows)
        for (index, _), score in zip(rows, scores, strict=True):
            meter(1)
            tests = [
                {"name": test.name, "passed": test.passed, "reason": test.reason, "detail": test.detail}
                for test in score.tests
            ]
            reasons.update(test.reason for test in score.tests)
            isolation = score.isolation if score.isolation != "not run" else isolation
            results.append({"index": index, "score": score.reward, "tests": tests})
    total = len(results)
    summary = {
        "answers": total,
        "tasks": len({row["index"] for row in results}),
        "score": sum(row["score"] for row in results) / total,
        "success": sum(row["score"] == 1.0 for row in results) / total,
        "reasons": dict(sorted(reasons.items())),
        "semantics": semantics,
        "isolation": isolation or "not run",
    }
    report = {"summary": summary, "results": results}
    if out is not None:
        write_json(out, report)
    return report
