"""How an agent's page differs from the reference, the greatest difference first; nothing that could be untrue.

A difference is reported only where both pages are clear: a part without a colour of its own has no wrong colour, and a
section is missing only if its heading can be read nowhere on the page.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise

from sweetrl.browser.page import Box
from sweetrl.frontend.colors import Rgb, distinguishing_names
from sweetrl.frontend.outline import Line, Outline, Part, same, within, words_of

# What strikes first; the share of the page that is concerned adds up to 20.
SALIENCE: dict[str, float] = {
    "empty": 1000, "page color": 100, "color": 80, "missing": 75, "extra": 70, "images": 65, "image size": 60,
    "box color": 56, "columns": 50, "place": 45, "align": 40, "order": 30, "button color": 28,
    "text": 24, "extra text": 22, "text order": 20,
}  # fmt: skip

# Words of a text that are quoted.
QUOTED = 6
# Sizes of pictures less apart than this factor are called the same.
SIZE = 1.25


@dataclass(frozen=True)
class Difference:
    """One difference: `part` should have the value `expected` and has `actual`; `other` is the second part of an order.

    Parts are named as in `name_of`; a missing part has no `actual` value, an extra one no `expected`.
    """

    kind: str
    part: str
    expected: str = ""
    actual: str = ""
    other: str = ""
    salience: float = 0.0


def name_of(part: Part) -> str:
    """Return the name that a user gives a part."""
    if part.kind == "section":
        return f'the section "{part.name}"'
    return {"navigation": "the navigation bar"}.get(part.kind, f"the {part.kind}")


def compare(agent: Outline, reference: Outline) -> list[Difference]:
    """Return the differences of an agent's page from the reference, most salient first; equal pages have none."""
    if agent.empty and not reference.empty:
        return [Difference("empty", "the page", salience=SALIENCE["empty"])]
    differences: list[Difference] = []
    _color(differences, "page color", "the page", reference.ground, agent.ground, 1.0)
    pairs = _pairs(agent, reference)
    for actual, expected in pairs:
        _looks(agent, actual, reference, expected, differences)
    missing, extra = _presence(agent, reference, differences)
    _images(agent, reference, differences)
    _buttons(agent, reference, differences)
    _order(pairs, differences)
    _texts(agent, reference, missing, extra, differences)
    return sorted(differences, key=lambda difference: -difference.salience)


def _add(differences: list[Difference], kind: str, part: str, area: float = 0.0, **values: str) -> None:
    differences.append(Difference(kind, part, salience=SALIENCE[kind] + 20 * min(area, 1.0), **values))


def _area(box: Box, page: Outline) -> float:
    return box.width * box.height / max(1, page.width * page.height)


def _color(
    differences: list[Difference], kind: str, part: str, expected: Rgb | None, actual: Rgb | None, area: float
) -> None:
    if expected is not None and actual is not None and (names := distinguishing_names(expected, actual)):
        _add(differences, kind, part, area, expected=names[0], actual=names[1])


def _pairs(agent: Outline, reference: Outline) -> list[tuple[Part, Part]]:
    """(agent's part, reference's part) where both pages have it, in the order of the reference."""
    pairs = []
    for expected in reference.parts:
        if expected.kind == "section" and not _unique(reference, expected.name):
            continue
        actual = agent.first(expected.kind, expected.name)
        if actual is not None and (expected.kind != "section" or _unique(agent, expected.name)):
            pairs.append((actual, expected))
    return pairs


def _unique(page: Outline, name: str) -> bool:
    return sum(same(section.name, name) for section in page.sections()) == 1


def _looks(agent: Outline, actual: Part, reference: Outline, expected: Part, differences: list[Difference]) -> None:
    name = name_of(expected)
    area = max(_area(expected.box, reference), _area(actual.box, agent))
    plain = expected.color == reference.ground and actual.color == agent.ground  # it is the page's colour that differs
    if expected.kind in ("header", "navigation", "footer", "section") and not plain:
        _color(differences, "color", name, expected.color, actual.color, area)
    if expected.kind == "section":
        if expected.columns != actual.columns:
            _add(differences, "columns", name, area, expected=str(expected.columns), actual=str(actual.columns))
        elif expected.columns > 1:
            _color(differences, "box color", name, expected.boxes, actual.boxes, area)
    if expected.kind == "navigation":
        places = _place(expected, reference), _place(actual, agent)
        if None not in places and places[0] != places[1]:
            _add(differences, "place", name, area, expected=str(places[0]), actual=str(places[1]))
            return
    nested = expected.nested and actual.nested
    if None not in (expected.align, actual.align) and not nested and expected.align != actual.align:
        _add(differences, "align", name, area, expected=str(expected.align), actual=str(actual.align))


def _place(part: Part, page: Outline) -> str | None:
    """Where a navigation bar is: a column at a side of the page, or a bar across it."""
    box = part.box
    if box.width > 0.6 * page.width:
        return "across"
    if box.width < 0.4 * page.width and box.height > 1.2 * box.width:
        return "left" if box.x + box.width / 2 < page.width / 2 else "right"
    return None


def _presence(agent: Outline, reference: Outline, differences: list[Difference]) -> tuple[list[Box], list[Box]]:
    """Add missing and extra parts; return where the missing are on the reference, and the extra on the agent's page."""
    missing = [part for part in reference.parts if not _present(part, agent)]
    extra = [part for part in agent.parts if not _present(part, reference)]
    for part in missing:
        _add(differences, "missing", name_of(part), _area(part.box, reference))
    for part in extra:
        _add(differences, "extra", name_of(part), _area(part.box, agent))
    return [part.box for part in missing], [part.box for part in extra]


