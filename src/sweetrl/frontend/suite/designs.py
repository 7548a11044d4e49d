"""What a page of the synthetic suite is made of: its details, their values, and the HTML that shows them.

A design is a title, two or three kinds of sections, and details; what is no detail has its plain value. The HTML is one
fixed compact form, so that a small model can learn to write it, and `read_page` reads it back.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

COLORS = {
    "white": ("bg-white", (255, 255, 255)),
    "light gray": ("bg-gray-300", (209, 213, 219)),
    "light yellow": ("bg-yellow-100", (254, 243, 199)),
    "light green": ("bg-green-200", (167, 243, 208)),
    "light blue": ("bg-blue-200", (191, 219, 254)),
    "light pink": ("bg-pink-200", (251, 207, 232)),
    "light purple": ("bg-purple-200", (221, 214, 254)),
    "dark gray": ("bg-gray-800", (31, 41, 55)),
    "red": ("bg-red-600", (220, 38, 38)),
    "green": ("bg-green-600", (5, 150, 105)),
    "dark green": ("bg-green-900", (6, 78, 59)),
    "blue": ("bg-blue-600", (37, 99, 235)),
    "dark blue": ("bg-blue-900", (30, 58, 138)),
    "purple": ("bg-purple-600", (124, 58, 237)),
    "pink": ("bg-pink-500", (236, 72, 153)),
}
"""The colours with their classes, and as Tailwind 2.2.19 paints them."""

CLASSES = {name: tailwind for name, (tailwind, _) in COLORS.items()}
RGB = {name: rgb for name, (_, rgb) in COLORS.items()}
LIGHT, STRONG = tuple(COLORS)[:7], tuple(COLORS)[7:]
SIZES = ("300 by 200", "600 by 300", "900 by 400")
HEADINGS = {
    "about": "About us",
    "offers": "Our offers",
    "hours": "Opening hours",
    "contact": "Contact us",
    "gallery": "Gallery",
}
KIND_OF = {heading: kind for kind, heading in HEADINGS.items()}
HOURS = ("Monday to Friday: 9 to 18", "Saturday: 10 to 14", "Sunday: closed")
LINKS = ("Home", "News", "Help")
NONE = "none"
AS_REQUESTED, SWAPPED = "as asked", "swapped"


# What a page is about: a noun, and what is offered there.
TOPICS = {
    "bakery": ("Bread", "Cakes", "Rolls", "Coffee"),
    "cafe": ("Coffee", "Tea", "Cakes", "Lunch"),
    "gym": ("Yoga", "Weights", "Boxing", "Sauna"),
    "school": ("Maths", "Music", "Sports", "Arts"),
    "hotel": ("Rooms", "Suites", "Spa", "Dinner"),
    "farm": ("Milk", "Eggs", "Honey", "Fruit"),
    "museum": ("Paintings", "Tours", "Talks", "Shop"),
    "library": ("Books", "Films", "Music", "Games"),
    "garage": ("Repairs", "Tyres", "Washing", "Parts"),
    "florist": ("Roses", "Tulips", "Plants", "Vases"),
    "dentist": ("Cleaning", "Braces", "Checks", "Crowns"),
    "theatre": ("Plays", "Operas", "Tickets", "Bar"),
}
NAMES = (
    *("Golden", "Silver", "Sunny", "Happy", "Royal", "Little"),
    *("Grand", "Old Town", "River", "Garden", "City", "Star"),
)


@dataclass(frozen=True)
class Detail:
    """One kind of hidden detail: its values, the plain one first. `section` is the kind of section it belongs to."""

    name: str
    values: tuple[str, ...]
    section: str = ""

    @property
    def plain(self) -> str:
        """The value of a page that hides nothing here."""
        return self.values[0]


_PAGE = ("white", *(name for name in LIGHT if name != "white"))
_OVER = (NONE, *LIGHT)
DETAILS = (
    Detail("page color", _PAGE),
    Detail("header color", STRONG),
    Detail("header align", ("left", "center", "right")),
    Detail("navigation color", (NONE, *STRONG)),
    Detail("navigation place", ("below", "above")),
    Detail("footer color", (NONE, *STRONG)),
    Detail("order", (AS_REQUESTED, SWAPPED)),
    Detail("about color", _OVER, "about"),
    Detail("about align", ("left", "center"), "about"),
    Detail("about picture", (NONE, *SIZES), "about"),
    Detail("offers color", _OVER, "offers"),
    Detail("offers columns", ("3", "2", "4"), "offers"),
    Detail("offers boxes", _PAGE, "offers"),
    Detail("hours color", _OVER, "hours"),
    Detail("hours align", ("left", "center"), "hours"),
    Detail("contact color", _OVER, "contact"),
    Detail("contact button", ("blue", *(name for name in STRONG if name != "blue")), "contact"),
    Detail("gallery color", _OVER, "gallery"),
    Detail("gallery pictures", ("2", "1", "3"), "gallery"),
    Detail("gallery picture", SIZES, "gallery"),
)
BY_NAME = {detail.name: detail for detail in DETAILS}


@dataclass(frozen=True)
class Design:
    """A page: `sections` are the kinds in the order of the request, `details` what is not plain (name, value)."""

    topic: str
    title: str
    sections: tuple[str, ...]
    details: tuple[tuple[str, str], ...] = ()

    def __getitem__(self, name: str) -> str:
        """The value of a detail, plain where it is not set."""
        return dict(self.details).get(name, BY_NAME[name].plain)

    def set(self, values: Mapping[str, str]) -> Design:
        """Return the design with these details; plain values are left out, the order is the suite's."""
        merged = dict(self.details) | dict(values)
        if merged.get("navigation color", NONE) == NONE:
            merged.pop("navigation place", None)
        kept = tuple((d.name, merged[d.name]) for d in DETAILS if d.name in merged and merged[d.name] != d.plain)
        return replace(self, details=kept)

    def seen(self) -> Design:
        """Return the design as it looks: colours on the same colour are plain."""
        return self.set({name: BY_NAME[name].plain for name, value in self.details if value in unseen(name, self)})

    def grounded(self) -> Design:
        """Return the design with a section without a colour, or the page's own could hardly be seen."""
        if any(self[f"{kind} color"] == NONE for kind in self.sections):
            return self
        return self.set({f"{self.sections[-1]} color": NONE})

    def open_details(self) -> list[Detail]:
        """The details that a page with these sections can have."""
        return [detail for detail in DETAILS if detail.section in ("", *self.sections)]

    def stacked(self) -> tuple[str, ...]:
        """The sections from top to bottom."""
        if self["order"] == AS_REQUESTED:
            return self.sections
        return (self.sections[1], self.sections[0], *self.sections[2:])


