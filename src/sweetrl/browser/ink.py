"""What of a page can really be seen, from its pictures: texts, coloured boxes, and things (images, controls).

Styles do not suffice: what they describe may be covered, cut off, masked, filtered, or of its background's colour.
One picture does not, either: lines, borders and patterns have ink of any colour, too. So the same page is painted
without its texts, and without its things, and what changes is what was there.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sweetrl.browser import reading
from sweetrl.browser.facts import Facts, Ground, Line
from sweetrl.browser.page import Box, Element

if TYPE_CHECKING:
    import numpy as np

LIMIT = 4000  # lines; a page with more is a bomb
# Leaves of a page that have a look of their own. What else is an image (by its role, its background) may have content.
THINGS = frozenset(("img", "svg", "video", "canvas", "iframe", "object", "embed", "input", "textarea", "select", "hr"))
_CONTRAST = 20.0  # Euclidean distance in RGB: less is not distinguished
_LEGIBLE = 40.0  # the same for letters and for things; #e8e8e8 on white
_SAMPLES = 100
# Pixels that are looked at, of all lines and of all else; of a gradient once for each step. A page has 11 million, and
# lines lie beside each other: one that needs more is a bomb, and what is behind is not seen.
_MOST = 24_000_000
_PAIRS = 20_000
_SAME = 2.0  # grey levels of each channel
_GROUND = 0.02  # of a box's pixels must have its colour: a box full of other things still has corners
_NEAR = 12.0  # RGB; rounding, and the smoothing of a gradient
_SHARE = 0.004  # of a thing's pixels must change without it
_AGREED = 0.95  # of the words of two renderings
_EDGE = 24  # grey levels from one pixel to the next
_MOVES = (3, 20)  # how often the pixels of a text, and of a control's words, are looked at


@dataclass(frozen=True)
class Pictures:
    """Pictures of one page, of equal size: as it is (pixels, [row, column, channel]); and PNGs without the ink of its
    texts, without its things, and of the sheet on which its lines are written again (sweetrl.browser.reading). What the
    page has none of is None.
    """

    page: np.ndarray
    without_texts: bytes | None = None
    without_things: bytes | None = None
    sheet: bytes | None = None


class _Budget:
    """How many pixels of a page may still be looked at."""

    def __init__(self) -> None:
        self.left = _MOST

    def allows(self, pixels: int) -> bool:
        """Take so many pixels from the budget; False where it is used up."""
        self.left -= pixels
        return self.left >= 0


def is_thing(element: Element) -> bool:
    """Whether the element has a look of its own beside text and background."""
    return element.role == "image" or element.tag in THINGS


def apart(facts: Facts) -> bool:
    """Whether no text stands on or in a thing, so that one picture without both is enough to judge each."""
    things = [ground.box for element, ground in zip(facts.elements, facts.grounds, strict=True) if is_thing(element)]
    if len(things) * len(facts.lines) > _PAIRS:
        return False
    return not any(_meet(line.box, thing) for line in facts.lines for thing in things)


def _meet(a: Box, b: Box) -> bool:
    across = a.x < b.x + b.width + 1 and b.x < a.x + a.width + 1
    return across and a.y < b.y + b.height + 1 and b.y < a.y + a.height + 1


def visible(pictures: Pictures, facts: Facts) -> tuple[tuple[Element, ...], tuple[Box, ...]]:
    """Return the visible elements, with their visible texts and backgrounds; and the places of ink that is no text."""
    picture = pictures.page
    texts, unread = _texts(
        picture, _other(pictures.without_texts, picture), _other(pictures.sheet, picture), facts.lines
    )
    bare = _other(pictures.without_things, picture)
    budget = _Budget()
    listed: list[Element | None] = []
    for index, (element, ground) in enumerate(zip(facts.elements, facts.grounds, strict=True)):
        if is_thing(element) and not _changes(picture, bare, ground.box, budget):
            if element.tag in THINGS:
                listed.append(None)
                continue
            element = replace(element, role="")
        if element.background is not None and not _painted(picture, ground, budget):
            element = replace(element, background=None)
        listed.append(replace(element, text=texts.get(index, "")))
    return _compact(listed), unread


def _compact(listed: list[Element | None]) -> tuple[Element, ...]:
    """Drop what is None (it has no children) and number the parents again."""
    places: list[int] = []
    kept: list[Element] = []
    for element in listed:
        places.append(len(kept))
        if element is not None:
            kept.append(replace(element, parent=places[element.parent] if element.parent >= 0 else -1))
    return tuple(kept)


def _texts(
    picture: np.ndarray, bare: np.ndarray | None, sheet: np.ndarray | None, lines: Sequence[Line]
) -> tuple[dict[int, str], tuple[Box, ...]]:
    """The readable texts, by the index of their element, and the places of ink that is no text.

    A line that goes backwards does not count, nor does a text of which less than half can be read.
    """
    if bare is None or sheet is None:
        return {}, ()
    parts_of = dict[int, list[str]]()
    all_of = dict[int, list[Line]]()
    unread = list[Box]()
    budget = _Budget()
    last = dict[int, Line]()
    before: Line | None = None  # the line before, if all of it is readable
    lines = lines[:LIMIT]
    for line, layer in zip(lines, reading.layers(lines), strict=True):
        at = line.element
        all_of.setdefault(at, []).append(line)
        text = _read(picture, bare, sheet[..., layer], line, budget) if layer >= 0 else ""
        if text is None or (text and at in last and not reading.follows(line, last[at])):
            text = ""
        elif not text or at < 0:
            unread.append(line.box)
            text = ""
        if text:
            last[at] = line
            if line.joined and before is not None and before.element == at:
                parts_of[at][-1] += text
            else:
                parts_of.setdefault(at, []).append(text)
        before = line if text == line.text else None
    texts = {index: " ".join(parts) for index, parts in parts_of.items()}
    for index, text in list(texts.items()):
        if 2 * len(text.split()) < sum(len(line.text.split()) for line in all_of[index]):
            unread += [line.box for line in all_of[index]]
            del texts[index]
    return texts, tuple(unread)


def _read(picture: np.ndarray, bare: np.ndarray, sheet: np.ndarray, line: Line, budget: _Budget) -> str | None:
    """The words of a line whose ink is in the picture, not in `bare`, and as on the sheet; None where it has no ink."""
    import numpy as np

    place = _place(picture, line.place, full=True)
    if not place.size or not budget.allows(place.size // 3 * _MOVES[line.control]):
        return None
    gone = place.astype(np.float32) - _place(bare, line.place, full=True)
    ink = np.sqrt((gone * gone).sum(-1))
    if (ink <= _LEGIBLE).all():
        return None
    ink[ink <= _CONTRAST] = 0
    drawn = 255 - _place(sheet, line.place, full=True).astype(np.float32)
    seen = min(1.0, (place.shape[1] + 2) / line.place.width)
    return reading.legible(ink, drawn, line, seen, _LEGIBLE)


def glance(picture: np.ndarray, facts: Facts) -> Counter[str]:
    """Count the words in whose lines' places there is anything, and, as "", the page's edges: what a page shows."""
    import numpy as np
    from PIL import Image

    grey = np.asarray(Image.fromarray(picture).convert("L"))
    edges = np.zeros(grey.shape, bool)
    edges[:, 1:] = np.maximum(grey[:, 1:], grey[:, :-1]) - np.minimum(grey[:, 1:], grey[:, :-1]) >= _EDGE
    budget, shown = _Budget(), Counter[str]({"": int(edges.sum())})
    for line in facts.lines[:LIMIT]:
        place = _place(edges, line.box, full=True)
        if line.element >= 0 and budget.allows(place.size) and place.any():
            shown.update(line.text.split())
    return shown


def agree(first: Counter[str], second: Counter[str]) -> bool:
    """Whether two renderings (see `glance`) show nearly the same words, and neither has twice the other's edges."""
    fewer, more = sorted((first[""], second[""]))
    common, total = (first & second).total() - fewer, first.total() + second.total() - fewer - more
    return 2 * fewer >= more and 2 * common >= _AGREED * total


