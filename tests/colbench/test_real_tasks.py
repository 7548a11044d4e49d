"""The 300 real backend tasks (where they are) through loader, environment and scorer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from sweetrl.backend import Backend
from sweetrl.backend.rewards import CodeScorer
from sweetrl.colbench.dialogue import Environment
from sweetrl.colbench.files import read_tasks, task_row
from sweetrl.colbench.users import simulator_prompt
from sweetrl.config.settings import RewardSettings
from sweetrl.types import AgentTurn, Message, Task, Trajectory

BACKEND = Backend()
# The references take microseconds; the limits are for a machine that is busy with other things.
PATIENT = RewardSettings(wall_seconds=300, call_seconds=100)


class Shrugging:
    """A user who never knows, but whose language-model prompt is made all the same."""

    name = "shrugging"

    def reply(self, task: Task, messages: Sequence[Message], seed: int) -> str:
        assert task.ground_truth in simulator_prompt(task, messages, "backend_simulator")
        return "I do not know."


@pytest.fixture(scope="module")
def tasks(real_backend_tasks: Path) -> list[Task]:
    return list(read_tasks(real_backend_tasks, BACKEND))


def submit_reference(task: Task, attempt: int = 0) -> Trajectory:
    """One question, then the reference as the answer."""
    environment, turns = Environment(task, BACKEND, Shrugging(), seed=attempt), []
    for raw in ("I think. OUTPUT: Is there anything else?", f"I WANT TO ANSWER:\n```python\n{task.ground_truth}\n```"):
        turns.append(AgentTurn(len(environment.messages), raw))
        environment.step(raw)
    assert environment.outcome is not None
    return Trajectory(
        task, attempt, environment.messages, tuple(turns), environment.answer, outcome=environment.outcome
    )


def test_the_loader_keeps_every_field(real_backend_tasks: Path, tasks: list[Task]) -> None:
    official = [json.loads(line) for line in real_backend_tasks.read_text(encoding="utf-8").splitlines() if line]
    assert len(tasks) == 300 and len({task.id for task in tasks}) == 300
    assert tasks[7].id == f"{real_backend_tasks.stem}-00007"
    assert all(len(task.test_cases) == 10 for task in tasks)
    for task, row in zip(tasks, official, strict=True):
        assert {**row, "id": task.id} == task_row(task)
        assert list(row["test_cases"]) == [name for name, _ in task.test_cases]


def test_the_submitted_references_are_scored(tasks: list[Task]) -> None:
    with CodeScorer(PATIENT) as scorer:
        scores = scorer.score([submit_reference(task) for task in tasks])
    failed = [
        (task.id, test) for task, score in zip(tasks, scores, strict=True) for test in score.tests if not test.passed
    ]
    assert failed == []
    assert [score.reward for score in scores] == [1.0] * 300
    for task, score in zip(tasks, scores, strict=True):
        assert [test.name for test in score.tests] == [name for name, _ in task.test_cases]
