"""What a user says of differences, and what they answer to questions, in plain sentences."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from itertools import pairwise

from sweetrl.frontend.colors import color_name
from sweetrl.frontend.differences import Difference, calling, size_of
from sweetrl.frontend.outline import Outline, Part, words_of

FINE = ("It looks right to me.", "I see no more differences, it looks right.", "Yes, it looks right now.")
UNKNOWN = ("I do not know.", "I am not sure about that.")
NO_PAGE = ("I see no page yet, please show me one.", "Please show me a page, I cannot see one yet.")
_SIDES = {"left": "on the left", "center": "in the centre", "right": "on the right"}
_PLACES = {
    "across": "a bar across the page",
    "left": "a column on the left side",
    "right": "a column on the right side",
}

_SENTENCES: dict[str, tuple[str, ...]] = {
    "empty": ("Your page looks empty.",),
    "page color": (
        "The background of the page should be {wanted}, yours is {found}.",
        "I want {wanted} as the background of the page, not {found}.",
    ),
    "color": ("{Part} should be {wanted}, yours is {found}.", "Please make {part} {wanted}, not {found}."),
    "missing": ("{Part} is missing.", "I miss {part} on your page."),
    "extra": ("I do not want {part}.", "Please leave out {part}."),
    "images": ("There should be {wanted}, you have {found}.",),
    "image size": ("{Part} should be about {wanted} pixels, yours is {found}.",),
    "box color": ("The boxes in {part} should be {wanted}, yours are {found}.",),
    "columns": ("{Part} should have {wanted}, yours has {found}.",),
    "align": ("The text in {part} should be {wanted}, not {found}.",),
    "place": ("{Part} should be {wanted}, not {found}.",),
    "order": ("{Part} should be above {other}, on your page it is below.",),
    "text": ("{Part} is missing.", "I miss {part}."),
    "extra text": ("I do not want {part}.", "Please leave out {part}."),
    "text order": ("{Part} should be {wanted} {other}, on your page it is {found}.",),
    "button color": ("{Part} should be {wanted}, yours is {found}.",),
}


def say(differences: Sequence[Difference], rng: random.Random, most: int) -> str:
    """Return sentences about the first `most` differences, or that there are none."""
    if not differences:
        return rng.choice(FINE)
    return " ".join(sentence(one, rng) for one in differences[:most])


def sentence(difference: Difference, rng: random.Random) -> str:
    """Return one sentence about one difference."""
    kind, part, wanted, found = difference.kind, difference.part, difference.wanted, difference.found
    if kind == "missing" and part.startswith("the form"):
        part = "a form"
    if kind == "images":
        wanted = f"{'no' if wanted == '0' else wanted} {'picture' if wanted == '1' else 'pictures'}"
        found = "none" if found == "0" else found
    elif kind == "columns":
        wanted, found = _columns(wanted), "none" if found == "1" else found
    elif kind in ("align", "place"):
        words = _SIDES if kind == "align" else _PLACES
        wanted, found = words.get(wanted, ""), words.get(found, "")
    wordings = _SENTENCES[kind]
    if difference.wanted.startswith("a "):  # "a darker blue", which is blue, too
        wordings = wordings[:1]
    names = {"part": part, "Part": part[0].upper() + part[1:], "other": difference.other}
    return rng.choice(wordings).format(wanted=wanted, found=found, **names)


def _columns(count: str) -> str:
    return "no columns" if count == "1" else f"{count} columns"


# Direct questions. A question is about a part and a property; what is not both clear is not answered.

_PARTS: tuple[tuple[str, str], ...] = (
    ("navigation", r"\bnavigation|\bnav\b|\bmenu bar|\blinks?\b"),
    ("header", r"\bheader|\btop bar|\btitle\b"),
    ("footer", r"\bfooter|\bbottom\b"),
    ("form", r"\bform\b"),
    ("list", r"\blist\b"),
    ("table", r"\btable\b"),
    ("button", r"\bbuttons?\b"),
    ("picture", r"\bpictures?\b|\bimages?\b|\bphotos?\b"),
    ("boxes", r"\bboxes\b|\bcards?\b"),
    ("page", r"\bpage\b|\bbackground\b"),
)
_COLOR = re.compile(
    r"\bcolou?rs?\b|\bcolou?red\b|\bpalette\b|\bdark\b|\blight\b"
    r"|\b(?:white|black|gr[ae]y|red|orange|yellow|green|teal|blue|purple|pink|brown)\b"
)
# What is written in a colour of its own.
_INK = re.compile(r"\btexts?\b|\bfonts?\b|\bletters?\b|\bwords?\b|\btitles?\b|\bheadings?\b|\blinks?\b")
_ALIGN = re.compile(r"\balign|\bcent(?:re|er)|\bleft\b|\bright\b|\bside\b")
_COLUMNS = re.compile(r"\bcolumns?\b|\bside by side\b")
_SIZE = re.compile(r"\bsizes?\b|\blarge\b|\bbig\b|\bsmall\b|\bwide\b|\bhigh\b|\btall\b|\bpixels\b")
_MANY = re.compile(r"\bhow many\b|\bnumber of\b")
_EXISTS = re.compile(r"\bis there\b|\bare there\b|\bshould there\b|\bdo you want\b|\bshould it have\b|\bneed\b|\bany\b")
_THERE = (
    r"(?:(?:is|are) there|should there be|do you (?:want|need)(?: me to (?:add|include))?|should (?:it|the page) have"
    r"|does it (?:have|need))"
    r"(?: an?| any| the| some| section| called| named)* "
)
_PLACE = r"(?: bar| section)?(?: (?:on|at|in|of) (?:the|your|this|my) (?:page|top|bottom|end))*$"
_BEFORE = re.compile(r"(?<!e\.g\.)(?<!i\.e\.)(?<=[.!])\s|\n")  # where the sentences before a question end
_ORDER = re.compile(r"\bwhat order\b|\bwhich order\b|\bthe order\b|\bcomes? first\b")


def answer(question: str, page: Outline, rng: random.Random) -> str:
    """Answer a question about the wanted page truthfully; "I do not know." where it cannot be told."""
    return true_answer(question, page) or rng.choice(UNKNOWN)


def true_answer(question: str, page: Outline) -> str | None:
    """Answer the questions in a text (at most two) about the wanted page; None where nothing can be told for sure."""
    asked = [part for part in re.split(r"(?<=\?)", question) if part.strip().endswith("?")]
    alone = [_BEFORE.split(one.strip())[-1] for one in asked[:2]]
    told = [said for one in alone if (said := _answer(one.lower(), page))]
    return " ".join(dict.fromkeys(told)) or None


def _answer(asked: str, page: Outline) -> str | None:
    if _ORDER.search(asked):
        return _order(page)
    section = _section(asked, page)
    # The words of a section's name ask for nothing.
    rest = asked if section is None else f" {_plain(asked)} ".replace(f" {_plain(section.name)} ", " ").strip()
    named = [name for name, form in _PARTS if re.search(form, rest)]
    about = [name for name in named if name != "page"]
    # The button in the header is neither any button nor the header, and a text's colour is not that of its part.
    if len(about) > 1 or (_COLOR.search(rest) and _INK.search(rest)):
        return None
    if section is not None:
        there = _there(asked, _plain(section.name))
        return _about(rest, section, there) if about in ([], ["boxes"]) else None
    if not named:
        return None
    part = next(iter(about), "page")
    if part == "picture":
        return _pictures(asked, page)
    if part == "button":
        return _button(asked, page)
    if part == "boxes":
        boxed = [one for one in page.sections() if one.columns > 1]
        if not boxed:
            return "There are no columns."
        return _about(f"boxes {asked}", boxed[0]) if len(boxed) == 1 else None
    if part == "page":
        told = _COLOR.search(asked) and page.ground
        return f"The background of the page is {color_name(page.ground)}." if told else None
    found = next((one for one in page.parts if one.kind == part), None)
    if found is None:
        if not _surely_without(part, page):
            return None
        name = {"navigation": "navigation bar"}.get(part, part)
        return f"There is no {name}."
    return _about(asked, found, _there(asked, dict(_PARTS)[part]))


def _surely_without(part: str, page: Outline) -> bool:
    """Whether nobody who looks at the page would find such a part, whatever it is made of."""
    if part == "navigation":
        return page.links < 2
    if part == "footer":
        return "rights reserved" not in page.texts and "copyright" not in page.texts
    return part in ("form", "table", "list")


def _section(asked: str, page: Outline) -> Part | None:
    said = f" {_plain(asked)} "
    named = [one for one in page.sections() if f" {_plain(one.name)} " in said]
    return max(named, key=lambda one: len(one.name)) if named else None


def _plain(text: str) -> str:
    """The words of a text, without marks."""
    return " ".join(words_of(text))


def _there(asked: str, form: str) -> bool:
    """Whether a question is if there is a part that is called so, and nothing more: not if there is a blue one."""
    return re.search(rf"{_THERE}(?:{form})\w*{_PLACE}", _plain(asked)) is not None


def _about(asked: str, part: Part, there: bool = False) -> str | None:
    name = calling(part)
    name = name[0].upper() + name[1:]
    if _COLUMNS.search(asked) and part.kind == "section":
        return f"{name} has {_columns(str(part.columns))}."
    if _COLOR.search(asked):
        if "box" in asked and part.boxes is not None:
            return f"The boxes in {calling(part)} are {color_name(part.boxes)}."
        return f"{name} is {color_name(part.color)}." if part.color else None
    if _ALIGN.search(asked):
        return f"The text in {calling(part)} is {_SIDES[part.align]}." if part.align else None
    if there:
        return f"Yes, there is {calling(part).replace('the ', 'a ', 1)}."
    return None


def _pictures(asked: str, page: Outline) -> str | None:
    if not page.images:
        return "There are no pictures."
    if _SIZE.search(asked):
        first = "first " if len(page.images) > 1 else ""
        return f"The {first}picture is about {size_of(page.images[0])} pixels."
    return _count(asked, "picture", len(page.images))


def _button(asked: str, page: Outline) -> str | None:
    if not page.buttons:
        return "There are no buttons."
    first = page.buttons[0]
    if _COLOR.search(asked):
        return f'The button "{first.text}" is {color_name(first.color)}.' if first.color and first.text else None
    return _count(asked, "button", len(page.buttons))


def _count(asked: str, thing: str, number: int) -> str | None:
    if not (_MANY.search(asked) or _EXISTS.search(asked)):
        return None
    return f"There is 1 {thing}." if number == 1 else f"There are {number} {thing}s."


def _order(page: Outline) -> str | None:
    stacked = sorted(
        (one for one in page.parts if one.kind not in ("list", "form", "table")), key=lambda one: one.box.y
    )
    apart = all(a.box.y + a.box.height <= b.box.y + 2 for a, b in pairwise(stacked))
    if len(stacked) < 2 or not apart:
        return None
    return f"From top to bottom: {', '.join(calling(one) for one in stacked)}."
