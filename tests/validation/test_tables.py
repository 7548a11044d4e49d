"""What a batch is compared with the one before by: the mean over tasks, however many attempts each has."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sweetrl.backend import Backend
from sweetrl.config.settings import ValidateSettings
from sweetrl.types import Message, Task, Trajectory
from sweetrl.validation.suites import trajectories_table
from sweetrl.validation.tables import Rows, TrajectoryTable, summarise


def dialogues(hellos: int, others: int) -> list[Trajectory]:
    """Attempts at one task that succeed after one turn, and as many tasks with one that fails after three."""
    trajectories = []
    for number in range(hellos + others):
        hello = number < hellos
        task = Task("hello" if hello else f"task-{number}", "Hello!" if hello else f"I want {number}.", "")
        roles = ("user", "assistant") if hello else ("user", "assistant") * 3
        messages = tuple(Message(role, task.problem_description) for role in roles)  # type: ignore[arg-type]
        attempt, reward = (number, 1.0) if hello else (0, 0.0)
        trajectories.append(Trajectory(task, attempt, messages, answer="", reward=reward, outcome="user_left"))
    return trajectories


def rows_of(spoken: list[Trajectory]) -> Rows:
    table = TrajectoryTable(Backend(), 7)
    for _ in table.watch(spoken, map(str, range(len(spoken)))):
        pass
    return table.rows()


def means(rows: Rows) -> list[float]:
    columns = (rows.column(name) for name in ("reward_by_task", "turns_by_task"))
    filled = ([value for value in column if value is not None] for column in columns)
    return [sum(column) / len(column) for column in filled]


def test_a_request_that_comes_more_often_is_no_shift() -> None:
    before = summarise(rows_of(dialogues(2, 9)), "b1")
    rows = rows_of(dialogues(100, 9))
    now = summarise(rows, "b2")
    assert (now.mean_reward, now.mean_turns) == (before.mean_reward, before.mean_turns) == (0.1, 2.8)
    assert means(rows) == pytest.approx([now.mean_reward, now.mean_turns])
    table = trajectories_table(rows, ValidateSettings(), before=before, now=now)
    shifts = [rule.arguments for rule in table.rules if rule.name.endswith("_shift")]
    assert [shift["column"] for shift in shifts] == ["reward_by_task", "turns_by_task"]
    for mean, shift in zip(means(rows), shifts, strict=True):
        assert shift["min_value"] <= mean <= shift["max_value"]


def test_where_all_tasks_have_as_many_attempts_values_stay_as_they_are_and_lost_dialogues_do_not_count() -> None:
    spoken = dialogues(0, 4)
    assert rows_of(spoken).column("turns_by_task") == [3.0] * 4
    lost = replace(spoken[0], reward=None, outcome="lost", error="gone")
    rows = rows_of([lost, *spoken[1:]])
    assert rows.column("reward_by_task") == [None, 0.0, 0.0, 0.0]
    assert rows.column("turns_by_task") == [None, 3.0, 3.0, 3.0]
