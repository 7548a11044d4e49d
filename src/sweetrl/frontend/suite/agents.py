"""The scripted agents of the frontend suite: an oracle, and the demonstrators that a base agent learns from.

They read only what an agent may read: the request, their own pages, and what the user says.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from sweetrl.colbench.dialogue import converse
from sweetrl.frontend.pages import find_page
from sweetrl.frontend.suite.designs import (
    BY_NAME,
    DETAILS,
    KIND_OF,
    NONE,
    STRONG,
    SWAPPED,
    Design,
    read_page,
    write_page,
)
from sweetrl.frontend.suite.looks import LOOKS, hinted_look
from sweetrl.frontend.suite.sketch import sketch
from sweetrl.frontend.suite.tasks import read_request, reference_design
from sweetrl.frontend.users import MOST, PageUser
from sweetrl.types import ANSWER_MARKER, Demonstration, Message, Task

if TYPE_CHECKING:
    from sweetrl.config.settings import PretrainSettings

SHOW = ("Here is the page.", "How is this?", "I changed it.")
# What a part has when the user only says that it is missing.
ASSUMED = {"navigation bar": ("navigation color", "dark gray"), "footer": ("footer color", "dark gray")}
_BARS = {"header": "header color", "navigation bar": "navigation color", "footer": "footer color"}

QUESTIONS = {
    "page color": "What colour is the background of the page?",
    "header color": "What colour is the header?",
    "header align": "Where is the text in the header, left or right?",
    "navigation color": "What colour is the navigation bar?",
    "footer color": "What colour is the footer?",
    "order": "Which order do you want?",
    "about picture": "Is there a picture?",
    "offers columns": "How many columns are in Our offers?",
    "offers boxes": "What colour are the boxes in Our offers?",
    "contact button": "What colour is the button?",
    "gallery pictures": "How many pictures are there?",
}


def scripted_user(differences: int = MOST) -> PageUser:
    """The scripted user, who sees the suite's pages as sketches: for agents that write only pages of the suite."""
    return PageUser(sketch, differences)


def listen(design: Design, words: str) -> Design:
    """Return `design` with what a user says in `words` put right; what is no detail of the suite changes nothing."""
    for sentence in re.split(r"(?<=[.!])\s+", words):
        values = _corrections(design, sentence)
        design = design.set({name: value for name, value in values.items() if value in BY_NAME[name].values})
    return design


def _corrections(design: Design, sentence: str) -> dict[str, str]:
    """The details that one sentence settles, with their values."""
    if match := re.search(
        r"background of the page (?:should be|is) ([a-z ]+)|want ([a-z ]+) as the background", sentence
    ):
        return {"page color": (match[1] or match[2]).strip()}
    if match := re.search(
        r"should be (\d+) pictures?|should be (no) pictures|There (?:is|are) (\d+|no) pictures?", sentence
    ):
        return _pictures(design, match[1] or match[2] or match[3])
    if match := re.search(r"icture.* about (\d+ by \d+)", sentence):
        return {"gallery picture" if "gallery" in design.sections else "about picture": match[1]}
    if match := re.search(r"oxes in .*? (?:should be|are) ([a-z ]+)", sentence):
        return {"offers boxes": match[1].strip()}
    if match := re.search(r"(?:have|has) (\d) columns", sentence):
        return {"offers columns": match[1]}
    if match := re.search(r"button .*?(?:should be|is) ([a-z ]+)", sentence):
        return {"contact button": match[1].strip()}
    part = _part(sentence)
    if part is None:
        return {}
    if match := re.search(r"text in .* (?:should be|is) (?:on|in) the (left|centre|right)", sentence):
        side = match[1].replace("centre", "center")
        return {f"{part.split()[0]} align": side} if f"{part.split()[0]} align" in BY_NAME else {}
    if "should be above" in sentence:
        return _order(design, sentence)
    if re.search(r"is missing|I miss", sentence) and part in ASSUMED:
        name, value = ASSUMED[part]
        return {name: value}
    if re.search(r"do not want|leave out|There is no", sentence):
        return {_BARS[part]: NONE} if part in ASSUMED else {}
    if match := re.search(r"(?:should be|is) ([a-z ]+)|make ([^,]+), not", sentence):
        color = _color_word(match[1] or match[2])
        return {_BARS.get(part, f"{part} color"): color} if color else {}
    return {}