def _present(part: Part, page: Outline) -> bool:
    """Whether `page` may have `part`: in doubt it has."""
    if part.kind == "section":
        words = words_of(part.name)
        return page.reads(words) or any(sorted(words_of(line.text)) == sorted(words) for line in page.lines)
    if page.first(part.kind) is not None:
        return True
    # The same words without the mark-up (links in a row that is no <nav>) are the same part to whoever looks.
    return 2 * len(part.entries & page.entries) >= len(part.entries) > 0


def _images(agent: Outline, reference: Outline, differences: list[Difference]) -> None:
    if len(agent.images) != len(reference.images):
        area = sum(_area(box, reference) for box in reference.images) + sum(_area(box, agent) for box in agent.images)
        counts = {"expected": str(len(reference.images)), "actual": str(len(agent.images))}
        _add(differences, "images", "the page", area, **counts)
        return
    for number, (actual, expected) in enumerate(zip(agent.images, reference.images, strict=True), start=1):
        if max(_factor(actual.width, expected.width), _factor(actual.height, expected.height)) < SIZE:
            continue
        name = "the picture" if len(reference.images) == 1 else f"picture {number}"
        size = abs(_area(expected, reference) - _area(actual, agent))
        _add(differences, "image size", name, size, expected=size_of(expected), actual=size_of(actual))
        return  # one is enough: a grid of pictures differs in all of them


def _factor(length: float, other: float) -> float:
    return max(length, other, 1.0) / max(1.0, min(length, other))


def size_of(box: Box) -> str:
    """Return about how large a picture is, as users say it."""
    return f"{round(box.width / 10) * 10} by {round(box.height / 10) * 10}"


def _buttons(agent: Outline, reference: Outline, differences: list[Difference]) -> None:
    if bool(agent.buttons) != bool(reference.buttons):
        _add(differences, "missing" if reference.buttons else "extra", "a button")
        return
    for expected in reference.buttons:
        alike = [button for button in agent.buttons if same(button.text, expected.text) and words_of(button.text)]
        if len(alike) == 1 and sum(same(button.text, expected.text) for button in reference.buttons) == 1:
            name = f'the button "{expected.text}"'
            _color(differences, "button color", name, expected.color, alike[0].color, 0.0)


def _order(pairs: list[tuple[Part, Part]], differences: list[Difference]) -> None:
    """The first two neighbours of the reference that stand the other way round on the agent's page."""
    stacked = sorted((pair for pair in pairs if not (pair[0].nested or pair[1].nested)), key=lambda pair: pair[1].box.y)
    for upper, lower in pairwise(stacked):
        if _above(upper[1].box, lower[1].box) and _above(lower[0].box, upper[0].box):
            _add(differences, "order", name_of(upper[1]), expected="above", actual="below", other=name_of(lower[1]))
            return


def _above(box: Box, other: Box) -> bool:
    return box.height > 0 and other.height > 0 and box.y + box.height <= other.y + 2


def _texts(
    agent: Outline, reference: Outline, missing: list[Box], extra: list[Box], differences: list[Difference]
) -> None:
    """The first text that is missing or extra, else the first two that have changed places.

    A text that stands in a part which is missing or extra itself is not worth reporting.
    """
    if absent := _first_absent(reference, agent, missing):
        _add(differences, "text", _quoted(absent))
    elif absent := _first_absent(agent, reference, extra):
        _add(differences, "extra text", _quoted(absent))
    elif not any(difference.kind in ("order", "place", "missing", "extra") for difference in differences):
        _text_order(agent, reference, differences)


def _first_absent(page: Outline, other: Outline, apart: list[Box]) -> str | None:
    """The first text of a page whose beginning, as it is quoted, is nowhere on the other page; none in `apart`."""
    for line in page.lines:
        quoted = words_of(" ".join(line.text.split()[:QUOTED]))
        if quoted and not other.reads(quoted) and not any(within(line.box, box) for box in apart):
            return line.text
    return None


def _text_order(agent: Outline, reference: Outline, differences: list[Difference]) -> None:
    actual, expected = _places(agent), _places(reference)
    for first, second in pairwise([words for words in expected if words in actual]):
        boxes = expected[first].box, expected[second].box
        reversed_boxes = actual[second].box, actual[first].box
        names = _quoted(expected[first].text), _quoted(expected[second].text)
        for before, direction, opposite in ((_above, "above", "below"), (_left_of, "left of", "right of")):
            if before(*boxes) and before(*reversed_boxes):
                _add(differences, "text order", names[0], expected=direction, actual=opposite, other=names[1])
                return


def _places(page: Outline) -> dict[tuple[str, ...], Line]:
    """The texts that stand on a page just once, in document order."""
    counts = Counter(words_of(line.text) for line in page.lines)
    return {words_of(line.text): line for line in page.lines if counts[words_of(line.text)] == 1}


def _left_of(box: Box, other: Box) -> bool:
    apart = box.x + box.width <= other.x + 2
    return apart and min(box.y + box.height, other.y + other.height) > max(box.y, other.y)


def _quoted(text: str) -> str:
    words = text.split()
    return f'the text "{" ".join(words[:QUOTED])}{" ..." if len(words) > QUOTED else ""}"'
