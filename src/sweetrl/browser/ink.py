"""Which lines of text are really to be seen: a line counts when its own colour is found as ink in its place.

Styles alone cannot tell: text may be covered, cut off, moved away, of its background's colour, or painted under a
picture.
"""

from __future__ import annotations

import io
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from sweetrl.browser.facts import Line
from sweetrl.browser.page import Element

if TYPE_CHECKING:
    from PIL import Image

LIMIT = 4000  # lines; a page with more is a bomb
_CONTRAST = 20.0  # Euclidean distance in RGB: less is not to be told apart
_SHARE = 0.004  # of the line's area; a single thin letter in a wide line is about 0.01


def with_texts(png: bytes, elements: Iterable[Element], lines: Iterable[Line]) -> tuple[Element, ...]:
    """Return the elements with the texts whose ink is in the picture; lines of one element are joined by spaces."""
    from PIL import Image

    kept = list(lines)[:LIMIT]
    listed = list(elements)
    if not kept:
        return tuple(listed)
    with Image.open(io.BytesIO(png)) as image:
        picture = image.convert("RGB")
    texts: dict[int, list[str]] = {}
    for line in kept:
        if line.element >= 0 and shows(picture, line):
            texts.setdefault(line.element, []).append(line.text)
    for index, parts in texts.items():
        listed[index] = replace(listed[index], text=" ".join(parts))
    return tuple(listed)


def shows(picture: Image.Image, line: Line) -> bool:
    """Whether the line's place in the RGB `picture` holds ink of the line's colour."""
    import numpy as np

    box = line.box
    top, left = max(int(box.y), 0), max(int(box.x), 0)
    bottom = min(int(box.y + box.height + 0.999), picture.height)
    # Enough of a long line: the cost must not depend on what a page says.
    right = min(int(box.x + box.width + 0.999), left + 400, picture.width)
    if right <= left or bottom <= top:
        return False
    region = np.asarray(picture.crop((left, top, right, bottom)))  # not the whole picture: megabytes
    flat = region.reshape(-1, 3)
    parts = flat.astype(np.uint32)
    values, counts = np.unique(parts[:, 0] << 16 | parts[:, 1] << 8 | parts[:, 2], return_counts=True)
    common = int(values[counts.argmax()])
    paper = np.array([common >> 16, common >> 8 & 255, common & 255], np.float32)
    away = flat.astype(np.float32) - paper
    needed = max(2.0, _SHARE * len(flat))
    if line.clear:
        return bool((np.abs(away).sum(1) > _CONTRAST).sum() >= needed)
    ink = np.asarray(line.color, np.float32) - paper
    contrast = float(np.sqrt((ink * ink).sum()))
    if contrast < _CONTRAST:
        # Nothing but paper; or the ground is a gradient or a picture, and no colour of it is as common as the ink.
        ground = float((np.sqrt((away * away).sum(1)) > _CONTRAST).mean())
        return 0.5 <= ground <= 1 - needed / len(flat)
    along = away @ ink / contrast**2  # 0 on paper, 1 on full ink
    aside = np.sqrt(np.maximum((away * away).sum(1) - (along * contrast) ** 2, 0.0))
    return bool(((along > 0.35) & (along < 1.3) & (aside < 0.35 * contrast + 6)).sum() >= needed)
