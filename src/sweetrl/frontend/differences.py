"""How an agent's page differs from the one in mind, the greatest difference first; nothing that could be untrue.

A difference is said only where both pages show clearly what they are: a part that has no telling colour has no wrong
one, and a section is missing only if its heading can be read nowhere on the page.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise

from sweetrl.browser.page import Box
from sweetrl.frontend.colors import Rgb, told_apart
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
    """One difference: `part` has `wanted` and should not have `found`; `other` is the second part (order).

    Parts are called as in `calling`; a missing part has no `found`, one too many no `wanted`.
    """

    kind: str
    part: str
    wanted: str = ""
    found: str = ""
    other: str = ""
    salience: float = 0.0


def calling(part: Part) -> str:
    """Return what a user calls a part."""
    if part.kind == "section":
        return f'the section "{part.name}"'
    return {"navigation": "the navigation bar"}.get(part.kind, f"the {part.kind}")


def compare(agent: Outline, wanted: Outline) -> list[Difference]:
    """Return the differences of an agent's page from the wanted one, most salient first; equal pages have none."""
    if agent.empty and not wanted.empty:
        return [Difference("empty", "the page", salience=SALIENCE["empty"])]
    found: list[Difference] = []
    _color(found, "page color", "the page", wanted.ground, agent.ground, 1.0)
    pairs = _pairs(agent, wanted)
    for mine, theirs in pairs:
        _looks(agent, mine, wanted, theirs, found)
    lost, more = _presence(agent, wanted, found)
    _images(agent, wanted, found)
    _buttons(agent, wanted, found)
    _order(pairs, found)
    _texts(agent, wanted, lost, more, found)
    return sorted(found, key=lambda one: -one.salience)


def _add(out: list[Difference], kind: str, part: str, area: float = 0.0, **what: str) -> None:
    out.append(Difference(kind, part, salience=SALIENCE[kind] + 20 * min(area, 1.0), **what))


def _area(box: Box, page: Outline) -> float:
    return box.width * box.height / max(1, page.width * page.height)


def _color(found: list[Difference], kind: str, part: str, wanted: Rgb | None, seen: Rgb | None, area: float) -> None:
    names = told_apart(wanted, seen) if wanted is not None and seen is not None else None
    if names is not None:
        _add(found, kind, part, area, wanted=names[0], found=names[1])


def _pairs(agent: Outline, wanted: Outline) -> list[tuple[Part, Part]]:
    """(agent's part, wanted part) where both pages have it, in the wanted order."""
    pairs = []
    for part in wanted.parts:
        if part.kind == "section" and not _unique(wanted, part.name):
            continue
        mine = agent.first(part.kind, part.name)
        if mine is not None and (part.kind != "section" or _unique(agent, part.name)):
            pairs.append((mine, part))
    return pairs


def _unique(page: Outline, name: str) -> bool:
    return sum(same(part.name, name) for part in page.sections()) == 1


def _looks(agent: Outline, mine: Part, wanted: Outline, part: Part, found: list[Difference]) -> None:
    name = calling(part)
    area = max(_area(part.box, wanted), _area(mine.box, agent))
    plain = part.color == wanted.ground and mine.color == agent.ground  # it is the page's colour that differs
    if part.kind in ("header", "navigation", "footer", "section") and not plain:
        _color(found, "color", name, part.color, mine.color, area)
    if part.kind == "section":
        if part.columns != mine.columns:
            _add(found, "columns", name, area, wanted=str(part.columns), found=str(mine.columns))
        elif part.columns > 1:
            _color(found, "box color", name, part.boxes, mine.boxes, area)
    if part.kind == "navigation":
        places = _place(part, wanted), _place(mine, agent)
        if None not in places and places[0] != places[1]:
            _add(found, "place", name, area, wanted=str(places[0]), found=str(places[1]))
            return
    told = part.align is not None and mine.align is not None and not (part.nested and mine.nested)
    if told and part.align != mine.align:
        _add(found, "align", name, area, wanted=str(part.align), found=str(mine.align))


def _place(part: Part, page: Outline) -> str | None:
    """Where a navigation bar is: a column at a side of the page, or a bar across it."""
    box = part.box
    if box.width > 0.6 * page.width:
        return "across"
    if box.width < 0.4 * page.width and box.height > 1.2 * box.width:
        return "left" if box.x + box.width / 2 < page.width / 2 else "right"
    return None


def _presence(agent: Outline, wanted: Outline, found: list[Difference]) -> tuple[list[Box], list[Box]]:
    """Add missing and extra parts; return where they are: the missing on the wanted page, the extra on the agent's."""
    lost = [part for part in wanted.parts if not _present(part, agent)]
    more = [part for part in agent.parts if not _present(part, wanted)]
    for part in lost:
        _add(found, "missing", calling(part), _area(part.box, wanted))
    for part in more:
        _add(found, "extra", calling(part), _area(part.box, agent))
    return [part.box for part in lost], [part.box for part in more]


