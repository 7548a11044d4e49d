"""The `layout` reward: how alike two rendered pages are, from their pixels and their elements. No model, no randomness.

    layout = min(1, 4 F) * (0.3 P + 0.3 G + 0.4 T)

F is the F1 of edges within 8 CSS pixels; P the pixel part (edges, colours of blocks weighted by ink, palette, a coarse
grid of colours); G the optimal matching of text blocks and boxes by place, size and looks; T the same with the words.
Colours are compared in CIELAB. Text that cannot be seen is not part of a Page's elements, so it does not count.
"""

from __future__ import annotations

import io
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache, reduce
from itertools import zip_longest
from typing import TYPE_CHECKING

from sweetrl.browser.page import Box, Element, Page

if TYPE_CHECKING:
    import numpy as np

REDUCE = 2  # CSS pixels of a pixel that is compared
BLOCK = 16  # of those in a block
GRID = 8  # cells a side of the coarse grid, over the whole page
_EDGE = 8  # grey levels between reduced pixels
_SEEN = 40.0  # distance in RGB between the page's own pixels there: paler ink has edges that nobody sees
_TOLERANCE = 4  # reduced pixels that an edge may be away
_FAR = 40.0  # CIELAB distance at which two colours have nothing in common
_MOST = 160  # items of one kind; beyond, the largest count
_CONTROLS = ("input", "textarea", "select", "hr", "iframe")


@dataclass(frozen=True)
class Item:
    """A text block or a box, as it is matched: what it weighs, how it looks, and its words' trigrams."""

    box: Box
    weight: float
    color: tuple[float, float, float]
    font_size: float
    bold: bool
    role: str
    grams: Counter[str] | None


@dataclass(frozen=True, eq=False)
class Features:
    """What is compared of a page. Arrays are indexed [row, column]; `blocks` and `grid` are CIELAB."""

    edges: np.ndarray  # bool, reduced pixels
    near: np.ndarray  # bool: an edge within the tolerance
    blocks: np.ndarray  # float32, rows x columns x 3
    ink: np.ndarray  # float32, rows x columns: share of edge pixels
    grid: np.ndarray  # float32, GRID x GRID x 3
    palette: tuple[np.ndarray, np.ndarray]  # colours (n x 3, CIELAB) and their shares
    background: tuple[float, float, float]  # CIELAB
    texts: tuple[Item, ...]
    boxes: tuple[Item, ...]


@dataclass(frozen=True)
class Parts:
    """The score and what it is made of, each in [0, 1]."""

    score: float
    edges: float
    pixel: float
    geometry: float
    text: float


def similarity(answer: Page, reference: Page) -> Parts:
    """Compare two pages; 1 for those that look equal, 0 where one was not rendered or is empty.

    Where the answer shows something else in another view, it is compared there, too, with the reference in that view,
    and the lowest score stands.
    """
    others = zip_longest(answer.others, reference.others)
    pairs = [(view, other or reference) for view, other in others if view is not None]
    return min((_compare(*pair) for pair in [(answer, reference), *pairs]), key=lambda parts: parts.score)


def _compare(answer: Page, reference: Page) -> Parts:
    if answer.status in ("timeout", "bad"):
        return Parts(0.0, 0.0, 0.0, 0.0, 0.0)
    if answer.png == reference.png:  # however it is written: nobody sees tags
        return Parts(1.0, 1.0, 1.0, 1.0, 1.0)
    a, b = features(answer), features(reference)
    edges = _edge_f1(a, b)
    pixel = 0.4 * edges + 0.3 * _blocks(a, b) + 0.15 * _palettes(a, b) + 0.15 * _grids(a, b)
    geometry = _elements(a, b, words=False)
    text = _elements(a, b, words=True)
    score = min(1.0, 4 * edges) * (0.3 * pixel + 0.3 * geometry + 0.4 * text)
    return Parts(round(float(score), 6), edges, pixel, geometry, text)


