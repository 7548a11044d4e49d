"""How computed styles lay letters out: their font, how they are turned, and where columns put them."""

from __future__ import annotations

import math
import re
from dataclasses import replace

from sweetrl.browser.page import Box

_APART = (-0.05, 0.3)  # font sizes between two letters, beside what the font gives: beyond, words are unreadable
_NUMBER = re.compile(r"-?[\d.]+(?:e-?\d+)?")
Turn = tuple[float, float, float, float]  # the matrix (a, b, c, d) of a transform: where it moves to is in the boxes


class Columns:
    """Where lines of a box of several columns are: a snapshot has them all in the first."""

    def __init__(self, style: dict[str, str], box: Box):
        gap, wide = first_number(style["column-gap"]), first_number(style["column-width"])
        gap = gap if style["column-gap"] != "normal" else first_number(style["font-size"])
        width = box.width - 2 * (first_number(style["padding-left"]) + first_number(style["border-left-width"])) + gap
        count = int(first_number(style["column-count"])) or max(int(width / max(wide + gap, 1.0)), 1)
        self.pitch = width / count
        self.column, self.last = 0, box.y

    def place(self, box: Box) -> Box:
        """The place of the next line: one that is above the line before begins a column."""
        self.column += box.y < self.last
        self.last = box.y
        return replace(box, x=box.x + self.column * self.pitch)


def font(style: dict[str, str]) -> str:
    """How letters are written (CSS): in their font; as far apart as they are, unless words would be unreadable."""
    parts = [f"{name}:{style[name]}" for name in ("font-style", "font-weight", "font-size", "font-variant-caps")]
    size = first_number(style["font-size"])
    for name in ("letter-spacing", "word-spacing"):
        if _APART[0] * size <= first_number(style[name]) <= _APART[1] * size:
            parts.append(f"{name}:{style[name]}")
    if style["text-align"] == "justify":
        parts.append("white-space:nowrap;text-align-last:justify")
    return ";".join([*parts, f"font-family:{style['font-family']}"])


def turn_of(style: dict[str, str], above: Turn | None) -> Turn | None:
    """The matrix of an element's transforms within that of its ancestors; None where nothing is turned or scaled."""
    turn = above
    if style["zoom"] == "1" and style["rotate"] == style["scale"] == style["transform"] == "none":
        return turn
    for name in ("zoom", "rotate", "scale", "transform"):
        numbers = [float(number) for number in _NUMBER.findall(style[name].partition("(")[2] or style[name])]
        if not numbers or style[name] == "1":
            continue
        if name == "transform":
            row = 4 if len(numbers) == 16 else 2
            own = (numbers[0], numbers[1], numbers[row], numbers[row + 1])
        elif name == "rotate":
            angle = math.radians(numbers[-1])
            own = (math.cos(angle), math.sin(angle), -math.sin(angle), math.cos(angle))
        else:
            own = (numbers[0], 0.0, 0.0, numbers[1 if len(numbers) > 1 else 0])
        if own != (1.0, 0.0, 0.0, 1.0):
            turn = _times(turn, own) if turn else own
    return turn


def _times(outer: Turn, inner: Turn) -> Turn:
    (a, b, c, d), (e, f, g, h) = outer, inner
    return (a * e + c * f, b * e + d * f, a * g + c * h, b * g + d * h)


def first_number(text: str) -> float:
    """Return the first number of a style, 0 where it has none."""
    match = _NUMBER.search(text)
    return float(match.group()) if match else 0.0
