"""Whether the words of a line can be read: its ink must look like its words, written once more by the browser itself.

Clipping, masks, mirrors, turned or overprinted letters hide in too many properties to judge them by styles. So all
lines are written again on a white sheet of the same size: upright, letter behind letter, at the same places, in the
same fonts, and nothing over them. Where the inks of page and sheet are not alike, the word is unreadable.
"""

from __future__ import annotations

import html
import unicodedata
from collections.abc import Sequence
from typing import TYPE_CHECKING

from sweetrl.browser.facts import Line
from sweetrl.browser.lettering import Turn

if TYPE_CHECKING:
    import numpy as np

_SURE = 0.93  # correlation of a line's ink with the sheet's: all of its words are there
_ALIKE = 0.78  # the same for a single word; nearly all words of real pages have more than 0.97
_INK = 60.0  # grey levels of letters on the sheet
_ORDERS = dict.fromkeys((*range(0x202A, 0x202F), *range(0x2066, 0x206A)))  # characters that turn the order of others
_CELL = (8, 4)  # CSS pixels, down and across, in which lines are over each other
_STEEPEST = 0.35  # of lines that are turned: about 20 degrees


def layers(lines: Sequence[Line]) -> list[int]:
    """Return each line's layer: lines over each other have different ones of the sheet's three colour channels.

    -1 stands for a fourth line in the same place: nobody reads it.
    """
    import numpy as np

    height = max((line.box.y + line.box.height for line in lines), default=0.0)
    width = max((line.box.x + line.box.width for line in lines), default=0.0)
    taken = np.zeros((int(height) // _CELL[0] + 1, int(width) // _CELL[1] + 1), np.uint8)
    result = list[int]()
    for line in lines:
        box, margin = line.box, line.box.height / 6  # lines may touch
        top, bottom = int(box.y + margin) // _CELL[0], int(box.y + box.height - margin) // _CELL[0]
        left, right = int(box.x) // _CELL[1], int(box.x + box.width - 1) // _CELL[1]
        place = taken[top : bottom + 1, left : right + 1]
        used = int(np.bitwise_or.reduce(place, axis=None))
        layer = next((channel for channel in range(3) if not used >> channel & 1), -1)
        if layer >= 0:
            place |= 1 << layer
        result.append(layer)
    return result


def sheet(lines: Sequence[Line], width: int, height: int) -> str:
    """Return the page (HTML) on which the lines are written again, `width` x `height` CSS pixels."""
    parts = [
        f"<!doctype html><style>html{{overflow:hidden}}body{{margin:0;width:{width}px;height:{height}px;"
        "position:relative;overflow:hidden}p{position:absolute;margin:0;white-space:pre;unicode-bidi:plaintext;color:#0ff}"
        ".l1{color:#f0f;mix-blend-mode:multiply}.l2{color:#ff0;mix-blend-mode:multiply}</style>"
    ]
    for line, layer in zip(lines, layers(lines), strict=True):
        if layer < 0:
            continue
        place, text = line.place, html.escape(line.letters.translate(_ORDERS))
        style = html.escape(line.style)
        if line.turn and _upright(line.turn):
            left, top = place.x + place.width / 2, place.y + place.height / 2
            turn = "transform:translate(-50%,-50%) matrix({},{},{},{},0,0)".format(*line.turn)
            parts.append(f'<p class=l{layer} style="left:{left}px;top:{top}px;{turn};{style}">{text}</p>')
        else:
            across = line.box.width if line.control else place.width
            where = f"left:{place.x}px;top:{place.y}px;width:{across}px;line-height:{place.height}px"
            parts.append(f'<p class=l{layer} style="{where};{style}">{text}</p>')
    return "".join(parts)


def _upright(turn: Turn) -> bool:
    a, b, c, d = turn
    return a > 0 and d > 0 and abs(b) <= _STEEPEST * a and abs(c) <= _STEEPEST * d


def legible(ink: np.ndarray, drawn: np.ndarray, line: Line, seen: float, contrast: float) -> str:
    """Return the line's readable words.

    `ink` and `drawn` are the ink of the page and of the sheet (rows x columns, float32) in the line's place, `seen` is
    the share of the line that is in the picture at all. Ink of less than `contrast` cannot be read.
    """
    import numpy as np

    reach = (2, 6) if line.control else (1, 1)
    if _alike(ink, drawn, reach) >= _SURE and seen == 1.0:
        return line.text
    words = line.text.split()
    cut = len(words) - int(seen * len(words) + 0.01)
    words = words[cut:] if line.place.x < 0 else words[: len(words) - cut]
    columns = np.flatnonzero((drawn > _INK).any(0))
    if not words or len(columns) < len(words):
        return ""
    gaps = np.diff(columns)
    cuts = np.sort(np.argsort(-gaps, kind="stable")[: len(words) - 1])
    starts, ends = [columns[0], *columns[cuts + 1]], [*columns[cuts], columns[-1]]
    return " ".join(
        word
        for word, start, end in zip(words, starts, ends, strict=True)
        if (ink[:, start : end + 1] > contrast).any()
        and _alike(ink[:, start : end + 1], drawn[:, start : end + 1], reach) >= _ALIKE
    )


def follows(line: Line, before: Line) -> bool:
    """Whether a line is read after another: it stands below or to its right; in right-to-left scripts, anywhere."""
    this, last = line.place, before.place
    if this.y + this.height / 2 > last.y + last.height or this.x > last.x + last.width - 2:
        return True
    return any(unicodedata.bidirectional(letter) in ("R", "AL") for letter in line.text + before.text)


def _alike(ink: np.ndarray, drawn: np.ndarray, reach: tuple[int, int]) -> float:
    """The correlation of two inks, the best over moves of at most `reach` rows and columns."""
    best = _correlation(ink, drawn)
    if best >= _SURE:
        return best
    rows, columns = ink.shape
    for down in range(-reach[0], reach[0] + 1):
        for across in range(-reach[1], reach[1] + 1):
            if abs(down) < rows and abs(across) < columns:
                moved = ink[max(down, 0) : rows + min(down, 0), max(across, 0) : columns + min(across, 0)]
                onto = drawn[max(-down, 0) : rows + min(-down, 0), max(-across, 0) : columns + min(-across, 0)]
                best = max(best, _correlation(moved, onto))
    return best


def _correlation(x: np.ndarray, y: np.ndarray) -> float:
    x, y = x - x.mean(), y - y.mean()
    variances = float((x * x).sum()) * float((y * y).sum())
    return float((x * y).sum()) / variances**0.5 if variances > 0 else 0.0
