"""`official` semantics against an independent evaluator by the same rules, on the real tasks and variants of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from sweetrl.backend import Backend
from sweetrl.backend.checks import function_name
from sweetrl.backend.rewards import CodeScorer
from sweetrl.cli.score import score_file
from sweetrl.colbench.files import read_tasks
from sweetrl.config.settings import RewardSettings
from sweetrl.types import Task
from tests.sandbox.mutants import mutants

HERE = Path(__file__).parent


def official(items: list[tuple[Task, str]]) -> list[list[bool]]:
    """Verdicts of the independent evaluator, in a subprocess that is thrown away."""
    rows = [[task.ground_truth, answer, [call for _, call in task.test_cases]] for task, answer in items]
    done = subprocess.run(
        [sys.executable, "-c", "import official_evaluator; official_evaluator.main()"],
        cwd=HERE,
        input=json.dumps(rows),
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONHASHSEED": "0"},
    )
    return json.loads(done.stdout)["verdicts"]


def compare(tasks: list[Task]) -> Counter[str]:
    """Compare both verdicts on every mutant of every task; return how many mutants of each kind there were."""
    named = [
        (kind, task, answer)
        for task in tasks
        for kind, answer in mutants(task.ground_truth, function_name([call for _, call in task.test_cases]))
    ]
    items = [(task, answer) for _, task, answer in named]
    expected = official(items)
    with CodeScorer(RewardSettings(semantics="official", wall_seconds=4.0, call_seconds=2.0)) as scorer:
        scores = scorer.score_answers(items)
    different = []
    for (kind, task, answer), verdicts, score in zip(named, expected, scores, strict=True):
        if [test.passed for test in score.tests] != verdicts:
            different.append(f"{task.id} {kind}: official {verdicts}, here {score.tests}\n{answer}")
    assert not different, f"{len(different)} of {len(named)} differ:\n" + "\n\n".join(different[:5])
    return Counter(kind for kind, _, _ in named)


def test_references_score_as_in_the_official_evaluator(real_backend_tasks: Path, tmp_path: Path) -> None:
    tasks = list(read_tasks(real_backend_tasks, Backend()))
    answers = tmp_path / "answers.jsonl"
    answers.write_text("".join(json.dumps({"index": i, "answer": t.ground_truth}) + "\n" for i, t in enumerate(tasks)))
    report = score_file(real_backend_tasks, answers, RewardSettings(semantics="official"), tmp_path / "out.json")
    expected = official([(task, task.ground_truth) for task in tasks])
    assert [row["score"] for row in report["results"]] == [sum(verdicts) / len(verdicts) for verdicts in expected]
    assert report["summary"]["score"] == sum(map(sum, expected)) / 3000
    assert json.loads((tmp_path / "out.json").read_text()) == report


def test_mutants_of_some_real_tasks(real_backend_tasks: Path) -> None:
    tasks = list(read_tasks(real_backend_tasks, Backend()))
    kinds = compare(tasks[::100] + [tasks[i] for i in (37, 270)])
    assert len(kinds) >= 50


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_mutants_of_all_real_tasks(real_backend_tasks: Path) -> None:
    tasks = list(read_tasks(real_backend_tasks, Backend()))
    kinds = compare(tasks)
    per_task = sum(kinds.values()) / len(tasks)
    assert per_task >= 40
