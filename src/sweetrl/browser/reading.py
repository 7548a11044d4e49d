"""Whether the words of a line can be read: its ink must look like its words, written once more by the browser itself.

Styles tell of clipping, masks, mirrors, turned or overprinted letters only to whoever knows every property. So all
lines are written again on a white sheet of the same size: upright, letter behind letter, at the same places, in the
same fonts, and nothing over them. Where the ink of the page and that of the sheet are not alike, nobody reads the word.
"""

from __future__ import annotations

import html
from collections.abc import Iterable
from typing import TYPE_CHECKING

from sweetrl.browser.facts import Line, Turn
from sweetrl.browser.page import Box

if TYPE_CHECKING:
    import numpy as np

_SURE = 0.9  # correlation of a whole line's ink with the sheet's: all of its words are there
_ALIKE = 0.75  # the same of one word
_INK = 60.0  # grey levels of letters on the sheet
_STEEPEST = 0.35  # of lines that are turned: about 20 degrees


def sheet(lines: Iterable[Line], width: int, height: int) -> str:
    """Return the page (HTML) on which the lines are written again, `width` x `height` CSS pixels."""
    parts = [
        f"<!doctype html><style>html{{overflow:hidden}}body{{margin:0;width:{width}px;height:{height}px;"
        "position:relative;overflow:hidden}p{position:absolute;margin:0;white-space:pre;unicode-bidi:plaintext}</style>"
    ]
    for line in lines:
        place, text = line.place, html.escape(line.letters)
        style = html.escape(line.style)
        if line.turn and _upright(line.turn):
            left, top = place.x + place.width / 2, place.y + place.height / 2
            turn = "transform:translate(-50%,-50%) matrix({},{},{},{},0,0)".format(*line.turn)
            parts.append(f'<p style="left:{left}px;top:{top}px;{turn};{style}">{text}</p>')
        else:
            where = f"left:{place.x}px;top:{place.y}px;width:{place.width}px;line-height:{place.height}px"
            parts.append(f'<p style="{where};{style}">{text}</p>')
    return "".join(parts)


def _upright(turn: Turn) -> bool:
    a, b, c, d = turn
    return a > 0 and d > 0 and abs(b) <= _STEEPEST * a and abs(c) <= _STEEPEST * d


def legible(ink: np.ndarray, drawn: np.ndarray, line: Line, seen: float, contrast: float) -> str:
    """Return the words of the line that can be read; none where that is less than half of them.

    `ink` and `drawn` are the ink of the page and of the sheet (rows x columns, float32) in the line's place, `seen` is
    the share of the line that is in the picture at all. Ink of less than `contrast` is read by nobody.
    """
    import numpy as np

    reach = (2, 6) if line.control else (1, 1)
    if _alike(ink, drawn, reach) >= _SURE and seen == 1.0:
        return line.text
    words = line.text.split()
    half, cut = len(words) / 2, len(words) - int(seen * len(words) + 0.01)
    words = words[cut:] if line.place.x < 0 else words[: len(words) - cut]
    columns = np.flatnonzero((drawn > _INK).any(0))
    if not words or len(columns) < len(words):
        return ""
    gaps = np.diff(columns)
    cuts = np.sort(np.argsort(-gaps, kind="stable")[: len(words) - 1])
    starts, ends = [columns[0], *columns[cuts + 1]], [*columns[cuts], columns[-1]]
    read = [
        word
        for word, start, end in zip(words, starts, ends, strict=True)
        if (ink[:, start : end + 1] > contrast).any()
        and _alike(ink[:, start : end + 1], drawn[:, start : end + 1], reach) >= _ALIKE
    ]
    return " ".join(read) if len(read) >= half else ""


def follows(box: Box, before: Box, text: str) -> bool:
    """Whether the line at `box` is read after the one at `before`: to its right, or below."""
    return box.y + box.height / 2 > before.y + before.height or box.x > before.x + before.width - 2


def _alike(ink: np.ndarray, drawn: np.ndarray, reach: tuple[int, int]) -> float:
    """The correlation of two inks, the best over moves of at most `reach` rows and columns."""
    best = _correlation(ink, drawn)
    if best >= _SURE:
        return best
    rows, columns = ink.shape
    for down in range(-reach[0], reach[0] + 1):
        for across in range(-reach[1], reach[1] + 1):
            one = ink[max(down, 0) : rows + min(down, 0), max(across, 0) : columns + min(across, 0)]
            two = drawn[max(-down, 0) : rows + min(-down, 0), max(-across, 0) : columns + min(-across, 0)]
            if one.size:
                best = max(best, _correlation(one, two))
    return best


def _correlation(one: np.ndarray, two: np.ndarray) -> float:
    one, two = one - one.mean(), two - two.mean()
    both = float((one * one).sum()) * float((two * two).sum())
    return float((one * two).sum()) / both**0.5 if both > 0 else 0.0
