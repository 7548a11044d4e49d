"""Slices: small ones never pass silently, many of them raise no false alarm, and losses are found."""

from __future__ import annotations

import numpy as np
import pytest

from sweetrl.config.settings import GateSettings
from sweetrl.errors import UserError
from sweetrl.gate.slices import compare_slices, sentences

RULES = GateSettings(slices=["topic"])


def slices_of(groups: dict[str, list[float]], rules: GateSettings = RULES):
    values = {f"{name}-{number}": value for name, gaps in groups.items() for number, value in enumerate(gaps)}
    return compare_slices(values, {"topic": {task: task.split("-")[0] for task in values}}, rules, 0.95)


@pytest.mark.parametrize(("count", "status"), [(1, "unclear"), (17, "unclear"), (19, "safe")])
def test_a_small_slice_without_any_difference_cannot_be_told(count: int, status: str) -> None:
    small, large = slices_of({"a": [0.0] * count, "b": [0.0] * 400})
    assert (small.status, large.status) == (status, "safe")
    assert small.low < 0.0 < small.high
    if status == "unclear":
        assert count < small.needed == 19
        words = sentences([small, large], 0.1)
        assert words[0].startswith(
            "In 1 of 2 slices there are too few tasks to rule out a loss of more than 0.1: topic a"
        )


def test_a_loss_is_found_and_a_small_one_is_none() -> None:
    lost, small, won = slices_of({"a": [-1.0] * 30 + [0.0] * 70, "b": [-1.0] * 20 + [0.0] * 980, "c": [1.0, 0.0] * 50})
    assert (lost.status, small.status, won.status) == ("loss", "safe", "safe")
    assert lost.difference == pytest.approx(-0.3) and lost.p_value < 0.001
    assert lost.low < -0.3 < lost.high < 0.0


def test_many_slices_of_equal_versions_raise_an_alarm_as_rarely_as_one() -> None:
    """Without Holm's adjustment about half of the trials would raise an alarm."""
    rng = np.random.default_rng(5)
    alarms = 0
    for _ in range(100):
        groups = {f"s{number}": rng.choice([-1.0, 0.0, 1.0], 40, p=[0.2, 0.6, 0.2]).tolist() for number in range(30)}
        alarms += any(part.status == "loss" for part in slices_of(groups))
    assert alarms / 100 <= 0.05


def test_a_name_is_one_short_line_in_the_words_only() -> None:
    odd = "x\0\n\n" + "y" * 500
    (slice_, _) = slices_of({odd: [0.0], "z": [0.0]})
    assert slice_.group == odd and slice_.name.startswith("topic x\ufffd yyy") and len(slice_.name) < 100


def test_a_column_in_which_all_are_alike_has_no_slices() -> None:
    assert slices_of({"a": [0.0, 1.0]}) == ()
    assert sentences([], 0.1) == []


def test_a_column_that_is_not_there_is_a_mistake() -> None:
    with pytest.raises(UserError, match=r"gate.slices: no groups by `persona`; there are topic\."):
        slices_of({"a": [0.0], "b": [1.0]}, GateSettings(slices=["topic", "persona"]))
