"""The suite's pages as a browser would show them, without one: elements with places and looks, no picture.

Heights and widths of text are estimates; what the scripted user looks at (colours, order, columns, sizes of pictures)
is as in a browser, which a test compares. For pre-training, where hundreds of thousands of pages are looked at.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import cast

from sweetrl.browser.page import Align, Box, Element, Page, Rgb, Role
from sweetrl.frontend.suite.designs import HEADINGS, HOURS, LINKS, NONE, RGB, TOPICS, Design, read_page

WIDTH, HEIGHT = 1366, 682
PAD, LINE = 32, 24
BLACK, WHITE = (0, 0, 0), (255, 255, 255)
EMPTY = Page(b"", WIDTH, HEIGHT, (), WHITE, "ok", (), "sketch")


@lru_cache(maxsize=4096)
def sketch(html: str) -> Page:
    """Return the page that a suite's HTML shows; an empty one where `html` is not of the suite's form."""
    design = read_page(html)
    return EMPTY if design is None else sketch_design(design)


def sketch_design(design: Design) -> Page:
    """Return the page of a design."""
    pen = _Pen()
    blocks = ["header", *design.stacked()]
    if design["navigation color"] != NONE:
        blocks.insert(0 if design["navigation place"] == "above" else 1, "nav")
    if design["footer color"] != NONE:
        blocks.append("footer")
    for block in blocks:
        _draw(pen, design, block)
    elements = tuple(pen.elements)
    return Page(b"", WIDTH, max(HEIGHT, pen.y), elements, RGB[design["page color"]], "ok", (), "sketch")


class _Pen:
    """Puts elements below one another."""

    def __init__(self) -> None:
        self.elements: list[Element] = []
        self.y = 0

    def add(self, tag: str, box: Box, text: str = "", role: Role = "", parent: int = -1, size: float = 16,
            color: Rgb = BLACK, background: Rgb | None = None, align: Align = "left") -> int:  # fmt: skip
        depth = 1 if parent < 0 else self.elements[parent].depth + 1
        self.elements.append(Element(tag, box, text, color, background, size, False, align, role, depth, parent))
        return len(self.elements) - 1


def _draw(pen: _Pen, design: Design, block: str) -> None:
    """One block over the whole width, with what is in it."""
    top, place = pen.y, len(pen.elements)
    bar = block in ("header", "nav", "footer")
    align = _align(design, block)
    color = design[{"nav": "navigation color"}.get(block, f"{block} color")]
    ink = WHITE if bar else BLACK
    tag = block if bar else "section"
    text = f"Thank you, {design.title}" if block == "footer" else ""
    background = None if color == NONE else RGB[color]
    pen.add(tag, Box(0, top, WIDTH, 0), text, cast(Role, tag), color=ink, background=background, align=align)
    pen.y = top + PAD
    if block == "header":
        _line(pen, "h1", design.title, place, 40, 36, ink, align, "heading")
    elif block == "nav":
        x = float(PAD)
        for link in LINKS:
            pen.add("a", Box(x, pen.y, 8.0 * len(link), LINE), link, parent=place, color=ink)
            x += 8 * len(link) + 4
        pen.y += LINE
    elif block == "footer":
        pen.y += LINE
    else:
        _line(pen, "h2", HEADINGS[block], place, 32, 24, ink, align, "heading")
        _fill(pen, design, block, place, align)
    pen.y += PAD
    pen.elements[place] = replace(pen.elements[place], box=Box(0, top, WIDTH, pen.y - top))


def _align(design: Design, block: str) -> Align:
    names = {"header": "header align", "about": "about align", "hours": "hours align"}
    return cast(Align, design[names[block]]) if block in names else "left"


def _line(
    pen: _Pen, tag: str, text: str, parent: int, height: int, size: int, color: Rgb, align: Align, role: Role = ""
) -> None:
    pen.add(tag, Box(PAD, pen.y, WIDTH - 2 * PAD, height), text, role, parent, size, color, align=align)
    pen.y += height


def _fill(pen: _Pen, design: Design, kind: str, parent: int, align: Align) -> None:
    """What stands below a section's heading."""
    if kind == "about":
        _line(pen, "p", f"Welcome to {design.title}.", parent, LINE, 16, BLACK, align)
        _pictures(pen, design["about picture"], 1, parent)
    elif kind == "gallery":
        _pictures(pen, design["gallery picture"], int(design["gallery pictures"]), parent)
    elif kind == "hours":
        listed = pen.add("ul", Box(PAD, pen.y, WIDTH - 2 * PAD, 3 * LINE), "", "list", parent, align=align)
        for line in HOURS:
            _line(pen, "li", line, listed, LINE, 16, BLACK, align)
    elif kind == "contact":
        form = pen.add("form", Box(PAD, pen.y, WIDTH - 2 * PAD, 42), "", "form", parent)
        pen.add("input", Box(PAD, pen.y, 190, 42), "", "", form)
        button = RGB[design["contact button"]]
        pen.add("button", Box(PAD + 190, pen.y, 54, 40), "Send", "button", form, color=WHITE, background=button)
        pen.y += 42
    else:
        count = int(design["offers columns"])
        grid = pen.add("div", Box(PAD, pen.y, WIDTH - 2 * PAD, 56), "", "", parent)
        width = (WIDTH - 2 * PAD - 16 * (count - 1)) / count
        for number, offer in enumerate(TOPICS[design.topic][:count]):
            box = Box(PAD + number * (width + 16), pen.y, width, 56)
            pen.add("p", box, offer, "", grid, background=RGB[design["offers boxes"]])
        pen.y += 56


def _pictures(pen: _Pen, size: str, count: int, parent: int) -> None:
    if size == NONE:
        return
    width, height = (int(part) for part in size.split(" by "))
    for _ in range(count):
        pen.add("img", Box(PAD, pen.y, width, height), "", "image", parent)
        pen.y += height
