"""The user of kind `described`: knows facts about a task, in plain sentences, and tells those that a question is about.

No model and no server: a question and a fact are about the same where they share words (their stems, by how few of the
task's facts have them, and a small table of synonyms). Nothing in a fact is code, so none can be given away.
"""

from __future__ import annotations

import math
import random
import re
from collections import Counter
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain

from sweetrl.config.sections import DESCRIBED
from sweetrl.errors import UserError
from sweetrl.types import Message, Task

UNKNOWN = ("I don't know.", "I can't say.", "I have no idea about that.")
REFUSED = "I can't give you all of it, but ask me about one thing at a time."
AT_ONCE = 3  # facts in one reply
NEAR = 0.75  # facts with at least this share of the best score are told with the best
LEAST = 0.5  # a fact of a lower score is not what was asked about
BY_KIND = 0.8  # what a fact of the question's kind gets beside the weights of shared words
FOREIGN = 0.3  # what each word of a question that has nothing to do with the task lowers the score by
LONGEST = 4_000  # characters of a question that are read


@dataclass(frozen=True)
class Fact:
    """Something that the user of a task knows: a sentence, and a question about it that does not give it away.

    `kind` is what sort of fact it is, `about` are the names in the program that it is about.
    """

    kind: str
    text: str
    question: str
    about: tuple[str, ...] = ()


def no_facts(spec: str) -> UserError:
    """Return the error for a domain without `facts`."""
    return UserError(
        f"{spec}: this domain offers no facts about its tasks, which `simulator.kind: described`, prompts with "
        "{facts} and `sweetrl users check` need; take another user or prompt, or give the class a method `facts`."
    )


@dataclass
class DescribedUser:
    """Answers questions from `facts` of a task, a few sentences at a time.

    A fact that has been told is told again only where nothing else is meant.
    """

    facts: Callable[[Task], Sequence[Fact]]
    characters: int = 400
    name = DESCRIBED
    instant = checked = True

    def reply(self, task: Task, messages: Sequence[Message], seed: int) -> str:
        """Return the user's words after `messages`; equal arguments give equal words."""
        question = messages[-1].content
        if wants_everything(question):
            return REFUSED
        facts = self.facts(task)
        earlier = " ".join(message.content for message in messages[1:] if message.role == "user")
        stated = {fact for fact in facts if fact.text in earlier}
        chosen = asked_about(question, task.problem_description, facts, stated)
        if not chosen:
            return random.Random(f"{seed}-{task.id}-{len(messages)}").choice(UNKNOWN)
        words = chosen[0].text
        for fact in chosen[1:AT_ONCE]:
            if len(words) + 1 + len(fact.text) > self.characters:
                break
            words = f"{words} {fact.text}"
        return words


# What a question is about

_WORD = re.compile(r"[a-z]+|\d+(?:\.\d+)?")
_STOP_WORDS = (
    "a about after all also am an and any anything are as at be been before being but by can could do does done each "
    "etc exactly for from function get give given has have how i if in into is it its just kind know let like make "
    "may me might more my need no not of ok on one only or other our please program python say see shall should show "
    "sure tell than thanks that the their them then there these they this those to too use used uses using value "
    "values very want was way we were what when where whether which while who why will with would yes you your so "
    "some such specific specifically there's something thing things work worked out code write certain consider take "
    "account based help here im default happen happens handle handled clarify confirm mean means expected expect "
    "particular result input inputs parameter parameters argument arguments applied apply applies following first "
    "between own same both either number numbers data "
)
_STOP = frozenset(_STOP_WORDS.split())
# Words that stand for one another; a stem of the first column is what all of a row are.
_SYNONYMS = {
    "round": "decimal precision digit ceil floor integer whole",
    "sort": "order rank arrange ascend descend",
    "error": "exception raise invalid fail wrong valueerror bad",
    "empty": "missing none null blank absent",
    "largest": "maximum max highest biggest greatest most top best cap upper",
    "smallest": "minimum min lowest least bottom lower fewest",
    "mean": "average avg",
    "multiply": "factor multiplier multiplied product",
    "divide": "divided ratio quotient",
    "percent": "percentage pct",
    "total": "sum overall",
    "letter": "case uppercase lowercase capital small sensitive",
}
# What shows the kind of a fact that a question is after; `condition` and `computation` are only asked for by name.
_KINDS = {
    "empty": r"empty|missing|not given|none (?:is )?given|no \w+ (?:is|are)|zero|edge case|null",
    "default": r"default|not (?:given|provided|specified)|none is given|optional|left out|omitted",
    "error": r"errors?|exceptions?|raised?|invalid|wrong",
    "fields": r"fields?\b|keys?\b|attributes?|structured?|look like|format of (?:the )?(?:input|each|\w+s\b)|contain",
    "return": r"return|output|result\b|outcome|give back|in the end",
    "computation": r"calculat\w*|comput\w*|formulas?|work(?:ed)? out|determin\w*|derive\w*|weigh\w*|arrive",
    "condition": r"conditions?|criteria|criterion|depends?|affects?|influences?|matters?|plays? a role|rules?\b|"
    r"thresholds?|cases?\b|ranges?|categor\w*|classif\w*|when\b|under what",
    "table": r"which (?:\w+ )?values|list of|what are|mapping|categories|options",
}
_CUES = {kind: re.compile(pattern, re.IGNORECASE) for kind, pattern in _KINDS.items()}
_CODE = re.compile(r"```.*?(```|\Z)", re.DOTALL)
_PARTS = re.compile(r"(?<=[?])\s+|\n+|(?<=[.;!])\s+(?=[A-Z0-9])")
_EVERYTHING = re.compile(
    r"\b(?:give|show|send|paste|share|provide|write|tell|post|copy|quote|repeat|print|read|see|have)\b[^.?!\n]{0,40}?"
    r"\b(?:codes?|implementation|source|function body|snippet|solution|everything|reference|pseudo-?code"
    r"|whole (?:function|program|thing)|full (?:function|program|details?|specification|logic)"
    r"|all (?:the |of )?(?:details?|rules|logic|requirements?|facts|information|it))\b"
    r"|\beverything (?:you know|about)\b|\bhow (?:is|would) (?:it|this) (?:be )?(?:written|implemented|coded)\b",
    re.IGNORECASE,
)
_OWN = re.compile(r"\b(?:i(?:'ll| will| can| would| shall| am|'m)|let me|so (?:that )?i)\b[^.?!\n]*", re.IGNORECASE)


