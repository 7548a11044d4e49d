"""Dialogues in the tiny model's own tokens: some replies sampled (with ids), some imported (text only)."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sweetrl.config.settings import PretrainSettings
from sweetrl.engines.chat import ChatFormat
from sweetrl.lm.data import Row, encode
from sweetrl.types import AgentTurn, Message, Task, Trajectory

QUESTIONS = ["Is there a maximum?", "What is the rate per hour?", "How should the result be rounded?"]
ANSWERS = ["The rate is 7.", "There is no maximum.", "Round it to 2 places.", "I do not know."]
CODE = "I WANT TO ANSWER:\n```python\ndef price(hours):\n    total = hours * {}\n    return round(total, 2)\n```"


def _task(number: int) -> Task:
    return Task(
        id=f"train-{number:05d}",
        problem_description="I want a function that computes the price of a parking ticket.",
        ground_truth=f"def price(hours):\n    return round(hours * {number + 2}, 2)",
        test_cases=(("test1", "price(3)"),),
    )


@pytest.fixture(scope="session")
def make_trajectory(chat: ChatFormat) -> Callable[..., Trajectory]:
    """A dialogue of 2 to 5 agent turns; the third reply of a sampled one was cut by the token limit."""

    def make(number: int, attempt: int, reward: float | None = 0.5, sampled: bool = True, **changes: Any) -> Trajectory:
        chance = random.Random(number * 1000 + attempt)
        messages = [Message("user", _task(number).problem_description)]
        turns = []
        for turn in range(chance.randint(1, 4)):
            text = chance.choice(QUESTIONS)
            cut = turn == 2
            ids = chat.reply(text)[:-1] if cut else chat.reply(text)
            if sampled:
                turns.append(AgentTurn(len(messages), text, ids, finish_reason="length" if cut else "stop"))
            messages += [Message("assistant", text), Message("user", chance.choice(ANSWERS))]
        code = CODE.format(chance.randint(1, 9))
        if sampled:
            turns.append(AgentTurn(len(messages), code, chat.reply(code), finish_reason="stop"))
        messages.append(Message("assistant", code))
        return Trajectory(_task(number), attempt, tuple(messages), tuple(turns), code, reward, **changes)

    return make


@pytest.fixture(scope="session")
def trajectories(make_trajectory: Callable[..., Trajectory]) -> list[Trajectory]:
    """Ten tasks, three attempts each with rewards 1, 0.5 and 0; every other task is imported as text."""
    return [
        make_trajectory(number, attempt, (1.0, 0.5, 0.0)[attempt], sampled=number % 2 == 0)
        for number in range(10)
        for attempt in range(3)
    ]


@pytest.fixture(scope="session")
def rows(trajectories: list[Trajectory], chat: ChatFormat) -> tuple[Row, ...]:
    return tuple(encode(dialogue, chat, "You help a user.") for dialogue in trajectories[:9])


@pytest.fixture(scope="session")
def recipe_settings() -> Callable[[Path], dict[str, Any]]:
    """A function that reads what a shipped base was pre-trained with; what is a constant now is left out."""

    def read(base: Path) -> dict[str, Any]:
        stored = json.loads((base / "recipe.json").read_text(encoding="utf-8"))["settings"]
        return {name: stored[name] for name in PretrainSettings.model_fields}

    return read
