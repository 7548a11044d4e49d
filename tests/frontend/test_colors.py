"""Colours have the names that people give them, and are told apart only where eyes do."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweetrl.frontend.colors import color_name, distance, told_apart
from sweetrl.frontend.suite.designs import RGB

colors = st.tuples(*[st.integers(0, 255)] * 3)


def test_the_suites_colours_are_called_what_the_suite_calls_them_and_can_be_told_apart() -> None:
    assert {name: color_name(color) for name, color in RGB.items()} == {name: name for name in RGB}
    for one, other in itertools.permutations(RGB, 2):
        assert told_apart(RGB[one], RGB[other]) == (one, other)


def test_distance_is_that_of_the_eye() -> None:
    assert distance((255, 255, 255), (0, 0, 0)) == pytest.approx(100, abs=0.1)
    assert distance((255, 0, 0), (0, 255, 0)) == pytest.approx(170.6, abs=0.5)  # the textbook's value
    assert distance((7, 7, 7), (7, 7, 7)) == 0


@given(colors, colors)
def test_what_is_said_of_two_colours_is_true(one: tuple[int, int, int], other: tuple[int, int, int]) -> None:
    told = told_apart(one, other)
    if told is None:
        return
    assert distance(one, other) >= 8 and told[1] == color_name(other)
    if told[0].startswith("a "):
        assert color_name(one) == color_name(other)
        brighter = sum(one) > sum(other)
        assert told[0].startswith("a lighter") == (distance(one, (0, 0, 0)) > distance(other, (0, 0, 0)) or brighter)
    else:
        assert told[0] == color_name(one) != told[1]


def test_shades_of_one_name() -> None:
    assert told_apart((96, 165, 250), (37, 99, 235)) == ("a lighter blue", "blue")
    assert told_apart((37, 99, 235), (96, 165, 250)) == ("a darker blue", "blue")
    assert told_apart((250, 250, 250), (255, 255, 255)) is None
