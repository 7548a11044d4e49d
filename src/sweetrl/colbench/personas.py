"""Personas: in what manner a user answers (`simulator.persona`), for every kind of user that speaks.

`WithPersona` gives one to any user who answers at once; a user plays those in its `personas` itself. A language model
is told how to be in words (`IN_WORDS`).
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from sweetrl.config.sections import Persona
from sweetrl.protocols import UserSimulator
from sweetrl.types import Message, Task

BEFORE = ("Good that you ask.", "Let me think about it.", "My partner knows more of this.", "Oh yes, that one.")
AFTER = ("It has been so for years.", "I hope that helps.", "We were never sure of it.", "You would not believe it.")
REFUSAL = "No more questions, please just write it."
PATIENCE = 3  # questions that an impatient person answers
FORGETS = 0.25  # share of their answers that a forgetful person has lost
MISUNDERSTANDS = 0.25  # share of the questions that are taken for others
FORGOT = "I don't know any more."
CORRECTION = "Sorry, I was wrong before."  # opens an answer
MISHEARD = "You mean what you asked before?"
VAGUE = ("Hm, not that I know.", "Hm, why do you ask?", "...", "Would that make a difference?", "Let us see.")
_SENTENCE_END = re.compile(r'(?<=[.!?])\s(?=[^"]*(?:"[^"]*"[^"]*)*\Z)')  # outside what is quoted
_REFUSES = re.compile(
    r"(?:no|no idea|none|nope)\W*$|no, |sorry\b|i (?:do not|don't) know|i can't|i have no idea|hm\b|\W+$", re.IGNORECASE
)

IN_WORDS: dict[str, str] = {
    "terse": "The person says as little as possible: a few words, no whole sentences.",
    "talkative": "The person chats: there is a harmless remark before and after the answer, which adds no fact.",
    "impatient": f'The person answers {PATIENCE} questions. To every later one they say only: "{REFUSAL}"',
    "forgetful": "The person has forgotten about a quarter of what they had in mind, and says so when asked about it.",
    "misunderstanding": "The person takes about every fourth question for one about something near, and answers that.",
    "vague": "The person never says plainly that they do not know or that there is none: they say something like "
    '"hm, not that I know", ask back, or say nothing but "...".',
}


@dataclass(frozen=True)
class WithPersona:
    """A user who answers at once, in the manner of a persona; equal arguments give equal words."""

    user: UserSimulator
    persona: Persona

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", f"{self.user.name}:{self.persona}")

    def __getattr__(self, name: str) -> Any:
        if name in ("user", "answer"):  # not there yet (a copy is being made), and words that would have no manner
            raise AttributeError(name)
        return getattr(self.user, name)

    def reply(self, task: Task, messages: Sequence[Message], seed: int) -> str:
        """Return the user's words after `messages`."""
        rng = random.Random(f"{self.persona}-{seed}-{task.id}-{len(messages)}")
        questions = sum(message.role == "assistant" for message in messages)
        if self.persona == "impatient" and questions > PATIENCE:
            return REFUSAL
        heard = [*without_misheard(messages[:-1]), messages[-1]]
        if self.persona == "misunderstanding" and rng.random() < MISUNDERSTANDS:
            before = [message.content for message in heard if message.role == "user"][1:]
            return f"{MISHEARD} {before[-1]}" if before else "What do you mean?"
        words = self.user.reply(task, heard, seed)
        if self.persona == "forgetful" and random.Random(f"{task.id}-{words}").random() < FORGETS:
            return FORGOT  # the same in every dialogue about the task, however they are asked
        if self.persona == "vague" and refuses(words):
            return rng.choice(VAGUE)
        if self.persona == "terse":
            return _SENTENCE_END.split(words, maxsplit=1)[0]
        return f"{rng.choice(BEFORE)} {words} {rng.choice(AFTER)}" if self.persona == "talkative" else words


def refuses(words: str) -> bool:
    """Whether a user's words say no more than that there is nothing, or that they do not know."""
    words = words.strip().removeprefix(f"{CORRECTION} ")
    for before, after in product(BEFORE, AFTER):
        words = words.removeprefix(f"{before} ").removesuffix(f" {after}")
    return words in (*VAGUE, FORGOT, REFUSAL, "What do you mean?") or bool(_REFUSES.match(words))


def without_misheard(messages: Sequence[Message]) -> list[Message]:
    """Return a dialogue without the questions that were taken for others."""
    kept: list[Message] = []
    for message in messages:
        if message.role == "user" and (message.content.startswith(MISHEARD) or message.content == "What do you mean?"):
            del kept[-1:]
        else:
            kept.append(message)
    return kept
