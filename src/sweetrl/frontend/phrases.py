"""What a user says about differences, and what they answer to questions, in plain sentences."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from itertools import pairwise

from sweetrl.frontend.colors import color_name
from sweetrl.frontend.differences import Difference, name_of, size_of
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
        "The background of the page should be {expected}, yours is {actual}.",
        "I want {expected} as the background of the page, not {actual}.",
    ),
    "color": ("{Part} should be {expected}, yours is {actual}.", "Please make {part} {expected}, not {actual}."),
    "missing": ("{Part} is missing.", "I miss {part} on your page."),
    "extra": ("I do not want {part}.", "Please leave out {part}."),
    "images": ("There should be {expected}, you have {actual}.",),
    "image size": ("{Part} should be about {expected} pixels, yours is {actual}.",),
    "box color": ("The boxes in {part} should be {expected}, yours are {actual}.",),
    "columns": ("{Part} should have {expected}, yours has {actual}.",),
    "align": ("The text in {part} should be {expected}, not {actual}.",),
    "place": ("{Part} should be {expected}, not {actual}.",),
    "order": ("{Part} should be above {other}, on your page it is below.",),
    "text": ("{Part} is missing.", "I miss {part}."),
    "extra text": ("I do not want {part}.", "Please leave out {part}."),
    "text order": ("{Part} should be {expected} {other}, on your page it is {actual}.",),
    "button color": ("{Part} should be {expected}, yours is {actual}.",),
}


def say(differences: Sequence[Difference], rng: random.Random, most: int) -> str:
    """Return sentences about the first `most` differences, or that there are none."""
    if not differences:
        return rng.choice(FINE)
    return " ".join(sentence(difference, rng) for difference in differences[:most])


def sentence(difference: Difference, rng: random.Random) -> str:
    """Return one sentence about one difference."""
    kind, part, expected, actual = difference.kind, difference.part, difference.expected, difference.actual
    if kind == "missing" and part.startswith("the form"):
        part = "a form"
    if kind == "images":
        expected = f"{'no' if expected == '0' else expected} {'picture' if expected == '1' else 'pictures'}"
        actual = "none" if actual == "0" else actual
    elif kind == "columns":
        expected, actual = _columns(expected), "none" if actual == "1" else actual
    elif kind in ("align", "place"):
        words = _SIDES if kind == "align" else _PLACES
        expected, actual = words.get(expected, ""), words.get(actual, "")
    wordings = _SENTENCES[kind]
    if difference.expected.startswith("a "):  # "a darker blue", which is blue, too
        wordings = wordings[:1]
    names = {"part": part, "Part": part[0].upper() + part[1:], "other": difference.other}
    return rng.choice(wordings).format(expected=expected, actual=actual, **names)


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
    """Answer a question about the reference truthfully; "I do not know." where the page does not settle it."""
    return true_answer(question, page) or rng.choice(UNKNOWN)


def true_answer(text: str, page: Outline) -> str | None:
    """Answer the first two questions in a text about the reference; None where none has a certain answer."""
    parts = [part.strip() for part in re.split(r"(?<=\?)", text) if part.strip().endswith("?")]
    questions = [_BEFORE.split(part)[-1].lower() for part in parts[:2]]
    answers = [reply for question in questions if (reply := _answer(question, page))]
    return " ".join(dict.fromkeys(answers)) or None


def _answer(question: str, page: Outline) -> str | None:
    if _ORDER.search(question):
        return _order(page)
    section = _section(question, page)
    # The words of a section's name ask for nothing.
    rest = question if section is None else f" {_plain(question)} ".replace(f" {_plain(section.name)} ", " ").strip()
    named = [name for name, form in _PARTS if re.search(form, rest)]
    about = [name for name in named if name != "page"]
    # The button in the header is neither any button nor the header, and a text's colour is not that of its part.
    if len(about) > 1 or (_COLOR.search(rest) and _INK.search(rest)):
        return None
    if section is not None:
        there = _there(question, _plain(section.name))
        return _about(rest, section, there) if about in ([], ["boxes"]) else None
    if not named:
        return None
    name = next(iter(about), "page")
    if name == "picture":
        return _pictures(question, page)
    if name == "button":
        return _button(question, page)
    if name == "boxes":
        boxed = [part for part in page.sections() if part.columns > 1]
        if not boxed:  # sections side by side may be what is called cards
            return None if _stacked(page.sections()) is None else "There are no columns."
        return _about(f"boxes {question}", boxed[0]) if len(boxed) == 1 else None
    if name == "page":
        clear = _COLOR.search(question) and page.ground
        return f"The background of the page is {color_name(page.ground)}." if clear else None
    part = next((part for part in page.parts if part.kind == name), None)
    if part is None:
        absent = f"There is no {'navigation bar' if name == 'navigation' else name}."
        return absent if _surely_without(name, page) else None
    return _about(question, part, _there(question, dict(_PARTS)[name]))


def _surely_without(name: str, page: Outline) -> bool:
    """Whether nobody who looks at the page would see a part of this name, whatever it is made of."""
    if name == "navigation":
        return page.links < 2
    if name == "footer":
        return "rights reserved" not in page.texts and "copyright" not in page.texts
    return name in ("form", "table", "list")


def _section(question: str, page: Outline) -> Part | None:
    words = f" {_plain(question)} "
    named = [section for section in page.sections() if f" {_plain(section.name)} " in words]
    return max(named, key=lambda section: len(section.name)) if named else None


def _plain(text: str) -> str:
    """The words of a text, without marks."""
    return " ".join(words_of(text))


def _there(question: str, form: str) -> bool:
    """Whether a question asks only if there is a part of this name: "is there a blue header?" asks for more."""
    return re.search(rf"{_THERE}(?:{form})\w*{_PLACE}", _plain(question)) is not None


def _about(question: str, part: Part, there: bool = False) -> str | None:
    name = name_of(part)
    name = name[0].upper() + name[1:]
    if _COLUMNS.search(question) and part.kind == "section":
        return f"{name} has {_columns(str(part.columns))}."
    if _COLOR.search(question):
        if "box" in question and part.boxes is not None:
            return f"The boxes in {name_of(part)} are {color_name(part.boxes)}."
        return f"{name} is {color_name(part.color)}." if part.color else None
    if _ALIGN.search(question):
        return f"The text in {name_of(part)} is {_SIDES[part.align]}." if part.align else None
    if there:
        return f"Yes, there is {name_of(part).replace('the ', 'a ', 1)}."
    return None


def _pictures(question: str, page: Outline) -> str | None:
    if not page.images:
        return "There are no pictures."
    if _SIZE.search(question):
        first = "first " if len(page.images) > 1 else ""
        return f"The {first}picture is about {size_of(page.images[0])} pixels."
    return _count(question, "picture", len(page.images))


def _button(question: str, page: Outline) -> str | None:
    if not page.buttons:
        return "There are no buttons."
    first = page.buttons[0]
    if _COLOR.search(question):
        return f'The button "{first.text}" is {color_name(first.color)}.' if first.color and first.text else None
    return _count(question, "button", len(page.buttons))


def _count(question: str, noun: str, number: int) -> str | None:
    if not (_MANY.search(question) or _EXISTS.search(question)):
        return None
    return f"There is 1 {noun}." if number == 1 else f"There are {number} {noun}s."


def _order(page: Outline) -> str | None:
    parts = [part for part in page.parts if part.kind not in ("list", "form", "table")]
    stacked = _stacked(parts)
    if stacked is None or len(stacked) < 2:
        return None
    return f"From top to bottom: {', '.join(name_of(part) for part in stacked)}."


def _stacked(parts: Sequence[Part]) -> list[Part] | None:
    """The parts from top to bottom; None where some stand side by side."""
    stacked = sorted(parts, key=lambda part: part.box.y)
    apart = all(upper.box.y + upper.box.height <= lower.box.y + 2 for upper, lower in pairwise(stacked))
    return stacked if apart else None