def _color_word(text: str) -> str:
    """The suite's colour at the end of `text`: "the header dark blue" is dark blue."""
    words = text.split()
    names = BY_NAME["page color"].values + STRONG
    return next((" ".join(words[start:]) for start in range(len(words)) if " ".join(words[start:]) in names), "")


def _part(sentence: str) -> str | None:
    """The part that a sentence names first: a bar, or a kind of section."""
    named = re.search(r'section "([^"]+)"', sentence)
    bar = re.search(r"header|navigation bar|footer", sentence)
    if named and (bar is None or named.start() < bar.start()):
        return KIND_OF.get(named[1])
    return bar[0] if bar else None


def _pictures(design: Design, count: str) -> dict[str, str]:
    if "gallery" in design.sections:
        return {"gallery pictures": count}
    if count in ("0", "no"):
        return {"about picture": NONE}
    return {"about picture": "300 by 200"} if design["about picture"] == NONE else {}


def _order(design: Design, sentence: str) -> dict[str, str]:
    above, _, below = sentence.partition("should be above")
    if "navigation" in above + below:
        return {"navigation place": "above" if "navigation" in above else "below"}
    return {"order": SWAPPED if design["order"] != SWAPPED else BY_NAME["order"].plain}


def belief(messages: Sequence[Message]) -> Design:
    """Return the page as the dialogue so far settles it: the request, the last page shown, the words since then.

    ValueError where the request is not one of the suite.
    """
    return settled(messages)[0]


def settled(messages: Sequence[Message]) -> tuple[Design, set[str]]:
    """Return that page, and the names of the details that the user's words have put right."""
    plain = read_request(messages[0].content)
    design, corrected = plain, set[str]()
    for message in messages[1:]:
        if message.role == "user":
            heard = listen(design, message.content)
            corrected.update(detail.name for detail in DETAILS if heard[detail.name] != design[detail.name])
            design = heard
        elif (html := find_page(message.content)) is not None:
            design = read_page(html, plain.sections) or design
    return design, corrected


def _fine(messages: Sequence[Message]) -> bool:
    return messages[-1].role == "user" and "looks right" in messages[-1].content


def show(design: Design, final: bool, words: str) -> str:
    """A reply with a page: to be looked at, or the last one."""
    return f"{ANSWER_MARKER}\n{write_page(design)}" if final else f"{words}\n{write_page(design)}"


class OracleAgent:
    """Shows the page as it is settled, and ends when the user sees no more differences."""

    def act(self, task: Task, messages: Sequence[Message]) -> str:
        """The next reply."""
        return show(belief(messages), _fine(messages), SHOW[0])


# The share of the details that a demonstrator takes from the look in a reply that heeds the request.
HEEDED = 0.95
# What a demonstrator does instead of putting right all that the user said: shares; else it shows the same page again.
FORGET, MEDDLE, ASK = 0.4, 0.3, 0.15
STOP, STOP_GROWTH = 0.15, 0.1  # how readily it ends early, and how much more readily each turn

Start = Literal["hints", "usual", "random"]


