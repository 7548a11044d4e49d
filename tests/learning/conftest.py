"""Dialogues in the tiny model's own tokens, some replies sampled and some imported; the model in two precisions."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from types import MethodType
from typing import Any

import pytest

from sweetrl.colbench.types import AgentTurn, Message, Task, Trajectory
from sweetrl.engines.chat import ChatFormat
from sweetrl.settings import LoraSettings

QUESTIONS = ["Is there a maximum?", "What is the rate per hour?", "How should the result be rounded?"]
ANSWERS = ["The rate is 7.", "There is no maximum.", "Round it to 2 places.", "I do not know."]
CODE = "I WANT TO ANSWER:\n```python\ndef price(hours):\n    total = hours * {}\n    return round(total, 2)\n```"


@pytest.fixture(scope="session")
def tokenizer(tiny_model: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(tiny_model)


@pytest.fixture(scope="session")
def chat(tokenizer: Any) -> ChatFormat:
    return ChatFormat(tokenizer)


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


TOLERANCE = {"float64": 1e-9, "float32": 1e-5}


@pytest.fixture(scope="module", params=["float64", "float32"])
def adapted(request: pytest.FixtureRequest, tiny_model: Path) -> Any:
    """The tiny model with an adapter that differs from its start, in the precision of the test."""
    return adapted_model(tiny_model, request.param, head=False), TOLERANCE[request.param]


@pytest.fixture(scope="module", params=["float64", "float32"])
def headed(request: pytest.FixtureRequest, tiny_model: Path) -> Any:
    """The same with a critic's head that is not zero."""
    return adapted_model(tiny_model, request.param, head=True), TOLERANCE[request.param]


def adapted_model(tiny_model: Path, precision: str, head: bool) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    from sweetrl.learning.adapters import attach_adapter

    dtype = getattr(torch, precision)
    base = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=dtype).requires_grad_(False)
    model = attach_adapter(base, LoraSettings(rank=4, alpha=8), seed=1, head=head).to(dtype)
    generator = torch.Generator().manual_seed(2)
    for name, parameter in model.named_parameters():
        if "lora_B" in name or "score.modules_to_save" in name:
            parameter.data = 0.2 * torch.randn(parameter.shape, generator=generator, dtype=dtype)
    for module in model.modules():
        if type(module).__name__ == "LlamaRMSNorm":
            # transformers' own goes through float32, which would be all that a float64 comparison sees
            module.forward = MethodType(rms_norm, module)
    return model


def rms_norm(self: Any, hidden: Any) -> Any:
    import torch

    return self.weight * hidden * torch.rsqrt(hidden.square().mean(-1, keepdim=True) + self.variance_epsilon)
