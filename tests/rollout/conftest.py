"""A scripted engine, a user who counts questions, and a scorer that counts letters: all plain functions."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from sweetrl.backend import Backend
from sweetrl.config.settings import AgentSettings
from sweetrl.engines.chat import ChatFormat
from sweetrl.errors import EngineError, SimulatorError, UserLeft
from sweetrl.rollout.context import RolloutContext
from sweetrl.types import Completion, Message, Prompt, Sampling, Score, Task, TestResult, Trajectory, Usage


def make_task(number: int) -> Task:
    return Task(
        id=f"train-{number:05d}",
        problem_description=f"I want function number {number}.",
        ground_truth="def f(x):\n    return x",
        test_cases=(("test1", "f(1)"),),
    )


class CountingUser:
    """Says how many questions they have heard; cannot speak about tasks whose number is in `mute`, and leaves when
    they are asked a second time about those in `leaves`."""

    name = "counting"

    def __init__(self, mute: Sequence[int] = (), leaves: Sequence[int] = ()) -> None:
        self.mute = {make_task(number).id for number in mute}
        self.leaves = {make_task(number).id for number in leaves}

    def reply(self, task: Task, messages: Sequence[Message], seed: int) -> str:
        questions = sum(message.role == "assistant" for message in messages)
        if task.id in self.mute:
            raise SimulatorError("the user fell silent")
        if task.id in self.leaves and questions == 2:
            raise UserLeft
        return f"That is question {questions}."


@dataclass
class ScriptedEngine:
    """Says the n-th of `replies` to a prompt with n assistant turns before it; `cut` replies have no end-of-turn."""

    chat: ChatFormat
    replies: Sequence[str]
    cut: frozenset[int] = frozenset()
    name: str = "scripted"
    batches: list[list[Prompt]] = field(default_factory=list)

    def session(self) -> ScriptedEngine:
        return self

    def sample(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[list[Completion]]:
        self.batches.append(list(prompts))
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


class SlowEngine:
    """An AsyncEngine around a batch engine: waits at random, refuses prompts about tasks in `broken`."""

    speaks_tokens = True
    name = "slow"

    def __init__(self, engine: Any, seed: int = 0, broken: Sequence[str] = ()) -> None:
        self.engine, self.chance, self.broken = engine, random.Random(seed), broken
        self.active = self.most = 0

    async def ask(self, prompt: Prompt, sampling: Sampling) -> list[Completion]:
        self.active += 1
        self.most = max(self.most, self.active)
        await asyncio.sleep(self.chance.random() * 0.004)
        self.active -= 1
        if prompt.group in self.broken:
            raise EngineError("the server is on fire")
        return list(self.engine.sample([prompt], sampling)[0])

    def usage(self) -> Usage:
        return Usage()

    def close(self) -> None: ...


class SlowUser:
    """Answers like `user`, after a while."""

    name = "counting"

    def __init__(self, user: Any, seed: int = 0) -> None:
        self.user, self.chance = user, random.Random(seed)

    def reply(self, task: Task, messages: Sequence[Message], seed: int) -> str:
        raise AssertionError("the loop awaits answers")

    async def answer(self, task: Task, messages: Sequence[Message], seed: int) -> str:
        await asyncio.sleep(self.chance.random() * 0.004)
        return str(self.user.reply(task, messages, seed))


class LetterScorer:
    """Reward is the share of the letter "a" in the answer."""

    def score(self, dialogues: Sequence[Trajectory]) -> list[Score]:
        return [self._score(dialogue.answer or "") for dialogue in dialogues]

    def _score(self, answer: str) -> Score:
        share = answer.count("a") / max(len(answer), 1)
        return Score(share, (TestResult("test1", share == 1.0, "equal"),), semantics="fixed", isolation="none")


@pytest.fixture(scope="session")
def cast(chat: ChatFormat) -> Any:
    """Everything above, without importing from a conftest."""
    shared = chat

    class Cast:
        chat = shared
        task = staticmethod(make_task)
        user = CountingUser
        scorer = LetterScorer
        slow_engine = SlowEngine
        slow_user = SlowUser

        @staticmethod
        def attempts(tasks: int, k: int = 2) -> list[tuple[Task, int]]:
            return [(make_task(number), attempt) for number in range(tasks) for attempt in range(k)]

        @staticmethod
        def engine(*replies: str, cut: Sequence[int] = ()) -> ScriptedEngine:
            return ScriptedEngine(chat, replies, frozenset(cut))

        @staticmethod
        def context(
            engine: Any, agent: AgentSettings, user: Any = None, chat: ChatFormat | None = chat
        ) -> RolloutContext:
            """Dialogues of `engine` and `user` about programs, scored by their letters."""
            return RolloutContext(Backend(), engine, chat, user or CountingUser(), LetterScorer(), agent)

    return Cast