@lru_cache(maxsize=128)
def features(page: Page) -> Features:
    """Return what is compared of a page; kept for the pages seen last, since a reference is met again and again."""
    import numpy as np
    from PIL import Image
    from scipy.ndimage import maximum_filter

    with Image.open(io.BytesIO(page.png)) as image:
        full = image.convert("RGB")
    small = full.reduce(REDUCE)
    rgb = np.asarray(small)
    edges = _edges(np.asarray(small.convert("L")), np.asarray(full))
    for box in page.unread:
        over = max(4.0, box.height / 2)  # letters stand out of their line
        left, top = (max(0, int(start - over)) // REDUCE for start in (box.x, box.y))
        right, bottom = (int(end + over) // REDUCE for end in (box.x + box.width, box.y + box.height))
        edges[top : bottom + 1, left : right + 1] = False
    near = maximum_filter(edges.view(np.uint8), size=2 * _TOLERANCE + 1, mode="constant").view(bool)
    quantised = (rgb[::2, ::2] >> 4).reshape(-1, 3).astype(np.int32)
    codes, counts = np.unique(quantised @ np.array([256, 16, 1]), return_counts=True)
    most = np.argsort(-counts, kind="stable")[:24]
    centres = np.stack([codes[most] >> 8, codes[most] >> 4 & 15, codes[most] & 15], 1) * 16 + 8
    shares = np.sqrt(counts[most])  # else the background is all there is
    texts, boxes = _items(page)
    return Features(
        edges=edges,
        near=near,
        blocks=_lab(_block_means(rgb)),
        ink=_block_means(edges[..., None].astype(np.uint8) * 255)[..., 0] / 255,
        grid=_lab(np.asarray(small.resize((GRID, GRID), Image.Resampling.BOX)).astype(np.float32)),
        palette=(_lab(centres.astype(np.float32)), shares / shares.sum()),
        background=_lab_of(page.background),
        texts=texts,
        boxes=boxes,
    )


def _edges(grey: np.ndarray, full: np.ndarray) -> np.ndarray:
    """Where the reduced picture changes from a pixel to the next, and the picture of full size has a contrast."""
    import numpy as np

    height, width = grey.shape
    missing = ((0, height * REDUCE - full.shape[0]), (0, width * REDUCE - full.shape[1]), (0, 0))
    padded = np.pad(full, missing, mode="edge")
    parts = [padded[row::REDUCE, column::REDUCE] for row in range(REDUCE) for column in range(REDUCE)]
    lightest, darkest = reduce(np.maximum, parts), reduce(np.minimum, parts)
    levels = grey.astype(np.int16)
    edges = np.zeros(grey.shape, bool)
    for here, before in ((np.s_[:, 1:], np.s_[:, :-1]), (np.s_[1:], np.s_[:-1])):
        changes = np.abs(levels[here] - levels[before]) >= _EDGE
        lights = np.maximum(lightest[here][changes], lightest[before][changes]).astype(np.int32)
        apart = lights - np.minimum(darkest[here][changes], darkest[before][changes])
        edges[here][changes] |= (apart**2).sum(-1) > _SEEN**2
    return edges


def _edge_f1(a: Features, b: Features) -> float:
    """F1 of edge pixels: precision and recall are the shares of a page's edges that lie near an edge of the other's."""
    edges_a, edges_b = int(a.edges.sum()), int(b.edges.sum())
    if not edges_a or not edges_b:
        return 1.0 if edges_a == edges_b else 0.0
    rows = min(len(a.edges), len(b.edges))
    columns = min(a.edges.shape[1], b.edges.shape[1])
    near_b = int((a.edges[:rows, :columns] & b.near[:rows, :columns]).sum())
    near_a = int((b.edges[:rows, :columns] & a.near[:rows, :columns]).sum())
    precision, recall = near_b / edges_a, near_a / edges_b
    return 2 * precision * recall / (precision + recall) if precision + recall else 0.0


def _blocks(a: Features, b: Features) -> float:
    """Colour of blocks, weighted by the ink that either page has there; below its end a page is its background."""
    import numpy as np

    rows = max(len(a.blocks), len(b.blocks))
    columns = min(a.blocks.shape[1], b.blocks.shape[1])

    def filled(page: Features) -> tuple[np.ndarray, np.ndarray]:
        missing = rows - len(page.blocks)
        below = np.broadcast_to(np.asarray(page.background, np.float32), (missing, columns, 3))
        ink = np.concatenate([page.ink[:, :columns], np.zeros((missing, columns), np.float32)])
        return np.concatenate([page.blocks[:, :columns], below]), ink

    (blocks_a, ink_a), (blocks_b, ink_b) = filled(a), filled(b)
    weights = np.maximum(ink_a, ink_b) + 0.02
    alike = _closeness(np.sqrt(((blocks_a - blocks_b) ** 2).sum(-1)))
    same_ink = 1 - np.abs(ink_a - ink_b) / (np.maximum(ink_a, ink_b) + 1e-3)
    return float((weights * alike * (0.5 + 0.5 * same_ink)).sum() / weights.sum())


def _palettes(a: Features, b: Features) -> float:
    """Closeness of each colour to the nearest of the other page, weighted by its share; the mean of both ways."""
    import numpy as np

    (colors_a, shares_a), (colors_b, shares_b) = a.palette, b.palette
    apart = np.sqrt(((colors_a[:, None] - colors_b[None]) ** 2).sum(-1))
    close = _closeness(2 * apart) * np.minimum(1.0, shares_b[None] / shares_a[:, None])
    back = _closeness(2 * apart) * np.minimum(1.0, shares_a[:, None] / shares_b[None])
    return float((close.max(1) * shares_a).sum() + (back.max(0) * shares_b).sum()) / 2


def _grids(a: Features, b: Features) -> float:
    import numpy as np

    return float(_closeness(2 * np.sqrt(((a.grid - b.grid) ** 2).sum(-1))).mean())


def _elements(a: Features, b: Features, words: bool) -> float:
    """The match of texts and that of boxes, in a mean weighted by what there is of each."""
    total = score = 0.0
    for first, second in ((a.texts, b.texts), (a.boxes, b.boxes)):
        weight = sum(item.weight for item in first) + sum(item.weight for item in second)
        total += weight
        score += weight * _match(first, second, words)
    return score / total if total else 1.0


def _match(first: tuple[Item, ...], second: tuple[Item, ...], words: bool) -> float:
    """2 * sum of matched weight times likeness, over the weight of both: an F1 with an optimal one-to-one matching."""
    import numpy as np
    from scipy.optimize import linear_sum_assignment

    if not first or not second:
        return 1.0 if len(first) == len(second) else 0.0
    likeness = _likeness(first, second)
    if words:
        likeness = likeness * np.array([[_words(a.grams, b.grams) for b in second] for a in first], np.float32)
    weights_a = np.array([item.weight for item in first])
    weights_b = np.array([item.weight for item in second])
    gain = likeness * (weights_a[:, None] + weights_b[None])
    rows, columns = linear_sum_assignment(gain, maximize=True)
    return float(gain[rows, columns].sum() / (weights_a.sum() + weights_b.sum()))


def _likeness(first: tuple[Item, ...], second: tuple[Item, ...]) -> np.ndarray:
    """How alike two items are (len(first) x len(second)): place, size, colour, and kind."""
    import numpy as np

    def columns(items: tuple[Item, ...]) -> np.ndarray:
        return np.array(
            [
                (item.box.x, item.box.y, item.box.width, item.box.height, item.font_size, item.bold, *item.color)
                for item in items
            ],
            np.float64,
        )

    a, b = columns(first)[:, None], columns(second)[None]
    across = np.minimum(np.abs(a[..., 0] - b[..., 0]), np.abs(a[..., 0] + a[..., 2] / 2 - b[..., 0] - b[..., 2] / 2))
    down = np.abs(a[..., 1] - b[..., 1])
    place = np.exp(-across / 250 - down / 250)
    ratio = np.minimum(a[..., 2:5], b[..., 2:5]) / np.maximum(np.maximum(a[..., 2:5], b[..., 2:5]), 1e-6)
    ratio[(a[..., 2:5] == 0) & (b[..., 2:5] == 0)] = 1.0
    size = (ratio[..., 0] * ratio[..., 1] * ratio[..., 2]) ** 0.5
    color = _closeness(np.sqrt(((a[..., 6:9] - b[..., 6:9]) ** 2).sum(-1)))
    kind = np.array([[1.0 if x.role == y.role else 0.6 for y in second] for x in first])
    kind = np.where(a[..., 5] == b[..., 5], kind, 0.8 * kind)
    return place * (0.4 + 0.6 * size) * (0.4 + 0.6 * color) * kind


def _words(a: Counter[str] | None, b: Counter[str] | None) -> float:
    """Dice coefficient of character trigrams; boxes have no words of their own and pass."""
    if a is None or b is None:
        return 1.0
    total = a.total() + b.total()
    return 2 * (a & b).total() / total if total else 1.0


def _items(page: Page) -> tuple[tuple[Item, ...], tuple[Item, ...]]:
    """The text blocks and the visible boxes of a page, the heaviest of each."""
    texts: list[Item] = []
    boxes: list[Item] = []
    behind = _behind(page)
    for element, under in zip(page.elements, behind, strict=True):
        box = element.box
        if element.text:
            weight = min(len(element.text), 400) ** 0.5 * max(element.font_size, 1.0) / 16
            texts.append(_item(element, weight, _lab_of(element.color), _grams(element.text)))
        painted = element.background is not None and _distance(element.background, under) >= 2.5
        if painted or element.role == "image" or element.tag in _CONTROLS:
            area = max(box.width, 1.0) * max(min(box.height, page.height), 1.0)
            color = _lab_of(element.background if element.background is not None and painted else under)
            boxes.append(_item(element, area**0.5 / 100, color, None))
    return _heaviest(texts), _heaviest(boxes)


def _item(element: Element, weight: float, color: tuple[float, float, float], grams: Counter[str] | None) -> Item:
    kind: str = element.role if element.role in ("image", "button", "heading") else ""
    if grams is not None:
        return Item(element.box, weight, color, element.font_size, element.bold, kind, grams)
    return Item(element.box, weight, color, 0.0, False, element.tag if element.tag in _CONTROLS else kind, None)


def _behind(page: Page) -> list[tuple[int, int, int]]:
    """For each element the colour that its nearest painted ancestor leaves behind it."""
    colors: list[tuple[int, int, int]] = []
    for element in page.elements:
        if element.parent < 0:
            colors.append(page.background)
        else:
            colors.append(page.elements[element.parent].background or colors[element.parent])
    return colors


def _heaviest(items: list[Item]) -> tuple[Item, ...]:
    if len(items) <= _MOST:
        return tuple(items)
    return tuple(sorted(items, key=lambda item: (-item.weight, item.box.y, item.box.x))[:_MOST])


def _grams(text: str) -> Counter[str]:
    padded = f" {text.lower()[:2000]} "
    return Counter(padded[at : at + 3] for at in range(len(padded) - 2))


def _closeness(distance: np.ndarray) -> np.ndarray:
    import numpy as np

    return np.maximum(0.0, 1 - distance / _FAR)


def _block_means(pixels: np.ndarray) -> np.ndarray:
    """Mean of BLOCK x BLOCK pixels (float32); the last row and column are padded with what they end with."""
    import numpy as np

    rows, columns = (-pixels.shape[0] % BLOCK, -pixels.shape[1] % BLOCK)
    padded = np.pad(pixels, ((0, rows), (0, columns), (0, 0)), mode="edge")
    shape = (padded.shape[0] // BLOCK, BLOCK, padded.shape[1] // BLOCK, BLOCK, padded.shape[2])
    return padded.reshape(shape).mean((1, 3), dtype=np.float32)


def _lab(rgb: np.ndarray) -> np.ndarray:
    """CIELAB (D65) of sRGB values in 0..255, over the last axis."""
    import numpy as np

    unit = np.asarray(rgb, np.float32) / 255
    linear = np.where(unit <= 0.04045, unit / 12.92, ((unit + 0.055) / 1.055) ** 2.4)
    to_xyz = np.array(
        [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.072175], [0.0193339, 0.119192, 0.9503041]]
    )
    xyz = linear @ to_xyz.T / np.array([0.95047, 1.0, 1.08883])
    root = np.where(xyz > 216 / 24389, np.cbrt(xyz), (24389 / 27 * xyz + 16) / 116)
    light, green, blue = root[..., 1], root[..., 0] - root[..., 1], root[..., 1] - root[..., 2]
    return np.stack([116 * light - 16, 500 * green, 200 * blue], -1).astype(np.float32)


@lru_cache(maxsize=4096)
def _lab_of(color: tuple[int, int, int]) -> tuple[float, float, float]:
    import numpy as np

    light, green, blue = (float(axis) for axis in _lab(np.asarray(color)))
    return (light, green, blue)


def _distance(color: tuple[int, int, int], other: tuple[int, int, int]) -> float:
    return sum((a - b) ** 2 for a, b in zip(_lab_of(color), _lab_of(other), strict=True)) ** 0.5
