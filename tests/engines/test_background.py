"""A batch engine asked prompt by prompt: the same tokens, fewer calls than prompts, and errors reach the caller."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from sweetrl.engines.background import Bridge, wait
from sweetrl.engines.transformers import TransformersEngine
from sweetrl.errors import NoRoom
from sweetrl.protocols import AsyncEngine
from sweetrl.types import Completion, Prompt, Sampling, Usage

SAMPLING = Sampling(12)


class Counting:
    """Says its prompt's seed; fails on request."""

    name = "counting"

    def __init__(self) -> None:
        self.calls: list[int] = []

    def session(self) -> Any:
        return self

    def sample(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[list[Completion]]:
        self.calls.append(len(prompts))
        if any(prompt.seed == 13 for prompt in prompts):
            raise RuntimeError("thirteen")
        return [[Completion(prompt.token_ids, (), str(prompt.seed), "stop")] * sampling.n for prompt in prompts]

    def usage(self) -> Usage:
        return Usage()

    def close(self) -> None: ...


async def ask_all(bridge: Bridge, prompts: Sequence[Prompt], sampling: Sampling = SAMPLING) -> list[Any]:
    return await asyncio.gather(*(bridge.ask(prompt, sampling) for prompt in prompts), return_exceptions=True)


def test_what_waits_is_sampled_together() -> None:
    engine = Counting()
    bridge = Bridge(engine, rows=8)
    assert isinstance(bridge, AsyncEngine)
    replies = wait(ask_all(bridge, [Prompt((1,), seed) for seed in range(100, 120)]))
    assert [group[0].text for group in replies] == [str(seed) for seed in range(100, 120)]
    assert sum(engine.calls) == 20 and max(engine.calls) == 8 and len(engine.calls) <= 4
    replies = asyncio.run(ask_all(bridge, [Prompt((1,), seed) for seed in range(6)], Sampling(12, n=4)))  # any loop
    assert [len(group) for group in replies] == [4] * 6 and max(engine.calls[4:] or engine.calls[-3:]) <= 8
    bridge.close()


def test_errors_reach_the_caller_and_no_later_request() -> None:
    bridge = Bridge(Counting())
    (failed,) = wait(ask_all(bridge, [Prompt((1,), 13)]))
    assert isinstance(failed, RuntimeError)
    ((fine,),) = wait(ask_all(bridge, [Prompt((1,), 14)]))
    assert fine.text == "14"
    (full,) = wait(ask_all(bridge, [Prompt((), 1)]))
    assert isinstance(full, NoRoom)
    bridge.close()


def test_the_tokens_are_those_of_the_engine(tiny_model: Path) -> None:
    engine = TransformersEngine(tiny_model, device="cpu", threads=1, rows=4)
    prompts = [Prompt((7, 8, seed + 10), seed) for seed in range(6)]
    expected = [group[0].token_ids for group in engine.sample(prompts, SAMPLING)]
    bridge = Bridge(engine, rows=4)
    assert [group[0].token_ids for group in wait(ask_all(bridge, prompts))] == expected
    with pytest.raises(NoRoom, match="leave no room"):
        wait(bridge.ask(Prompt((7,) * engine.context, 1), SAMPLING))
    bridge.close()
