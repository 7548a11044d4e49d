"""What a user sees on a page: its parts with their places and looks, as far as the page shows them clearly.

What is unclear is None or left out, so that every difference of two outlines is one of the two pages.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import Literal

from sweetrl.browser.page import Align, Box, Element, Page
from sweetrl.frontend.canvas import Canvas
from sweetrl.frontend.colors import Rgb

Kind = Literal["navigation", "header", "footer", "section", "form", "list", "table"]

GROUND_SHARE = 0.08  # of the page, from which on its background colour counts as visible
OFF_CENTRE = 0.04  # of the width, up to which text that stands beside the centre is called centred
NARROW = 0.75  # of the width around it, up to which text is judged by its place; wider text by its alignment


@dataclass(frozen=True)
class Part:
    """One part of a page. `name` is the heading of a section, else empty; None is what the page does not show clearly.

    `columns` is how many equal boxes stand side by side in it (1: none do), `boxes` their colour, `entries` the texts
    in it (see Outline). A form, list or table that is `nested` stands in a section and shares its place and alignment.
    """

    kind: Kind
    name: str
    box: Box
    color: Rgb | None
    align: Align | None
    columns: int
    boxes: Rgb | None = None
    entries: frozenset[str] = frozenset()
    nested: bool = False


@dataclass(frozen=True)
class Button:
    """A button with its words."""

    text: str
    color: Rgb | None


@dataclass(frozen=True)
class Line:
    """A text that stands on the page by itself, as it is written, and where."""

    text: str
    box: Box


@dataclass(frozen=True)
class Outline:
    """A page as a user describes it.

    `texts` is everything that can be read on it, in lower case without marks; `entries` the same text by text. `links`
    are how many texts can be followed. `mixed` are the words of each text in which some stand in an element of their
    own (bold, a link): which of the others come before and which behind is not known, so no such text is in `lines`.
    """

    width: int
    height: int
    ground: Rgb | None
    parts: tuple[Part, ...]
    images: tuple[Box, ...]
    buttons: tuple[Button, ...]
    texts: str
    entries: frozenset[str]
    lines: tuple[Line, ...]
    mixed: tuple[Counter[str], ...]
    links: int

    @property
    def empty(self) -> bool:
        """Whether there is nothing to be seen."""
        return not self.texts and not self.images

    def reads(self, words: Sequence[str]) -> bool:
        """Whether these words can be read on the page one after the other; in doubt they can."""
        counts = Counter(words)
        return f" {' '.join(words)} " in f" {self.texts} " or any(counts <= text for text in self.mixed)

    def first(self, kind: Kind, name: str = "") -> Part | None:
        """Return the first part of a kind (and name), or None."""
        return next((part for part in self.parts if part.kind == kind and (not name or same(part.name, name))), None)

    def sections(self) -> tuple[Part, ...]:
        """Return the parts with headings, in the order of the page."""
        return tuple(part for part in self.parts if part.kind == "section")


def same(text: str, other: str) -> bool:
    """Whether two texts have the same words."""
    return words_of(text) == words_of(other)


def words_of(text: str) -> tuple[str, ...]:
    """Return the words of a text in lower case, without marks."""
    return tuple(re.findall(r"\w+", text.lower()))


_BARS: tuple[tuple[str, Kind], ...] = (("nav", "navigation"), ("header", "header"), ("footer", "footer"))
_INLINE = frozenset(
    ("a", "abbr", "b", "cite", "code", "em", "i", "mark", "q", "s", "small", "span", "strong", "sub", "sup", "u")
)
_NOT_LINES = ("a", "input", "option", "textarea", "select", "label")  # their text has no place of its own
_PIECES: tuple[tuple[str, Kind], ...] = (("form", "form"), ("list", "list"), ("table", "table"))


@lru_cache(maxsize=64)
def outline_of(page: Page) -> Outline:
    """Describe a rendered page."""
    tree = _Tree(page.elements)
    canvas = Canvas(page)
    elements = page.elements
    parts = [_part(tree, canvas, index, kind, "") for role, kind in _BARS for index in tree.outermost(role)[:1]]
    parts += _sections(tree, canvas)
    sections = [part.box for part in parts if part.kind == "section"]
    pieces = [
        _part(tree, canvas, index, kind, "")
        for role, kind in _PIECES
        for index in tree.outermost(role)[:1]
        if not tree.inside(index, "nav", "footer", "header")
    ]
    parts += [replace(part, nested=any(within(part.box, box) for box in sections)) for part in pieces]
    mixed = tree.mixed()
    return Outline(
        width=page.width,
        height=page.height,
        ground=page.background if canvas.share(page.background) >= GROUND_SHARE else None,
        parts=tuple(parts),
        images=tuple(e.box for e in elements if e.role == "image" and min(e.box.width, e.box.height) >= 8),
        buttons=tuple(Button(tree.text(i), canvas.color(e.box)) for i, e in enumerate(elements) if e.role == "button"),
        texts=" ".join(words_of(" ".join(e.text for e in elements))),
        entries=tree.entries(range(len(elements))),
        lines=tuple(Line(e.text, e.box) for i, e in enumerate(elements) if words_of(e.text) and i not in mixed),
        mixed=tuple(mixed.values()),
        links=sum(e.tag == "a" and bool(e.text) for e in elements),
    )


def within(box: Box, other: Box) -> bool:
    """Whether a box lies in another one."""
    return (
        box.x >= other.x - 1
        and box.y >= other.y - 1
        and box.x + box.width <= other.x + other.width + 1
        and box.y + box.height <= other.y + other.height + 1
    )


class _Tree:
    """Elements with their children."""

    def __init__(self, elements: Sequence[Element]) -> None:
        self.elements = elements
        self.children: list[list[int]] = [[] for _ in elements]
        for index, element in enumerate(elements):
            if element.parent >= 0:
                self.children[element.parent].append(index)

    def outermost(self, role: str) -> list[int]:
        """The elements of a role that stand in no other of it, in document order."""
        return [i for i, element in enumerate(self.elements) if element.role == role and not self.inside(i, role)]

    def inside(self, index: int, *roles: str) -> bool:
        """Whether an element stands in one of these roles."""
        above = self.elements[index].parent
        while above >= 0:
            if self.elements[above].role in roles:
                return True
            above = self.elements[above].parent
        return False

    def below(self, index: int) -> list[int]:
        """An element and everything in it, in document order."""
        visited, stack = [], [index]
        while stack:
            current = stack.pop()
            visited.append(current)
            stack.extend(reversed(self.children[current]))
        return visited

    def text(self, index: int) -> str:
        """All text of an element."""
        return " ".join(text for member in self.below(index) if (text := self.elements[member].text))

    def mixed(self) -> dict[int, Counter[str]]:
        """The words of elements with text of their own and text in elements that stand among it."""
        words: dict[int, Counter[str]] = {}
        for index, element in enumerate(self.elements):
            inline = [child for child in self.children[index] if self.elements[child].tag in _INLINE]
            if element.text and any(self.text(child) for child in inline):
                words[index] = Counter(words_of(self.text(index)))
        return words

    def entries(self, members: Iterable[int]) -> frozenset[str]:
        """The texts of elements, each in lower case without marks."""
        return frozenset(" ".join(words_of(self.elements[index].text)) for index in members) - {""}


def _part(tree: _Tree, canvas: Canvas, index: int, kind: Kind, name: str, color: Rgb | None = None) -> Part:
    members = tree.below(index)
    box = tree.elements[index].box
    columns, boxes = _columns(tree, canvas, members) if kind == "section" else (1, None)
    align = _row_align(tree, members, box) if kind == "navigation" else _align(tree, members, index)
    color = canvas.color(box) if kind != "section" else color
    return Part(kind, name, box, color, align, columns, boxes, tree.entries(members))


def _sections(tree: _Tree, canvas: Canvas) -> list[Part]:
    """One part for each heading that opens a section: its container is what holds no other such heading."""
    rank = {"h1": 1, "h2": 2, "h3": 3, "h4": 4, "h5": 5, "h6": 6}
    headings = [
        index
        for index, element in enumerate(tree.elements)
        if element.role == "heading" and element.tag in rank and words_of(tree.text(index))
        if not tree.inside(index, "header", "nav", "footer")
    ]
    if not headings:
        return []
    highest = max(2, min(rank[tree.elements[index].tag] for index in headings))
    openers = [index for index in headings if rank[tree.elements[index].tag] <= highest]
    parts = []
    for index in openers:
        container = index
        while (above := tree.elements[container].parent) >= 0:
            inner = tree.below(above)
            if tree.elements[above].role in ("header", "nav", "footer") or len(set(inner) & set(openers)) > 1:
                break
            if any(tree.elements[member].role in ("header", "nav", "footer") for member in inner):
                break
            container = above
        box = tree.elements[index].box
        behind = canvas.color(Box(box.x - 4, box.y - 4, box.width + 8, box.height + 8))
        parts.append(_part(tree, canvas, container, "section", tree.text(index), behind))
    return parts


def _columns(tree: _Tree, canvas: Canvas, members: Sequence[int]) -> tuple[int, Rgb | None]:
    """How many boxes of one width stand side by side, and their colour; the largest such group counts."""
    best: list[int] = []
    for index in members:
        boxes = [child for child in tree.children[index] if tree.elements[child].box.width >= 80]
        if len(boxes) < 2 or len(boxes) < len(tree.children[index]):
            continue
        first = tree.elements[boxes[0]].box
        alike = all(abs(tree.elements[child].box.width - first.width) <= 0.1 * first.width for child in boxes)
        row = [child for child in boxes if abs(tree.elements[child].box.y - first.y) <= 4]
        apart = all(
            tree.elements[b].box.x >= tree.elements[a].box.x + tree.elements[a].box.width - 2 for a, b in pairwise(row)
        )
        if alike and apart and len(row) >= 2 and len(boxes) > len(best):
            best = row + [child for child in boxes if child not in row]
            count = len(row)
    if not best:
        return 1, None
    colors = {canvas.color(tree.elements[child].box) for child in best}
    return count, next(iter(colors)) if len(colors) == 1 else None


def _align(tree: _Tree, members: Sequence[int], container: int) -> Align | None:
    """Where text stands: where that of nearly all its lines does, each seen in the box around it."""
    weights: dict[Align | None, float] = {}
    for index in members:
        element = tree.elements[index]
        if not element.text or element.role == "button" or element.tag in _NOT_LINES:
            continue
        around = tree.elements[element.parent if index != container and element.parent >= 0 else container].box
        side = _side(element, around)
        weights[side] = weights.get(side, 0.0) + len(element.text) * element.font_size
    total = sum(weights.values())
    best = max(weights, key=lambda side: weights[side], default=None)
    return best if total and weights[best] >= 0.9 * total else None


def _side(element: Element, around: Box) -> Align | None:
    box, align = element.box, element.align
    if box.width >= NARROW * around.width or around.width <= 0:
        return align
    side = _stands(box.x - around.x, around.x + around.width - box.x - box.width, around.width)
    # Text in the middle of a box at one side is on no side.
    return side if side in ("center", align) or align == "left" else None


def _stands(left: float, right: float, width: float) -> Align | None:
    """Where something stands that has this much room on either side of it."""
    if abs(left - right) <= 2 * OFF_CENTRE * width:
        return "center"
    if min(left, right) > 0.2 * width:
        return None
    return "left" if left < right else "right"


def _row_align(tree: _Tree, members: Sequence[int], box: Box) -> Align | None:
    """Where a row of links stands as a whole; None for links over the full width, or in a column."""
    links = [tree.elements[index].box for index in members if tree.elements[index].text]
    if len(links) < 2 or max(link.y for link in links) - min(link.y for link in links) > 12 or box.width <= 0:
        return None
    left = min(link.x for link in links) - box.x
    right = box.x + box.width - max(link.x + link.width for link in links)
    return None if left + right < 0.3 * box.width else _stands(left, right, box.width)
