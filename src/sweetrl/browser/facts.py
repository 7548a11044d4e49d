"""From DevTools' snapshot of a document to the elements a user can see: places, texts, colours, roles."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import islice
from typing import Any

from sweetrl.browser.css_colors import COLOR, Rgba, parse_color
from sweetrl.browser.lettering import Columns, Turn, first_number, font, turn_of
from sweetrl.browser.page import Align, Box, Element, Rgb, Role

STYLES = (
    "visibility", "opacity", "color", "background-color", "background-image", "font-size", "font-weight", "text-align",
    "display", "flex-direction", "justify-content", "align-items", "overflow-x", "overflow-y", "position",
    "background-clip", "-webkit-text-fill-color", "font-family", "font-style", "font-variant-caps", "letter-spacing",
    "word-spacing", "padding-left", "border-left-width", "transform", "rotate", "scale", "zoom", "column-count",
    "column-width", "column-gap",
)  # fmt: skip
_STOPS = 64  # colours of an element's gradients
LIMIT = 5000  # elements; a page with more is a bomb
WHITE: Rgb = (255, 255, 255)
_SMALLEST_TEXT = 6.0  # CSS pixels; less cannot be read
_SKIPPED = {"HTML", "HEAD", "BODY", "STYLE", "SCRIPT", "TITLE", "META", "LINK", "BR", "OPTION", "OPTGROUP", "SOURCE"}
_IMAGES = ("img", "svg", "video", "canvas", "object", "embed", "iframe")
_OPAQUE = {*_IMAGES, "select"}  # what is inside is not listed
_ROLES: dict[str, Role] = {
    **dict.fromkeys(("section", "main", "article", "aside"), "section"),
    **dict.fromkeys(_IMAGES, "image"),
    **dict.fromkeys(("h1", "h2", "h3", "h4", "h5", "h6"), "heading"),
    **dict.fromkeys(("ul", "ol", "dl"), "list"),
    "nav": "nav", "header": "header", "footer": "footer", "button": "button", "form": "form", "table": "table",
}  # fmt: skip
_ARIA: dict[str, Role] = {
    "navigation": "nav", "banner": "header", "contentinfo": "footer", "region": "section", "main": "section",
    "button": "button", "heading": "heading", "img": "image", "list": "list", "form": "form", "table": "table",
}  # fmt: skip
_UNSEEN = dict.fromkeys((0x00AD, 0x200B, 0x2060, 0xFEFF))  # places where a word may be broken, or may not


@dataclass(frozen=True)
class Line:
    """One line of text as it was laid out: the element's index (-1: too small to be read), the words, and where.

    `box` is the part of its `place` that is not cut off, `letters` the words as they are laid out with the `style`
    (CSS) that says how. `clear` is True for text without a colour of its own (cut out of a background), `joined` for
    what goes on with the word that the line before ends with, `control` for words of a control. `turn` is the matrix
    that they are drawn with, None for none.
    """

    element: int
    text: str
    box: Box
    place: Box
    letters: str
    style: str
    turn: Turn | None
    clear: bool
    joined: bool = False
    control: bool = False


@dataclass(frozen=True)
class Ground:
    """What an element claims to paint behind its content: the colours that it runs through (one, or those of a
    gradient; none where it paints nothing), as seen, and the colour below. `box` is the part that is not cut off.
    """

    box: Box
    colors: tuple[Rgb, ...]
    behind: Rgb


@dataclass(frozen=True)
class Facts:
    """What styles say of a page: elements (their texts still empty), lines of text that belong to them, the page's
    colour, and for each element its ground. Pictures say what of it can be seen (sweetrl.browser.ink).
    """

    elements: tuple[Element, ...]
    lines: tuple[Line, ...]
    background: Rgb
    grounds: tuple[Ground, ...]


@dataclass(frozen=True)
class _State:
    """What an element hands to its children."""

    element: int  # nearest listed ancestor
    depth: int
    opacity: float
    behind: Rgb
    clip: tuple[float, float, float, float]
    opaque: bool  # nothing inside is listed
    turn: Turn | None = None
    columns: Columns | None = None


def content_height(snapshot: dict[str, Any]) -> int:
    """Return the height of the document in CSS pixels."""
    return int(snapshot["documents"][0].get("contentHeight", 0) + 0.999)


def content_width(snapshot: dict[str, Any]) -> int:
    """Return the width of the document in CSS pixels."""
    return int(snapshot["documents"][0].get("contentWidth", 0) + 0.999)


def is_scrolled(snapshot: dict[str, Any]) -> bool:
    """Whether the window shows another part of the document than its beginning."""
    document = snapshot["documents"][0]
    return bool(document.get("scrollOffsetX", 0) or document.get("scrollOffsetY", 0))


def read_facts(snapshot: dict[str, Any], width: int, height: int) -> Facts:
    """Read the snapshot (DOMSnapshot.captureSnapshot with STYLES) of a page that is `width` x `height` pixels."""
    return _Reader(snapshot, width, height).read()


class _Reader:
    def __init__(self, snapshot: dict[str, Any], width: int, height: int):
        document = snapshot["documents"][0]
        self.strings: list[str] = snapshot["strings"]
        self.nodes = document["nodes"]
        self.layout = document["layout"]
        self.page = (0.0, 0.0, float(width), float(height))
        self.layout_of = {node: index for index, node in reversed(list(enumerate(self.layout["nodeIndex"])))}
        self.lines_of: dict[int, list[int]] = {}
        for number, index in enumerate(document["textBoxes"]["layoutIndex"]):
            self.lines_of.setdefault(index, []).append(number)
        self.boxes = document["textBoxes"]
        self.inputs = dict(zip(self.nodes["inputValue"]["index"], self.nodes["inputValue"]["value"], strict=True))
        self.elements: list[Element] = []
        self.lines: list[Line] = []
        self.grounds: list[Ground] = []
        self.open = False  # whether the last text has ended in the middle of a word

    def read(self) -> Facts:
        """Walk the document in order; a parent always comes before its children."""
        background = self._canvas()
        states: dict[int, _State] = {-1: _State(-1, 0, 1.0, background, self.page, False)}
        parents, kinds = self.nodes["parentIndex"], self.nodes["nodeType"]
        for node, parent in enumerate(parents):
            above = states.get(parent)
            if above is None or above.opaque or len(self.elements) >= LIMIT:
                continue
            if kinds[node] == 3:
                self._text(node, above)
            elif kinds[node] == 1:
                self.open = self.open and self.strings[self.nodes["nodeName"][node]] == "WBR"
                state = self._element(node, above)
                if state is not None:
                    states[node] = state
            else:
                states[node] = above  # the document itself, shadow roots
        return Facts(tuple(self.elements), tuple(self.lines), background, tuple(self.grounds))

    def _style(self, index: int) -> dict[str, str]:
        values = self.layout["styles"][index]
        return {name: self.strings[value] for name, value in zip(STYLES, values, strict=False)}

    def _canvas(self) -> Rgb:
        """The colour of the page: the root's background, else the body's, else white."""
        for tag in ("HTML", "BODY"):
            for node, name in enumerate(self.nodes["nodeName"]):
                if self.strings[name] == tag and node in self.layout_of:
                    style = self._style(self.layout_of[node])
                    painted = _painted(style)
                    if painted is not None:
                        return _over(painted, 1.0, WHITE)
                    break
        return WHITE

    def _element(self, node: int, above: _State) -> _State | None:
        name = self.strings[self.nodes["nodeName"][node]]
        if name.upper() in ("HEAD", "STYLE", "SCRIPT"):
            return None
        index = self.layout_of.get(node)
        if index is None:  # display: none has no children laid out; display: contents hands on
            return above
        style = self._style(index)
        opacity = above.opacity * float(style["opacity"] or 1)
        painted = _painted(style) if name not in ("HTML", "BODY") else None
        background, behind = None, above.behind
        colors: tuple[Rgb, ...] = ()
        if painted is not None and painted[3] * opacity >= 0.05 and style["background-clip"] != "text":
            background = behind = _over(painted, opacity, above.behind)
            colors = tuple(_over(stop, opacity, above.behind) for stop in _stops(style) or [painted])
        box = Box(*(round(value, 2) for value in self.layout["bounds"][index]))
        clip = above.clip
        if style["overflow-x"] not in ("visible", "") or style["overflow-y"] not in ("visible", ""):
            clip = _meet(clip, box)
        state = replace(above, opacity=opacity, behind=behind, clip=clip, turn=turn_of(style, above.turn))
        if {style["column-count"], style["column-width"]} - {"auto", ""}:
            state = replace(state, columns=Columns(style, box))
        pseudo = name.startswith("::")
        if pseudo or name in _SKIPPED or style["visibility"] != "visible" or opacity < 0.05:
            return state if opacity >= 0.05 else None
        left, top, right, bottom = _meet(self.page if style["position"] == "fixed" else above.clip, box)
        if right <= left or bottom <= top or (right - left) * (bottom - top) <= 1.5:
            return state
        tag = name.lower()
        attributes = self._attributes(node)
        role = _role(tag, attributes, style, background is not None)
        ground = Ground(Box(left, top, right - left, bottom - top), colors, above.behind)
        at = self._list(tag, box, style, state, background, role, above, ground)
        self._control(node, at, tag, attributes, style)
        return replace(state, element=at, depth=above.depth + 1, opaque=tag in _OPAQUE)

    def _control(self, node: int, at: int, tag: str, attributes: dict[str, str], style: dict[str, str]) -> None:
        """Texts that a control shows without a text node of the page's own."""
        element = self.elements[at]
        shown = ""
        if tag == "img":
            return
        if tag in ("input", "textarea"):
            kind = attributes.get("type", "text").lower()
            if kind not in ("checkbox", "radio", "range", "color", "file", "hidden", "image", "password"):
                value = self.inputs.get(node, -1)
                shown = (self.strings[value] if value >= 0 else "") or attributes.get("placeholder", "")
        elif tag == "select":
            shown = self._chosen.get(node, "")
        text = _collapse(shown)
        if text and element.font_size >= _SMALLEST_TEXT:
            inset = first_number(style["padding-left"]) + first_number(style["border-left-width"])
            box, how = element.box, f"{font(style)};box-sizing:border-box;padding:0 {inset}px"
            how += f";text-align:{style['text-align']}"
            place = replace(box, width=max(box.width, element.font_size / 2 * len(text)))
            if tag == "textarea":
                place, how = box, f"{how};padding-top:{inset}px;line-height:normal;white-space:pre-wrap"
            self.lines.append(Line(at, text, box, place, shown, how, None, False, control=True))

    @cached_property
    def _chosen(self) -> dict[int, str]:
        """What every select shows: the words of its first chosen option. One walk reads all of them."""
        parents, names, words = self.nodes["parentIndex"], self.nodes["nodeName"], dict[int, list[str]]()
        first = dict[int, int]()
        for option in sorted(set(self.nodes["optionSelected"]["index"])):
            above = parents[option]
            while above >= 0 and self.strings[names[above]] != "SELECT":
                above = parents[above]
            words[first.setdefault(above, option)] = []
        for node, parent in enumerate(parents):
            if parent in words and self.nodes["nodeType"][node] == 3:
                words[parent].append(self.strings[self.nodes["nodeValue"][node]])
        return {select: " ".join(words[option]) for select, option in first.items()}

    def _text(self, node: int, above: _State) -> None:
        goes_on, self.open = self.open, False
        index = self.layout_of.get(node)
        if index is None:
            return
        style = self._style(index)
        if style["visibility"] != "visible" or above.opacity < 0.05:
            return
        value = self.layout["text"][index]
        content = self.strings[value] if value >= 0 else ""
        color = parse_color(style["-webkit-text-fill-color"])
        how = font(style)
        a, b, c, d = above.turn or (1.0, 0.0, 0.0, 1.0)
        small = first_number(style["font-size"]) * abs(a * d - b * c) ** 0.5 < _SMALLEST_TEXT
        at = -1 if small else above.element if above.element >= 0 else self._bare(index, style, above)
        end = 0 if goes_on else -1
        for number in self.lines_of.get(index, ()):
            start, length = self.boxes["start"][number], self.boxes["length"][number]
            joined = start == end and not any(map(str.isspace, content[max(start - 1, 0) : start + 1]))
            letters, end = content[start : start + length], start + length
            text, place = _collapse(letters), Box(*self.boxes["bounds"][number])
            if above.columns is not None:
                place = above.columns.place(place)
            left, top, right, bottom = _meet(above.clip, place)
            if text and right - left >= 1 and bottom - top >= 1:
                box = Box(left, top, right - left, bottom - top)
                self.lines.append(Line(at, text, box, place, letters, how, above.turn, color[3] < 0.1, joined))
        self.open = end == len(content) > 0 and not content[-1].isspace()

    def _bare(self, index: int, style: dict[str, str], above: _State) -> int:
        """Words right in the body are an element of their own."""
        box = Box(*(round(value, 2) for value in self.layout["bounds"][index]))
        return self._list("#text", box, style, above, None, "", above, Ground(box, (), above.behind))

    def _list(
        self,
        tag: str,
        box: Box,
        style: dict[str, str],
        state: _State,
        background: Rgb | None,
        role: Role,
        above: _State,
        ground: Ground,
    ) -> int:
        """List an element below `above`, whose text stands over what `state` says; return its index."""
        color = _over(parse_color(style["-webkit-text-fill-color"]), state.opacity, state.behind)
        size, bold = first_number(style["font-size"]), first_number(style["font-weight"]) >= 600
        looks = (color, background, size, bold, _align(style), role)
        self.elements.append(Element(tag, box, "", *looks, above.depth, above.element))
        self.grounds.append(ground)
        return len(self.elements) - 1

    def _attributes(self, node: int) -> dict[str, str]:
        flat = self.nodes["attributes"][node]
        return {
            self.strings[flat[at]].lower(): self.strings[flat[at + 1]] if flat[at + 1] >= 0 else ""
            for at in range(0, len(flat) - 1, 2)
        }


