"""The colours of a page by place, pictures left out: from its screenshot, or painted from the DOM where there is none.

Every `STEP`-th pixel in both directions is looked at. What a picture (role `image`) covers has no colour: nobody means
the photograph when they say "the header is blue".
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from sweetrl.browser.page import Box, Page
from sweetrl.frontend.colors import Rgb

if TYPE_CHECKING:
    import numpy

STEP = 4
# The most frequent colour of a region is its colour if it has this share of what is not a picture; else it is mottled.
SHARE = 0.35
# What the renderer draws for pictures of the web (sweetrl.browser.placeholders), also where CSS paints them.
DRAWN = ((184, 192, 204), (141, 152, 168))
# A region that pictures cover but for this share has no colour of its own.
VISIBLE = 0.12


class Canvas:
    """The colours of `page`: `color(box)` for a region, `share(color)` for all of it."""

    def __init__(self, page: Page) -> None:
        self.width, self.height = page.width, page.height
        self._codes: numpy.ndarray = _screenshot(page) if page.png else _painted(page)
        for element in page.elements:
            if element.role == "image":
                self._codes[_window(element.box)] = -1
        for color in DRAWN:
            self._codes[self._codes == _code(color)] = -1

    def color(self, box: Box) -> Rgb | None:
        """Return the colour that most of the box has; None for a picture, a gradient or nothing."""
        counts = self._count(box)
        return counts[0][0] if counts and counts[0][1] >= SHARE else None

    def share(self, color: Rgb) -> float:
        """Return which share of the page (without pictures) has exactly this colour."""
        return dict(self._count(Box(0, 0, self.width, self.height))).get(color, 0.0)

    def _count(self, box: Box) -> list[tuple[Rgb, float]]:
        """The five most frequent colours of a box with their shares, most frequent first."""
        import numpy

        region = self._codes[_window(box)]
        seen = region[region >= 0]
        if seen.size == 0 or seen.size < VISIBLE * region.size:
            return []
        codes, counts = numpy.unique(seen, return_counts=True)
        order = numpy.argsort(-counts, kind="stable")[:5]
        shares = ((int(codes[index]), float(counts[index] / seen.size)) for index in order)
        return [((code >> 16, code >> 8 & 255, code & 255), share) for code, share in shares]


def _screenshot(page: Page) -> numpy.ndarray:
    """Packed colours of every STEP-th pixel, (height / STEP, width / STEP)."""
    import numpy
    from PIL import Image

    with Image.open(io.BytesIO(page.png)) as picture:
        pixels = numpy.asarray(picture.convert("RGB"))[STEP // 2 :: STEP, STEP // 2 :: STEP].astype(numpy.int32)
    return pixels[..., 0] << 16 | pixels[..., 1] << 8 | pixels[..., 2]


def _painted(page: Page) -> numpy.ndarray:
    """The same from the DOM: backgrounds one over the other in document order."""
    import numpy

    codes = numpy.full((-(-page.height // STEP), -(-page.width // STEP)), _code(page.background), dtype=numpy.int32)
    for element in page.elements:
        if element.background is not None:
            codes[_window(element.box)] = _code(element.background)
    return codes


def _window(box: Box) -> tuple[slice, slice]:
    def span(start: float, length: float) -> slice:
        first = max(0, round(start / STEP))
        return slice(first, max(first, round((start + length) / STEP)))

    return span(box.y, box.height), span(box.x, box.width)


def _code(color: Rgb) -> int:
    return color[0] << 16 | color[1] << 8 | color[2]