def _present(part: Part, page: Outline) -> bool:
    """Whether `page` may have `part`: in doubt it has."""
    if part.kind == "section":
        words = words_of(part.name)
        return page.reads(words) or any(sorted(words_of(line.text)) == sorted(words) for line in page.lines)
    if page.first(part.kind) is not None:
        return True
    # The same words without the mark-up (links in a row that is no <nav>) are the same part to whoever looks.
    return 2 * len(part.entries & page.entries) >= len(part.entries) > 0


def _images(agent: Outline, wanted: Outline, found: list[Difference]) -> None:
    if len(agent.images) != len(wanted.images):
        area = sum(_area(box, wanted) for box in wanted.images) + sum(_area(box, agent) for box in agent.images)
        _add(found, "images", "the page", area, wanted=str(len(wanted.images)), found=str(len(agent.images)))
        return
    for number, (mine, theirs) in enumerate(zip(agent.images, wanted.images, strict=True), start=1):
        if max(_factor(mine.width, theirs.width), _factor(mine.height, theirs.height)) < SIZE:
            continue
        name = "the picture" if len(wanted.images) == 1 else f"picture {number}"
        size = abs(_area(theirs, wanted) - _area(mine, agent))
        _add(found, "image size", name, size, wanted=size_of(theirs), found=size_of(mine))
        return  # one is enough: a grid of pictures differs in all of them


def _factor(one: float, other: float) -> float:
    return max(one, other, 1.0) / max(1.0, min(one, other))


def size_of(box: Box) -> str:
    """Return about how large a picture is, as users say it."""
    return f"{round(box.width / 10) * 10} by {round(box.height / 10) * 10}"


def _buttons(agent: Outline, wanted: Outline, found: list[Difference]) -> None:
    if bool(agent.buttons) != bool(wanted.buttons):
        kind = "missing" if wanted.buttons else "extra"
        _add(found, kind, "a button")
        return
    for button in wanted.buttons:
        alike = [one for one in agent.buttons if same(one.text, button.text) and words_of(one.text)]
        if len(alike) == 1 and sum(same(one.text, button.text) for one in wanted.buttons) == 1:
            _color(found, "button color", f'the button "{button.text}"', button.color, alike[0].color, 0.0)


def _order(pairs: list[tuple[Part, Part]], found: list[Difference]) -> None:
    """The first two neighbours of the wanted page that stand the other way round on the agent's."""
    stacked = sorted((pair for pair in pairs if not (pair[0].nested or pair[1].nested)), key=lambda pair: pair[1].box.y)
    for upper, lower in pairwise(stacked):
        if _above(upper[1].box, lower[1].box) and _above(lower[0].box, upper[0].box):
            _add(found, "order", calling(upper[1]), wanted="above", found="below", other=calling(lower[1]))
            return


def _above(one: Box, other: Box) -> bool:
    return one.height > 0 and other.height > 0 and one.y + one.height <= other.y + 2


def _texts(agent: Outline, wanted: Outline, lost: list[Box], more: list[Box], found: list[Difference]) -> None:
    """The first text that is missing or too many, else the first two that have changed places.

    A text in a part that is missing or too many itself (`lost`, `more`) is not worth saying.
    """
    missing, extra = _first_absent(wanted, agent, lost), _first_absent(agent, wanted, more)
    if missing:
        _add(found, "text", _quoted(missing))
    elif extra:
        _add(found, "extra text", _quoted(extra))
    elif not any(one.kind in ("order", "place", "missing", "extra") for one in found):
        _text_order(agent, wanted, found)


def _first_absent(one: Outline, other: Outline, apart: list[Box]) -> str | None:
    """The first text of a page whose beginning, as it is quoted, is nowhere on the other one."""
    for line in one.lines:
        quoted = words_of(" ".join(line.text.split()[:QUOTED]))
        if quoted and not other.reads(quoted) and not any(within(line.box, box) for box in apart):
            return line.text
    return None


def _text_order(agent: Outline, wanted: Outline, found: list[Difference]) -> None:
    mine, theirs = _places(agent), _places(wanted)
    for first, second in pairwise([words for words in theirs if words in mine]):
        boxes = theirs[first].box, theirs[second].box
        other = mine[second].box, mine[first].box
        names = _quoted(theirs[first].text), _quoted(theirs[second].text)
        for before, direction, opposite in ((_above, "above", "below"), (_left_of, "left of", "right of")):
            if before(*boxes) and before(*other):
                _add(found, "text order", names[0], wanted=direction, found=opposite, other=names[1])
                return


def _places(page: Outline) -> dict[tuple[str, ...], Line]:
    """The texts that stand on a page just once, in document order."""
    seen = Counter(words_of(line.text) for line in page.lines)
    return {words_of(line.text): line for line in page.lines if seen[words_of(line.text)] == 1}


def _left_of(one: Box, other: Box) -> bool:
    apart = one.x + one.width <= other.x + 2
    return apart and min(one.y + one.height, other.y + other.height) > max(one.y, other.y)


def _quoted(text: str) -> str:
    words = text.split()
    return f'the text "{" ".join(words[:QUOTED])}{" ..." if len(words) > QUOTED else ""}"'
