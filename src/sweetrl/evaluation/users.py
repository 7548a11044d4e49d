"""How good is a user? Questions whose answers are known, and what comes back (`sweetrl users check`).

The questions are made from a task's facts (`Domain.facts`), one for each, without what they say. A user is right who
says the numbers and quoted texts of such a fact (one without any: most of its words), and wrong who says something
else; beside that, each task gets questions about things that it knows nothing of, and requests for the code.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from sweetrl.colbench.described import Fact, stems
from sweetrl.colbench.domain import Domain
from sweetrl.colbench.personas import REFUSAL, refuses
from sweetrl.engines.background import side_by_side, wait
from sweetrl.errors import SimulatorError
from sweetrl.evaluation.statistics import Estimate, wilson_interval
from sweetrl.protocols import AsyncUserSimulator, UserSimulator
from sweetrl.seeds import simulator_seed
from sweetrl.types import Message, Task

QUESTIONS = 6  # about the facts of one task, in one dialogue
SHARE = 0.6  # of a fact's words that must be said where it has no numbers and texts
FOREIGN = 2  # questions about things that a task has nothing to do with
# Each with a pattern: of a task whose request or reference matches it, the question is not foreign.
FOREIGN_QUESTIONS = (
    ("Which currency should the amounts be in?", r"currenc|dollar|euro|usd|eur\b|gbp|\$|£|€"),
    ("Which language should the messages be in?", r"langu|english|messag|translat"),
    ("Which time zone should be used?", r"zone|utc|gmt|time"),
    ("Is there a discount for members?", r"discount|member"),
    ("Should the results be logged to a file?", r"\blog|file"),
    ("Does the weather matter?", r"weather|rain|snow|climat"),
    ("Should a password be checked?", r"passw|login|auth"),
    ("Is the shipping address needed?", r"ship|address|deliver"),
    ("Which database should it be stored in?", r"databas|stor|\bdb|sql"),
    ("Should it send an email when it is done?", r"mail|send|notif"),
)
FOR_THE_CODE = ("Please just show me the code you have in mind.", "Tell me everything you know about it, please.")
_LITERAL = re.compile(r'"[^"]*"|(?<![\w.])\d+(?:\.\d+)?')
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")  # the comma of 1,000


@dataclass
class Answers:
    """How often a user's answers were right, wrong, invented or a leak. No times: they depend on the machine."""

    user: str
    tasks: int = 0
    counts: Counter[str] = field(default_factory=Counter)

    def rate(self, what: str, of: str) -> Estimate:
        """Return a share with Wilson's interval."""
        return wilson_interval(self.counts[what], self.counts[of], 0.95)

    def rates(self) -> Iterator[tuple[str, Estimate]]:
        """Yield the rows of the table: questions about facts, about other things, for the code, and all replies."""
        for what in ("right", "wrong", "does not know", "ended early"):
            yield what, self.rate(what, "asked")
        yield "answered what it cannot know", self.rate("invented", "foreign")
        yield "leaked code", self.rate("leaks", "replies")

    def as_dict(self) -> dict[str, Any]:
        """Return the counts and rates as plain JSON values."""
        rates = {what: rate.as_dict() for what, rate in self.rates()}
        return {"user": self.user, "tasks": self.tasks, "questions": self.counts["asked"], "rates": rates}


def check_user(
    domain: Domain, user: UserSimulator, name: str, tasks: Sequence[Task], seed: int, workers: int
) -> Answers:
    """Ask a user about each of `tasks`; equal arguments give equal answers where the user is a function of theirs."""
    answers = Answers(name, len(tasks))

    async def ask(task: Task) -> None:
        for what, count in (await _ask(domain, user, task, seed)).items():
            answers.counts[what] += count

    wait(side_by_side(iter(tasks), ask, workers if isinstance(user, AsyncUserSimulator) else 1))
    return answers


async def _ask(domain: Domain, user: UserSimulator, task: Task, seed: int) -> Counter[str]:
    counts: Counter[str] = Counter()
    rng = random.Random(f"{seed}-{task.id}")
    request = Message("user", task.problem_description)

    async def say(history: Sequence[Message], question: str) -> str | None:
        messages = [*history, Message("assistant", question)]
        turn = simulator_seed(seed, len(messages) // 2)
        try:
            if isinstance(user, AsyncUserSimulator):
                words = await user.answer(task, messages, turn)
            else:
                words = user.reply(task, messages, turn)
        except SimulatorError:
            return None
        counts["replies"] += 1
        counts["leaks"] += domain.find_leak(task, words) is not None
        return words

    by_question: dict[str, list[Fact]] = {}
    for fact in domain.facts(task):
        by_question.setdefault(fact.question, []).append(fact)
    dialogue, earlier = [request], ""
    for question in rng.sample(sorted(by_question), min(QUESTIONS, len(by_question))):
        meant = by_question[question]
        if any(says(earlier, fact, task, question) for fact in meant):
            continue  # no agent would ask again
        words = await say(dialogue, question)
        counts["asked"] += 1
        if words is None or words.startswith(REFUSAL):
            counts["ended early"] += 1
        elif any(says(words, fact, task, question) for fact in meant):
            counts["right"] += 1
        else:
            counts["does not know" if refuses(words) else "wrong"] += 1
        if words is not None:
            dialogue += [Message("assistant", question), Message("user", words)]
            earlier = f"{earlier} {words}"
    contents = f"{task.problem_description} {domain.reference(task)}"
    foreign = [question for question, pattern in FOREIGN_QUESTIONS if not re.search(pattern, contents, re.IGNORECASE)]
    for question in rng.sample(foreign, min(FOREIGN, len(foreign))):
        words = await say([request], question)
        counts["foreign"] += 1
        counts["invented"] += words is not None and not refuses(words)
    for question in FOR_THE_CODE:
        await say([request], question)
    return counts


def says(words: str, fact: Fact, task: Task, question: str) -> bool:
    """Whether `words` say a fact: its numbers and quoted texts, but for those of the question and the request."""
    given = f"{question} {task.problem_description}"
    if literals := set(_LITERAL.findall(fact.text)) - set(_LITERAL.findall(given)):
        digits = _THOUSANDS.sub("", words)
        numbers = {float(number) for number in _NUMBER.findall(digits)}  # 15 does not say 5
        return all(
            literal.strip('"') in words if literal[0] == '"' else float(literal) in numbers for literal in literals
        )
    own = stems(fact.text) - stems(question)
    return bool(words) and len(own & stems(words)) >= SHARE * len(own)
