"""The waiting line by itself: what waits while another version takes over."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from sweetrl.handover.chat_requests import BadRequest, read_request
from sweetrl.handover.line import Answer, Line, Speaker
from sweetrl.handover.source import Handed
from sweetrl.tracking.chat_agent import AgentConfig
from sweetrl.types import Completion


class Agent:
    """Says how it was asked to sample, once `go_on` is set."""

    context = 99

    def __init__(self) -> None:
        self.engine, self.begun, self.go_on = self, threading.Event(), threading.Event()

    def prompt_ids(self, messages: Any) -> tuple[int, ...]:
        return (1,)

    def sample(self, prompts: Any, sampling: Any) -> list[list[Completion]]:
        self.begun.set()
        assert self.go_on.wait(30)
        words = f"{sampling.max_new_tokens} {sampling.temperature:g} {sampling.top_p:g}"
        return [[Completion((1,), (), words, "stop")] for _ in prompts]

    def close(self) -> None:
        pass


def speaker(version: str, **values: Any) -> Speaker:
    agent: Any = Agent()
    return Speaker(Handed("agent", version, Path("adapter"), "b", AgentConfig("b", **values)), agent)


def user(*words: str) -> list[dict[str, str]]:
    return [{"role": "assistant" if n % 2 else "user", "content": one} for n, one in enumerate(words)]


def test_what_waits_is_answered_by_the_rules_of_who_answers() -> None:
    first = speaker("1", max_turns=2, max_new_tokens=8, temperature=1.0, top_p=0.5, system_prompt="Old.")
    second = speaker("2", max_turns=1, max_new_tokens=4, temperature=0.5, top_p=0.9, system_prompt="New.")
    first_agent: Any = first.agent
    second_agent: Any = second.agent
    second_agent.go_on.set()

    async def main() -> list[Any]:
        line = Line(first)
        runs = asyncio.create_task(line.run())

        def ask(*messages: dict[str, str], **values: Any) -> asyncio.Task[Answer]:
            value = {"model": "agent", "messages": list(messages), **values}
            return asyncio.create_task(line.ask(lambda config: read_request(value, config, ("agent",))))

        asked = [ask(*user("a"))]
        await asyncio.to_thread(first_agent.begun.wait, 30)
        asked += [
            ask(*user("b")),
            ask(*user("b"), temperature=0.25, max_tokens=2),
            ask(*user("a", "b", "c")),
            ask({"role": "system", "content": "Old."}, *user("b")),
        ]
        while line.waiting < 4:
            await asyncio.sleep(0)
        line.change(second)
        found = await asyncio.gather(*asked[1:], return_exceptions=True)
        first_agent.go_on.set()
        found = [await asked[0], *found]
        runs.cancel()
        return found

    under_way, plain, own, late, system = asyncio.run(main())
    assert (under_way.handed.version, under_way.completions[0].text) == ("1", "8 1 0.5")
    assert (plain.handed.version, plain.completions[0].text) == ("2", "4 0.5 0.9")
    assert own.completions[0].text == "2 0.25 0.9"
    for error, code in ((late, "turn_limit"), (system, "system_prompt")):
        assert isinstance(error, BadRequest) and (error.status, error.code) == (400, code)


def test_what_the_agent_refuses_does_not_wait() -> None:
    line = Line(speaker("1", max_turns=1))
    value = {"model": "agent", "messages": user("a", "b", "c")}
    with pytest.raises(BadRequest, match="all of its 1 turns"):
        asyncio.run(line.ask(lambda config: read_request(value, config, ("agent",))))