@dataclass(frozen=True)
class ScriptedAgent:
    """A control: puts right all that the user says, until they see no more differences or the turns are over.

    hints    begins with the look that the request names: what an actor can know, and the bar for trained ones
    usual    begins with a plain page, whatever the request says
    random   begins with any look
    """

    start: Start
    max_turns: int
    seed: int = 0

    def act(self, task: Task, messages: Sequence[Message]) -> str:
        """The next reply, from what an agent may see."""
        design = belief(messages)
        if len(messages) == 1 and self.start != "usual":
            named = hinted_look(task.problem_description)
            look = random.Random(f"{self.seed}-{task.id}").choice(LOOKS) if self.start == "random" else named
            design = look.on(design) if look is not None else design
        return show(design, _fine(messages) or len(messages) // 2 >= self.max_turns - 1, SHOW[0])


@dataclass(frozen=True)
class Demonstrator:
    """An imperfect scripted agent: the base agent learns its habits and its faults from these.

    Its habit is to begin with a plain page, whatever the request says, and to put right what the user points out. With
    probability `heed` a reply heeds the request: the details of which the user has said nothing are as the look that
    the request names has them, nearly all (`HEEDED`).

    With probability `quality` a reply puts right all that the user said. Else it is a page without one of the changes
    (`FORGET`), one with a detail changed that nobody asked for (`MEDDLE`), a question (`ASK`), or the same page again.
    Before that it ends early with probability (1 - quality) x (`STOP` + `STOP_GROWTH` a turn).

    An `informed` agent has seen the reference: it has each unnamed detail right with probability `heed_page`.
    """

    max_turns: int
    rng: random.Random
    quality: float
    heed: float
    informed: bool = False
    heed_page: float = 0.5

    def act(self, task: Task, messages: Sequence[Message]) -> str:
        """The next reply; always a final page in the last turn."""
        rng = self.rng
        turn, design = len(messages) // 2, self._design(task, messages)
        fault = 1.0 - self.quality
        early = turn > 0 and rng.random() < fault * (STOP + STOP_GROWTH * turn)
        if turn >= self.max_turns - 1 or early or _fine(messages):
            return show(design, True, "")
        if rng.random() < self.quality:
            return show(design, False, rng.choice(SHOW))
        return self._fault(design, belief(messages[: max(1, len(messages) - 1)]), rng)

    def _design(self, task: Task, messages: Sequence[Message]) -> Design:
        """The page as it is settled, and what the agent knows or heeds of the details that the user has not named."""
        design, corrected = settled(messages)
        if self.informed:
            source, share = reference_design(task), self.heed_page
        else:
            look = hinted_look(task.problem_description)
            heeds = self.rng.random() < self.heed
            source, share = look.on(design) if look is not None else design, HEEDED if heeds else 0.0
        names = [detail.name for detail in design.open_details() if detail.name not in corrected]
        heeded = {name: source[name] for name in names if self.rng.random() < share}
        return design if _fine(messages) else design.set(heeded)

    def _fault(self, design: Design, before: Design, rng: random.Random) -> str:
        kind = rng.random()
        if kind < FORGET:
            changed = [detail.name for detail in DETAILS if design[detail.name] != before[detail.name]]
            if changed:
                name = rng.choice(changed)
                return show(design.set({name: before[name]}), False, rng.choice(SHOW))
        elif kind < FORGET + MEDDLE:
            detail = rng.choice([detail for detail in design.open_details() if detail.name != "navigation place"])
            return show(design.set({detail.name: rng.choice(detail.values)}), False, rng.choice(SHOW))
        elif kind < FORGET + MEDDLE + ASK:
            names = [name for name in QUESTIONS if BY_NAME[name].section in ("", *design.sections)]
            return QUESTIONS[rng.choice(names)]
        return show(before, False, rng.choice(SHOW))


def demonstrate(
    task: Task, settings: PretrainSettings, max_turns: int, seed: int, differences: int = MOST
) -> Demonstration:
    """Play one dialogue of a demonstrator with the scripted user, without a browser; a function of its arguments.

    `differences` is how many of them the user points out at a time.
    """
    rng = random.Random(f"page-demonstration-{seed}")
    quality, heed = rng.uniform(settings.poorest, settings.best), rng.uniform(settings.heed_least, settings.heed_most)
    informed = rng.random() < settings.informed
    agent = Demonstrator(max_turns, rng, quality, heed, informed=informed, heed_page=settings.informed_heed)
    user = scripted_user(differences)
    return Demonstration(converse(agent.act, user, task, max_turns, seed), informed)
