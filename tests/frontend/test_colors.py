"""Colours have the names that people give them, and are distinguished only where eyes do."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from sweetrl.frontend.colors import color_name, distance, distinguishing_names
from sweetrl.frontend.suite.designs import RGB

colors = st.tuples(*[st.integers(0, 255)] * 3)


def test_the_suites_colours_have_the_suites_names_and_can_be_distinguished() -> None:
    assert {name: color_name(color) for name, color in RGB.items()} == {name: name for name in RGB}
    for name, other in itertools.permutations(RGB, 2):
        assert distinguishing_names(RGB[name], RGB[other]) == (name, other)


@given(colors, colors)
def test_the_names_of_two_colours_are_true(expected: tuple[int, int, int], actual: tuple[int, int, int]) -> None:
    names = distinguishing_names(expected, actual)
    if names is None:
        return
    assert distance(expected, actual) >= 8 and names[1] == color_name(actual)
    if names[0].startswith("a "):
        assert color_name(expected) == color_name(actual)
        farther = distance(expected, (0, 0, 0)) > distance(actual, (0, 0, 0))  # from black
        assert names[0].startswith("a lighter") == (farther or sum(expected) > sum(actual))
    else:
        assert names[0] == color_name(expected) != names[1]


def test_shades_of_one_name() -> None:
    assert distinguishing_names((96, 165, 250), (37, 99, 235)) == ("a lighter blue", "blue")
    assert distinguishing_names((37, 99, 235), (96, 165, 250)) == ("a darker blue", "blue")
    assert distinguishing_names((250, 250, 250), (255, 255, 255)) is None