def unseen(name: str, design: Design) -> tuple[str, ...]:
    """Values of a detail that would not show on this page."""
    if BY_NAME[name].section and name.endswith(" color"):
        return (design["page color"],)
    if name == "offers boxes":
        behind = design["offers color"]
        return (design["page color"] if behind == NONE else behind,)
    return ()


WORDS = tuple(
    dict.fromkeys(
        (
            *CLASSES,
            *CLASSES.values(),
            *SIZES,
            *(size.replace(" by ", "/") for size in SIZES),
            *("on the left", "in the centre", "on the right", " text-center", " text-right"),
            *(f"{count} columns" for count in BY_NAME["offers columns"].values),
            *(f"grid-cols-{count}" for count in BY_NAME["offers columns"].values),
            *("1 picture", "2 pictures", "3 pictures"),
            *(f'\n<section id="{kind}" class="' for kind in HEADINGS),
            *HEADINGS.values(),
            *NAMES,
            *(word for noun, offers in TOPICS.items() for word in (noun, noun.capitalize(), *offers)),
        )
    )
)
"""What is said, asked for and written, each a unit: a small agent's tokenizer makes one token of each."""

LINK = '<link href="https://cdn.jsdelivr.net/npm/tailwindcss@2.2.19/dist/tailwind.min.css" rel="stylesheet">'


def write_page(design: Design) -> str:
    """Write the design's HTML."""
    heading = f'<h1 class="text-4xl">{design.title}</h1>'
    blocks = [_block("header", design["header color"], design["header align"], heading, "text-white")]
    if design["navigation color"] != NONE:
        links = " ".join(f"<a>{link}</a>" for link in LINKS)
        bar = _block("nav", design["navigation color"], "left", links, "text-white")
        blocks.insert(0 if design["navigation place"] == "above" else 1, bar)
    blocks += [_section(design, kind) for kind in design.stacked()]
    if design["footer color"] != NONE:
        blocks.append(_block("footer", design["footer color"], "left", f"Thank you, {design.title}", "text-white"))
    body = "\n".join(blocks)
    return f'<html>\n{LINK}\n<body class="{CLASSES[design["page color"]]}">\n{body}\n</body>\n</html>'


def _block(tag: str, color: str, align: str, inner: str, extra: str = "", name: str = "") -> str:
    classes = [CLASSES[color]] if color != NONE else []
    classes += [extra] if extra else []
    classes += ["p-8"] + ([f"text-{align}"] if align != "left" else [])
    # The name stands before the looks: whoever writes from left to right then knows whose looks they are.
    named = f' id="{name}"' if name else ""
    return f'<{tag}{named} class="{" ".join(classes)}">{inner}</{tag}>'


