"""How deep and how large JSON of somebody else may be."""

from __future__ import annotations

import math
from typing import Any

import pytest

from sweetrl.text import excess


@pytest.mark.parametrize(
    ("value", "levels", "values", "expected"),
    [
        ("a text", 1, 0, ""),
        ([1, 2], 1, 2, "levels"),
        ([1, 2], 2, 1, "values"),
        ({"a": {"b": [1]}}, 4, 3, ""),
        ({"a": {"b": [1]}}, 4, 2, "values"),
        ([0] * 100_000, 2, math.inf, ""),
    ],
)
def test_levels_and_values_are_counted(value: Any, levels: int, values: float, expected: str) -> None:
    assert excess(value, levels, values) == expected


def test_no_nesting_is_too_deep_to_be_looked_at() -> None:
    value: list[Any] = []
    for _ in range(100_000):
        value = [value]
    assert excess(value, 16) == "levels"
    assert excess(value, 100_001) == ""
    while value:  # without recursion, too
        value = value[0]