def wants_everything(message: str) -> bool:
    """Whether an agent's message asks for the code, or for all that there is to know."""
    return bool(_EVERYTHING.search(_OWN.sub(" ", _CODE.sub(" ", message[:LONGEST]))))


def stem(word: str) -> str:
    """Return a word without its ending, so that forms of it are equal."""
    for ending in ("ations", "ation", "ating", "ated", "ings", "ing", "ies", "ied", "ers", "er", "ed", "es", "s", "ly"):
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            word = word.removesuffix(ending)
            break
    return word.rstrip("ey") if len(word) > 3 else word


_STEMS = {stem(word): name for name, row in _SYNONYMS.items() for word in (name, *row.split())}


@lru_cache(maxsize=4096)
def stems(text: str) -> frozenset[str]:
    """Return the stems of the words in `text` that mean something, synonyms as one."""
    spaced = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", text).replace("_", " ").lower()
    roots = {stem(word) for word in _WORD.findall(spaced) if word not in _STOP and (len(word) > 1 or word.isdigit())}
    return frozenset(_STEMS.get(root, root) for root in roots)


def asked_about(message: str, request: str, facts: Sequence[Fact], stated: Container[Fact] = ()) -> list[Fact]:
    """Return the facts that a message asks about, best first in each question; a `stated` one where no other fits."""
    chosen: dict[Fact, None] = {}
    words = _CODE.sub(" ", message[:LONGEST])
    parts = [part for part in _PARTS.split(words) if part.strip()]
    questions = [part for part in parts if "?" in part] or parts
    for question in questions:
        scores = scored(question, request, facts)
        best = max(scores.values(), default=0.0)
        if best < LEAST:
            continue
        near = [fact for fact, score in scores.items() if score >= NEAR * best]
        fresh = [fact for fact in near if fact not in stated]
        chosen |= dict.fromkeys(sorted(fresh or near[:1], key=lambda fact: -scores[fact]))
    return list(chosen)


def scored(question: str, request: str, facts: Sequence[Fact]) -> dict[Fact, float]:
    """Return how much each fact has to do with a question: the weights of the stems that they share, and its kind."""
    words = {fact: stems(f"{fact.text} {' '.join(fact.about)}") for fact in facts}
    weights = {each: math.log(1 + len(facts) / count) for each, count in Counter(chain(*words.values())).items()}
    in_question, kinds, rest = stems(question), set(), question
    for kind, cue in _CUES.items():
        if cue.search(question):
            kinds.add(kind)
            rest = cue.sub(" ", rest)
    foreign = len(stems(rest) - weights.keys() - stems(request))
    scores = {}
    for fact, own in words.items():
        hit = fact.kind in kinds or ("return" in kinds and "should return" in fact.text)
        shared = math.fsum(weights[each] for each in in_question & own) / (1 + FOREIGN * foreign)
        scores[fact] = shared + BY_KIND * (hit and bool(shared or not foreign))
    return scores