def _section(design: Design, kind: str) -> str:
    inner = f'<h2 class="text-2xl">{HEADINGS[kind]}</h2>'
    if kind == "about":
        inner += f"<p>Welcome to {design.title}.</p>" + _pictures(design["about picture"], 1)
    elif kind == "offers":
        boxes = "".join(
            f'<p class="{CLASSES[design["offers boxes"]]} p-4">{offer}</p>'
            for offer in TOPICS[design.topic][: int(design["offers columns"])]
        )
        inner += f'<div class="grid grid-cols-{design["offers columns"]} gap-4">{boxes}</div>'
    elif kind == "hours":
        inner += f"<ul>{''.join(f'<li>{line}</li>' for line in HOURS)}</ul>"
    elif kind == "contact":
        button = CLASSES[design["contact button"]]
        inner += f'<form><input class="border p-2"><button class="{button} text-white p-2">Send</button></form>'
    else:
        inner += _pictures(design["gallery picture"], int(design["gallery pictures"]))
    align = design[f"{kind} align"] if f"{kind} align" in BY_NAME else "left"
    return _block("section", design[f"{kind} color"], align, inner, name=kind)


def _pictures(size: str, count: int) -> str:
    if size == NONE:
        return ""
    width, height = size.split(" by ")
    return f'<img src="https://picsum.photos/id/48/{width}/{height}">' * count


_COLOR_OF = {name: color for color, name in CLASSES.items()}
_OPEN = re.compile(r'<(header|nav|section|footer)(?: id="[^"]*")?(?: class="([^"]*)")?>')


def read_page(html: str, requested: tuple[str, ...] = ()) -> Design | None:
    """Read a page of the suite's form back; None for any other. `requested` are the sections in the request's order.

    Classes and values that the suite does not have are read as plain: an agent's slips are no reason not to go on.
    """
    end = html.rfind("</body>")
    body = re.search(r'<body class="([^"]*)">', html[: max(end, 0)])
    title = _heading(html, "h1")
    if body is None or title is None:
        return None
    topic = next((noun for noun in TOPICS if title.lower().endswith(noun)), None)
    values: dict[str, str] = {"page color": _color(body[1], "white")}
    kinds: list[str] = []
    order: list[str] = []
    for tag, classes, inner in _blocks(html[body.end() : end]):
        order.append(tag)
        if tag == "section":
            kind = KIND_OF.get(_heading(inner, "h2") or "")
            if kind is not None and kind not in kinds:
                kinds.append(kind)
                values |= _read_section(kind, classes, inner)
        else:
            name = "navigation" if tag == "nav" else tag
            values[f"{name} color"] = _color(classes, "dark gray")
            if tag == "header":
                values["header align"] = _align(classes)
    if topic is None or not kinds:
        return None
    if "nav" in order and "header" in order and order.index("nav") < order.index("header"):
        values["navigation place"] = "above"
    sections = (*(kind for kind in requested if kind in kinds), *(kind for kind in kinds if kind not in requested))
    if list(sections) != kinds:
        values["order"] = SWAPPED
    return Design(topic, title, sections).set({k: v for k, v in values.items() if v in BY_NAME[k].values})


def _heading(text: str, tag: str) -> str | None:
    """The words of the first heading that holds nothing else."""
    at = 0
    while (start := text.find(f"<{tag}", at)) >= 0 and (end := text.find(">", start)) >= 0:
        if match := re.compile(rf"([^<]*)</{tag}>").match(text, end + 1):
            return match[1]
        at = end
    return None


def _blocks(text: str) -> Iterator[tuple[str, str, str]]:
    """Yield (tag, classes, what is inside) of the parts of a page, in time that grows with its length."""
    at, unclosed = 0, set[str]()
    while match := _OPEN.search(text, at):
        tag, at = match[1], match.start() + 1
        end = -1 if tag in unclosed else text.find(f"</{tag}>", match.end())
        if end < 0:
            unclosed.add(tag)
        else:
            yield tag, match[2] or "", text[match.end() : end]
            at = end


def _read_section(kind: str, classes: str, inner: str) -> dict[str, str]:
    values = {f"{kind} color": _color(classes, NONE)}
    if f"{kind} align" in BY_NAME:
        values[f"{kind} align"] = _align(classes)
    sizes = [f"{width} by {height}" for width, height in re.findall(r"/(\d+)/(\d+)\"", inner)]
    if kind == "about":
        values["about picture"] = sizes[0] if sizes else NONE
    if kind == "gallery":
        values |= {"gallery pictures": str(len(sizes))} | ({"gallery picture": sizes[0]} if sizes else {})
    if kind == "offers":
        columns = re.search(r"grid-cols-(\d)", inner)
        boxes = re.search(r'<p class="([^"]*)">', inner)
        values |= {"offers columns": columns[1]} if columns else {}
        values |= {"offers boxes": _color(boxes[1], "white")} if boxes else {}
    if kind == "contact":
        button = re.search(r'<button class="([^"]*)">', inner)
        values |= {"contact button": _color(button[1], "blue")} if button else {}
    return values


def _color(classes: str, plain: str) -> str:
    return next((_COLOR_OF[name] for name in classes.split() if name in _COLOR_OF), plain)


def _align(classes: str) -> str:
    return next((side for side in ("center", "right") if f"text-{side}" in classes.split()), "left")
