"""How deep and how large JSON of somebody else may be, whoever sent it: looked at before anything descends into it."""

from __future__ import annotations

import math
from typing import Any, Literal


def excess(value: Any, levels: int, values: float = math.inf) -> Literal["", "levels", "values"]:
    """Say of which there is too much in a parsed `value`: levels of nesting, or values in it; "" where of neither.

    A text or a number is one level, a list of them two. Texts, numbers, lists and objects below the top count as
    values. Nothing here recurses, so that no nesting is too deep to be looked at.
    """
    level, seen = [value], 0
    for _ in range(levels):
        below: list[Any] = []
        for one in level:
            if isinstance(one, dict):
                below.extend(one.values())
            elif isinstance(one, list):
                below.extend(one)
        seen += len(below)
        if seen > values:
            return "values"
        if not below:
            return ""
        level = below
    return "levels"
