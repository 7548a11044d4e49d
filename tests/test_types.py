"""What the types say of themselves."""

from __future__ import annotations

import pytest

from sweetrl.types import Task, Trajectory


@pytest.mark.parametrize(
    ("reward", "solved", "success"),
    [
        (1.0, None, True),
        (1.5, None, True),
        (0.99, None, False),
        (None, None, False),
        (0.2, True, True),
        (None, True, True),
        (1.0, False, False),
    ],
)
def test_success_of_a_dialogue(reward: float | None, solved: bool | None, success: bool) -> None:
    task = Task("t", "Say it.", "word")
    assert Trajectory(task, 0, (), reward=reward, solved=solved).success is success
