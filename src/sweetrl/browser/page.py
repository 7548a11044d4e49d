"""What a rendered page is: a picture, the visible elements with their places and looks, and how the rendering went."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

Rgb = tuple[int, int, int]
Align = Literal["left", "center", "right"]
Role = Literal["", "nav", "header", "footer", "section", "image", "button", "heading", "list", "form", "table"]
Status = Literal["ok", "truncated", "timeout", "bad"]


@dataclass(frozen=True)
class Box:
    """A rectangle in CSS pixels of the full page; (x, y) is its upper left corner."""

    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True)
class Element:
    """One visible element.

    `text` is the visible text that the element holds itself (not in its children), white space collapsed. `background`
    is the colour that it paints itself, None where it paints none (or nearly none); both colours are as seen, laid
    over what is behind. `parent` is the index of the nearest listed ancestor in `Page.elements`, -1 for one right
    below the body.
    """

    tag: str
    box: Box
    text: str
    color: Rgb
    background: Rgb | None
    font_size: float
    bold: bool
    align: Align
    role: Role
    depth: int
    parent: int


@dataclass(frozen=True)
class Page:
    """A rendered page: `png` is `width` x `height` pixels, the full page from the upper left corner.

    `elements` are the visible ones in document order. `status` is `ok`; `truncated` (cut at the height limit);
    `timeout` (not rendered in time: the picture is blank); or `bad` (the page brings the browser down: blank, too).
    `flags` name what the HTML has that did not count (as `external-script`). `renderer` names the browser, the fonts
    and this package's own version: pages of different renderers must not be compared. `unread` are places whose ink is
    unreadable letters; they are not compared, either. `others` has a place for each of the renderer's other views
    (sweetrl.browser.tab): the page as it is there, None where it shows the same.
    """

    __pydantic_config__: ClassVar[dict[str, str]] = {"ser_json_bytes": "base64", "val_json_bytes": "base64"}

    png: bytes
    width: int
    height: int
    elements: tuple[Element, ...]
    background: Rgb
    status: Status
    flags: tuple[str, ...] = ()
    renderer: str = ""
    unread: tuple[Box, ...] = ()
    others: tuple[Page | None, ...] = ()
