"""A scripted engine, a person who always says the same, and a scorer that counts letters: all plain functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from sweetrl.engines.chat import ChatFormat
from sweetrl.errors import SimulatorError
from sweetrl.types import Completion, Message, Prompt, Sampling, Score, Task, TestResult, Usage


def make_task(number: int) -> Task:
    return Task(
        id=f"train-{number:05d}",
        problem_description=f"I want function number {number}.",
        ground_truth="def f(x):\n    return x",
        test_cases=(("test1", "f(1)"),),
    )


class Person:
    """Says how many questions it has heard; cannot speak about tasks whose number is in `mute`."""

    name = "counting"

    def __init__(self, mute: Sequence[int] = ()) -> None:
        self.mute = {make_task(number).id for number in mute}

    def reply(self, task: Task, messages: Sequence[Message], seed: int) -> str:
        if task.id in self.mute:
            raise SimulatorError("the person left the room")
        return f"That is question {sum(message.role == 'assistant' for message in messages)}."


@dataclass
class ScriptedEngine:
    """Says the n-th of `replies` to a prompt with n assistant turns before it; `cut` replies lack their end-of-turn."""

    chat: ChatFormat
    replies: Sequence[str]
    cut: frozenset[int] = frozenset()
    name: str = "scripted"
    asked: list[list[Prompt]] = field(default_factory=list)

    def session(self) -> ScriptedEngine:
        return self

    def sample(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[list[Completion]]:
        self.asked.append(list(prompts))
        return [[self._say(prompt)] for prompt in prompts]

    def _say(self, prompt: Prompt) -> Completion:
        header = self.chat.follow(True, "x")[-1]
        turn = prompt.token_ids.count(header) - 1
        if turn >= len(self.replies):
            return Completion((), (), "", "length")
        text = self.replies[turn]
        ids = self.chat.reply(text)
        if turn in self.cut:
            return Completion(ids[:-1], (-0.5,) * (len(ids) - 1), text, "length")
        return Completion(ids, (-0.5,) * len(ids), text, "stop")

    def usage(self) -> Usage:
        return Usage()

    def close(self) -> None: ...


class LetterScorer:
    """Reward is the share of the letter "a" in the answer; `stop_after` answers it cannot go on."""

    def __init__(self, stop_after: Callable[[], None] | None = None) -> None:
        self.stop_after = stop_after

    def score(self, items: Sequence[tuple[Task, str | None]]) -> list[Score]:
        if self.stop_after is not None:
            self.stop_after()
        return [self._one(answer or "") for _, answer in items]

    def _one(self, answer: str) -> Score:
        share = answer.count("a") / max(len(answer), 1)
        return Score(share, (TestResult("test1", share == 1.0, "equal"),), "fixed", "none")


@pytest.fixture(scope="session")
def chat(tiny_model: Path) -> ChatFormat:
    from transformers import AutoTokenizer

    return ChatFormat(AutoTokenizer.from_pretrained(tiny_model))


@pytest.fixture(scope="session")
def cast(chat: ChatFormat) -> Any:
    """Everything above, without importing from a conftest."""

    class Cast:
        task = staticmethod(make_task)
        person = Person
        scorer = LetterScorer

        @staticmethod
        def engine(*replies: str, cut: Sequence[int] = ()) -> ScriptedEngine:
            return ScriptedEngine(chat, replies, frozenset(cut))

    return Cast