def _other(png: bytes | None, picture: np.ndarray) -> np.ndarray | None:
    """Open a second picture of the page; None where there is none, or one of another size (the page grew with it)."""
    other = pixels(png) if png is not None else None
    return other if other is not None and other.shape == picture.shape else None


def pixels(png: bytes) -> np.ndarray:
    """The pixels of a picture, [row, column, channel]."""
    import numpy as np
    from PIL import Image

    with Image.open(io.BytesIO(png)) as image:
        return np.asarray(image.convert("RGB"))


def _place(picture: np.ndarray, box: Box, full: bool = False) -> np.ndarray:
    """The part of a picture in a box: in `full`, or about `_SAMPLES` rows and columns of it.

    Nothing is copied: the cost must not depend on what a page says, or on how large it is.
    """
    height, width = picture.shape[:2]
    left, top = max(int(box.x), 0), max(int(box.y), 0)
    right = min(int(box.x + box.width + 0.999), width)
    bottom = min(int(box.y + box.height + 0.999), height)
    if right <= left or bottom <= top:
        return picture[:0, :0]
    if full:
        return picture[top:bottom, left:right]
    down, across = max((bottom - top) // _SAMPLES, 1), max((right - left) // _SAMPLES, 1)
    return picture[top:bottom:down, left:right:across]


def _flat(place: np.ndarray) -> np.ndarray:
    """The pixels of a place (n x 3, float32)."""
    import numpy as np

    return place.reshape(-1, 3).astype(np.float32)


def _changes(picture: np.ndarray, bare: np.ndarray | None, box: Box, budget: _Budget) -> bool:
    """Whether enough of a place looks different in `bare`."""
    import numpy as np

    place = _place(picture, box)
    if bare is None or not budget.allows(place.size // 3):
        return False
    before = _flat(place)
    gone = before - _flat(_place(bare, box))
    return bool((np.sqrt((gone * gone).sum(1)) > _LEGIBLE).sum() >= max(2.0, _SHARE * len(before)))


def _painted(picture: np.ndarray, ground: Ground, budget: _Budget) -> bool:
    """Whether enough of the box has its colour, or one on the way from one colour of its gradient to the next."""
    import numpy as np

    place = _place(picture, ground.box)
    if not place.size or not budget.allows(place.size // 3 * max(len(ground.colors) - 1, 1)):
        return False
    pixels = _flat(place)
    stops = [np.asarray(color, np.float32) for color in ground.colors]
    behind = np.asarray(ground.behind, np.float32)
    if all(np.abs(stop - behind).max() <= _SAME for stop in stops):
        return True  # it claims nothing that anybody could see
    near = np.zeros(len(pixels), bool)
    for start, end in zip(stops, stops[1:] or stops, strict=False):
        along = end - start
        length = float(along @ along)
        share = np.clip((pixels - start) @ along / length, 0, 1) if length else np.zeros(len(pixels), np.float32)
        apart = pixels - start - share[:, None] * along
        near |= (apart * apart).sum(1) <= _NEAR**2
    if len(stops) > 1:  # a gradient that ends in what is behind would be seen everywhere
        other = pixels - behind
        near &= (other * other).sum(1) > _NEAR**2 / 4
    else:  # a box that is nearly of the colour behind it must be nearer to its own
        own, other = pixels - stops[0], pixels - behind
        near &= (own * own).sum(1) < (other * other).sum(1)
    return bool(near.sum() >= max(1.0, _GROUND * len(pixels)))
