"""Attempts in groups: who is told apart from whom, and which turn gets what."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sweetrl.engines.chat import ChatFormat
from sweetrl.errors import UserError
from sweetrl.learning.batches import encode
from sweetrl.methods.credit import lay_out, turn_credits
from sweetrl.settings import GrpoSettings
from sweetrl.types import Trajectory


def test_attempts_are_compared_within_their_task_only(
    make_trajectory: Callable[..., Trajectory], chat: ChatFormat
) -> None:
    rewards = [[1.0, 0.0, 0.5], [0.2, 0.2, 0.2]]
    given = [make_trajectory(task, n, reward) for task, row in enumerate(rewards) for n, reward in enumerate(row)]
    lost = make_trajectory(0, 3, None, outcome="lost")
    found = lay_out([*given, lost], chat, "Help.", GrpoSettings())
    assert found.rows == tuple(encode(one, chat, "Help.") for one in given)
    assert found.groups == (0, 0, 0, 1, 1, 1)
    deviation = (((0.5**2) * 2) / 3) ** 0.5
    for row, values, expected in zip(
        found.rows, found.advantages, [0.5 / deviation, -0.5 / deviation, 0.0, 0.0, 0.0, 0.0], strict=True
    ):
        assert values == pytest.approx((expected,) * len(row.spans))
    assert found.metrics["return"] == pytest.approx(2.1 / 6)
    assert found.metrics["success"] == pytest.approx(1 / 6)
    assert found.metrics["groups_with_signal"] == 0.5
    assert found.metrics["turns"] == sum(len(row.spans) for row in found.rows) / 6


def test_a_turn_is_compared_with_turns_of_its_number() -> None:
    settings = GrpoSettings(credit="turn", discount=0.5)
    found = turn_credits([1.0, 0.4], [1, 2], [0, 0], settings)
    # Turn 0: returns 1 and 0.2; turn 1: only the second attempt has one.
    assert found[0] == pytest.approx((1.0,))
    assert found[1] == pytest.approx((-1.0, 0.0))
    whole = turn_credits([1.0, 0.4], [1, 2], [0, 0], GrpoSettings())
    assert whole[0] == pytest.approx((1.0,)) and whole[1] == pytest.approx((-1.0, -1.0))


def test_nothing_scored_is_one_sentence(make_trajectory: Callable[..., Trajectory], chat: ChatFormat) -> None:
    with pytest.raises(UserError, match="nothing to learn from"):
        lay_out([make_trajectory(0, 0, None, outcome="lost")], chat, "Help.", GrpoSettings())
