"""A scripted agent for tasks about which a domain offers facts: it asks, gets answers, and hands the reference over.

A pretrained model that imitates it (stage `warm-start`) learns how dialogues go. Its faults are what training is to
remove: most of its questions would suit any request, and it stops too early or too late.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

from sweetrl.colbench.described import DescribedUser
from sweetrl.colbench.dialogue import converse
from sweetrl.types import Demonstration, Message, Task

if TYPE_CHECKING:
    from sweetrl.colbench.domain import Domain
    from sweetrl.config.settings import PretrainSettings

STOP = 0.1  # the chance that it answers at a turn, whatever it has been told
HABIT = (
    "Should the result be rounded?",
    "What should happen if an input is empty or missing?",
    "What form should the result have?",
    "Which inputs are invalid?",
    "Are there any limits to the values?",
    "In which unit are the inputs?",
    "Does the order of the inputs matter?",
    "Should upper and lower case be treated alike?",
    "Is there a default for anything?",
    "Can the numbers be negative?",
)


def demonstrate(domain: Domain, task: Task, settings: PretrainSettings, max_turns: int, seed: int) -> Demonstration:
    """Play one dialogue with the user of kind `described`; a function of its arguments.

    With probability `heed` a turn's question is about a fact that the user has not told yet, else it is one of HABIT.
    `heed` is drawn between `settings.heed_least` and `heed_most`. A share `settings.informed` of the agents has seen
    the reference and has `informed_heed` instead. Where no question is left, the agent answers.
    """
    rng = random.Random(f"demonstration-{seed}")
    heed = rng.uniform(settings.heed_least, settings.heed_most)
    informed = rng.random() < settings.informed
    heed = settings.informed_heed if informed else heed
    facts = domain.facts(task)
    opening, reference = domain.reference_answer(task)
    answer = f"{opening}{reference}" + ("\n```" if "```" in opening else "")

    def act(task: Task, messages: Sequence[Message]) -> str:
        questions = {message.content for message in messages if message.role == "assistant"}
        replies = " ".join(message.content for message in messages[2::2])
        heeds = rng.random() < heed
        if heeds:
            choices = [fact.question for fact in facts if fact.text not in replies and fact.question not in questions]
        else:
            choices = [question for question in HABIT if question not in questions]
        if rng.random() < STOP or len(questions) == max_turns - 1 or not choices:
            return answer
        return rng.choice(choices)

    user = DescribedUser(domain.facts, domain.settings.simulator.reply_characters or domain.reply_characters)
    return Demonstration(converse(act, user, task, max_turns, seed), informed)
