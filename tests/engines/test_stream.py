"""A batch engine asked prompt by prompt: the same tokens, fewer calls than prompts, and errors reach the caller.

Engines with slots are in test_slots.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from sweetrl.engines.background import wait
from sweetrl.engines.stream import Stream
from sweetrl.engines.transformers import TransformersEngine
from sweetrl.errors import NoRoom
from sweetrl.protocols import AsyncEngine
from sweetrl.types import Prompt, Sampling

SAMPLING = Sampling(12)


@pytest.fixture
def engine(tiny_model: Path) -> TransformersEngine:
    return TransformersEngine(tiny_model, device="cpu", threads=1, rows=4)


async def ask_all(stream: Stream, prompts: Sequence[Prompt], sampling: Sampling = SAMPLING) -> list[Any]:
    return await asyncio.gather(*(stream.ask(prompt, sampling) for prompt in prompts), return_exceptions=True)


def test_what_waits_is_sampled_together(engine: TransformersEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    calls, sample = list[int](), engine.sample
    monkeypatch.setattr(engine, "sample", lambda prompts, how: calls.append(len(prompts)) or sample(prompts, how))
    prompts = [Prompt((7, 8, seed + 10), seed) for seed in range(6)]
    for how in (SAMPLING, Sampling(12, n=2)):
        expected = [[reply.token_ids for reply in group] for group in sample(prompts, how)]
        stream = Stream(engine)
        assert isinstance(stream, AsyncEngine)
        replies = asyncio.run(ask_all(stream, prompts, how))  # any loop
        assert [[reply.token_ids for reply in group] for group in replies] == expected
        assert sum(calls) == 6 and len(calls) < 4
        calls.clear()
    with pytest.raises(NoRoom, match="leave no room"):
        wait(stream.ask(Prompt((7,) * engine.context, 1), SAMPLING))
    stream.close()


def test_errors_reach_the_caller_and_no_later_request(
    engine: TransformersEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream, prompt = Stream(engine), Prompt((7, 8), 1)
    with monkeypatch.context() as patch:
        patch.setattr(engine, "sample", lambda *_: 1 / 0)
        (failed,) = wait(ask_all(stream, [prompt]))
        assert isinstance(failed, ZeroDivisionError)
    assert wait(stream.ask(prompt, SAMPLING))[0].token_ids
    stream.close()
