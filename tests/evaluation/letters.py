"""Dialogues in letters: replies are drawn from the prompt, and the reward counts the `a` in answers."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from sweetrl.backend import Backend
from sweetrl.config.settings import AgentSettings
from sweetrl.engines.chat import ChatFormat
from sweetrl.rollout.context import RolloutContext
from sweetrl.types import ANSWER_MARKER, Completion, Prompt, Sampling, Score, Task, Trajectory, Usage

BACKEND = Backend()
AGENT = AgentSettings(max_turns=5, max_new_tokens=50)


def make_task(number: int) -> Task:
    return Task(f"task-{number}", f"I want function {number}.", "def f(x):\n    return x", (("test1", "f(1)"),))


def reply_of(prompt: Prompt, index: int = 0) -> str:
    """A question or an answer of letters, by the prompt, its seed and the reply's number."""
    chance = random.Random(f"{prompt.seed} {prompt.token_ids} {index}")
    letters = "".join(chance.choice("ab") for _ in range(6))
    return f"{ANSWER_MARKER} {letters}" if chance.random() < 0.4 else f"Is it {letters}?"


def share(answer: str | None) -> float:
    """The reward: the share of `a` in the answer."""
    return (answer or "").count("a") / 6


class Engine:
    """Its i-th reply depends on the prompt and i only; keeps the prompts of each call."""

    name = "letters"

    def __init__(self, chat: ChatFormat):
        self.chat, self.sampled = chat, 0
        self.calls: list[list[Prompt]] = []

    def session(self) -> Any:
        return self

    def sample(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[list[Completion]]:
        assert sampling.max_new_tokens == AGENT.max_new_tokens
        self.calls.append(list(prompts))
        self.sampled += sampling.n * len(prompts)
        return [[self.say(reply_of(prompt, index)) for index in range(sampling.n)] for prompt in prompts]

    def say(self, text: str) -> Completion:
        ids = self.chat.reply(text)
        return Completion(ids, (0.0,) * len(ids), text, "stop")

    def usage(self) -> Usage:
        return Usage()

    def close(self) -> None:
        """Nothing to free."""


class Letters:
    """Scores dialogues by `share`."""

    def __init__(self) -> None:
        self.scored = 0

    def score(self, dialogues: Sequence[Trajectory]) -> list[Score]:
        self.scored += len(dialogues)
        return [Score(share(dialogue.answer)) for dialogue in dialogues]


def context_of(chat: ChatFormat, user: Any, engine: Any = None, scorer: Any = None) -> RolloutContext:
    return RolloutContext(BACKEND, engine or Engine(chat), chat, user, scorer or Letters(), AGENT)
