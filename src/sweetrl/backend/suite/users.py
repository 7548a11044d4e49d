"""The scripted person of the synthetic suite, who plays several personas itself (`simulator.persona`)."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Literal, get_args

from sweetrl.backend.suite.details import BY_NAME, kinds_asked
from sweetrl.backend.suite.tasks import read_facts
from sweetrl.colbench.personas import AFTER, BEFORE, CORRECTION, PATIENCE, REFUSAL, without_misheard
from sweetrl.errors import UserError
from sweetrl.types import Message, Task

Persona = Literal["plain", "terse", "talkative", "impatient", "forgetful"]
PERSONAS: tuple[Persona, ...] = get_args(Persona)

NOTHING = ("No, there is none.", "No, nothing like that.", "No, not that I know of.")
UNKNOWN = ("I do not know.", "Sorry, I am not sure about that.")
LOSES_PATIENCE = 0.25  # chance, at each further question, that no question is answered any more
DETAILS_PER_REPLY = 2


def questions_of(messages: Sequence[Message]) -> list[tuple[str, ...]]:
    """The kinds of detail that each of the agent's messages asks for."""
    return [kinds_asked(message.content) for message in messages if message.role == "assistant"]


def answered_questions(messages: Sequence[Message]) -> list[tuple[str, ...]]:
    """The kinds of detail that each of the agent's messages asks for; none where the person refused to answer."""
    messages = without_misheard(messages)
    replies = [message.content for message in messages if message.role == "user"][1:]
    return [() if reply == REFUSAL else kinds for kinds, reply in zip(questions_of(messages), replies, strict=False)]


def answer_counts(facts: Mapping[str, Sequence[str]], questions: Sequence[Sequence[str]]) -> dict[str, int]:
    """How many questions about each detail have been answered; `Kind.parts` of them bring out all of it."""
    counts: dict[str, int] = {}
    for kinds in questions:
        for name in [name for name in kinds if name in facts][:DETAILS_PER_REPLY]:
            counts[name] = counts.get(name, 0) + 1
    return counts


def complete_details(facts: Mapping[str, Sequence[str]], questions: Sequence[Sequence[str]]) -> set[str]:
    """The details that the user has told with all their parts."""
    return {name for name, count in answer_counts(facts, questions).items() if count >= BY_NAME[name].parts}


def brought_out(
    facts: Mapping[str, Sequence[str]], questions: Sequence[Sequence[str]], kinds: Sequence[str]
) -> set[str]:
    """The details that are not complete yet and of which a question about `kinds` brings out a part or all."""
    return answer_counts(facts, [kinds]).keys() - complete_details(facts, questions)


class ScriptedSimulator:
    """Answers questions about a synthetic task from its hidden facts, in a few sentences, and never in code.

    Only questions are answered: what a reply holds of code or statements brings out nothing. A detail the task does not
    have is denied; a question about no kind of detail is answered with "I do not know". Some details are told in two
    parts, the second at a further question. The personas:

    plain      answers in a sentence
    terse      answers in a word or two
    talkative  adds to each answer what nobody asked for
    impatient  from the fourth question on may lose patience, and then answers no more
    forgetful  has one detail wrong at first, and corrects it if it is asked about it again
    """

    instant = True
    personas = PERSONAS

    def __init__(self, persona: Persona = "plain") -> None:
        self.persona = persona
        self.name = "scripted" if persona == "plain" else f"scripted:{persona}"

    def reply(self, task: Task, messages: Sequence[Message], seed: int) -> str:
        """The user's reply to the last (assistant) message; equal arguments give equal words.

        UserError for a task that is not of the suite: to deny what it hides would be untrue.
        """
        if not read_facts(task.hidden_information):
            raise UserError(
                f"task {task.id}: the scripted user knows nothing about it, because it is not of the synthetic suite; "
                "set `simulator.kind` to `described`, `llm`, `replay`, `human` or a user of your own "
                "(docs/real-models.md)."
            )
        rng = random.Random(f"{seed}-{task.id}-{len(messages)}")
        if self.persona == "impatient":
            refused = any(message.content == REFUSAL for message in messages if message.role == "user")
            questions = sum(message.role == "assistant" for message in messages)
            if refused or (questions > PATIENCE and rng.random() < LOSES_PATIENCE):
                return REFUSAL
        answer = self._answer(task, messages, rng)
        if self.persona == "talkative":
            return f"{rng.choice(BEFORE)} {answer} {rng.choice(AFTER)}"
        return answer

    def _answer(self, task: Task, messages: Sequence[Message], rng: random.Random) -> str:
        facts = read_facts(task.hidden_information)
        *earlier, kinds = questions_of(messages)
        terse = self.persona == "terse"
        if not kinds:
            return rng.choice(UNKNOWN)
        names = [name for name in kinds if name in facts][:DETAILS_PER_REPLY]
        if not names:
            return "No." if terse else rng.choice(NOTHING)
        counts = answer_counts(facts, earlier)
        return " ".join(self._tell(task, name, facts, counts.get(name, 0), rng) for name in names)

    def _tell(self, task: Task, name: str, facts: Mapping[str, Sequence[str]], before: int, rng: random.Random) -> str:
        kind, values = BY_NAME[name], facts[name]
        correction = ""
        if self.persona == "forgetful" and name == slip(task, facts):
            if before:
                correction = f"{CORRECTION} "
            else:
                values = [str(int(value) + 3) for value in values]
        if before and kind.parts > 1:
            text = kind.short_rest if self.persona == "terse" else rng.choice(kind.rest)
        else:
            text = kind.terse if self.persona == "terse" else rng.choice(kind.answers)
        return correction + text.format(*values)


def slip(task: Task, facts: Mapping[str, Sequence[str]]) -> str | None:
    """The detail that a forgetful person has wrong at first: a number told in one part; None if there is none."""
    names = [name for name in facts if BY_NAME[name].parts == 1 and BY_NAME[name].values]
    return random.Random(f"slip-{task.id}").choice(names) if names else None