def _role(tag: str, attributes: dict[str, str], style: dict[str, str], painted: bool) -> Role:
    aria = _ARIA.get(attributes.get("role", "").strip().lower())
    if aria:
        return aria
    if tag == "input":
        kind = attributes.get("type", "text").lower()
        return "button" if kind in ("submit", "button", "reset") else "image" if kind == "image" else ""
    if tag == "a" and painted:
        return "button"  # a link with a colour of its own looks like one
    role = _ROLES.get(tag, "")
    if not role and "url(" in style["background-image"]:
        return "image"
    return role


def _align(style: dict[str, str]) -> Align:
    """Where the content of an element stands: by the flex box it is, else by its text alignment."""
    value = style["text-align"]
    if style["display"] in ("flex", "inline-flex"):
        along = "align-items" if style["flex-direction"].startswith("column") else "justify-content"
        if style[along] in ("center", "flex-end", "end", "right"):
            value = style[along]
    if "center" in value:
        return "center"
    return "right" if value in ("right", "end", "flex-end", "-webkit-right") else "left"


def _painted(style: dict[str, str]) -> tuple[float, float, float, float] | None:
    """The colour (red, green, blue, alpha) of the element's own background, the mean of a gradient's stops; or None."""
    color = parse_color(style["background-color"])
    if stops := _stops(style):
        mean = [sum(stop[channel] for stop in stops) / len(stops) for channel in range(4)]
        return (mean[0], mean[1], mean[2], max(mean[3], color[3]))
    return color if color[3] > 0 else None


def _stops(style: dict[str, str]) -> tuple[Rgba, ...]:
    """The colours of the element's gradients, the first `_STOPS`."""
    image = style["background-image"]
    return _colors(image) if "gradient(" in image else ()


@lru_cache(maxsize=256)
def _colors(image: str) -> tuple[Rgba, ...]:
    """Read once: thousands of elements may share the style."""
    return tuple(parse_color(match[0]) for match in islice(COLOR.finditer(image), _STOPS))


def _over(color: tuple[float, float, float, float], opacity: float, behind: Rgb) -> Rgb:
    share = color[3] * opacity
    red, green, blue = (round(share * own + (1 - share) * under) for own, under in zip(color, behind, strict=False))
    return (red, green, blue)


def _meet(clip: tuple[float, float, float, float], box: Box) -> tuple[float, float, float, float]:
    return (
        max(clip[0], box.x),
        max(clip[1], box.y),
        min(clip[2], box.x + box.width),
        min(clip[3], box.y + box.height),
    )


def _collapse(text: str) -> str:
    return " ".join(text.translate(_UNSEEN).split())
