"""Helpers for the tests of sweetrl.interop.verifiers: a chat program without a process, users who fail, leave
or echo, and a reward that allows one thread at a time.

verifiers' own chat programs (`null`, `bash`) are scripts that uv prepares from a package index; a harness may as well
ask the interception endpoint itself. verifiers finds it by its id, `chat-in-process`.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from typing import Any, ClassVar

import httpx
import openai
import verifiers.v1 as vf
from verifiers.v1.dialects.chat import message_to_wire

from sweetrl.errors import SimulatorError, UserLeft

__all__ = ["ChatInProcess"]


class ChatInProcess(vf.Harness[vf.HarnessConfig]):
    """Asks the model once for each of the user's turns."""

    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_RESUME = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self, ctx: Any, trace: Any, runtime: Any, endpoint: str, secret: str, mcp_urls: dict[str, str], data: Any
    ) -> Any:
        system, prompt = self.resolve_prompt(data)
        opening = [] if system is None else [{"role": "system", "content": system}]
        messages = opening + [message_to_wire(message) for message in prompt]
        # It asks again after a 502, as verifiers' own programs do.
        async with httpx.AsyncClient(trust_env=False, timeout=60.0) as http:
            client = openai.AsyncOpenAI(base_url=endpoint, api_key=secret, http_client=http)
            try:
                reply = await client.chat.completions.create(model=ctx.model, messages=messages)
            except openai.OpenAIError as error:
                return vf.ProgramResult(1, "", str(error))
        return vf.ProgramResult(0, reply.model_dump_json(), "")


class Gone:
    """A user who never answers."""

    name = "gone"

    def reply(self, task: Any, messages: Any, seed: int) -> str:
        raise SimulatorError("nobody is there")


class Leaves:
    """A user who leaves instead of answering."""

    name = "leaves"

    def reply(self, task: Any, messages: Any, seed: int) -> str:
        raise UserLeft


class Echo:
    """A user who says what they have heard."""

    name = "echo"

    def reply(self, task: Any, messages: Any, seed: int) -> str:
        return f"{seed % 1000}: {messages[-1].content!r}"


class Late:
    """A user who misses the first question of every dialogue, and writes down the seeds that they are given."""

    name = "late"
    seen: ClassVar[Counter[int]] = Counter()

    def reply(self, task: Any, messages: Any, seed: int) -> str:
        self.seen[seed] += 1
        if self.seen[seed] == 1:
            raise SimulatorError("nobody is there yet")
        return f"Ask {seed % 1000}."


_busy = threading.Lock()


def alone(task: Any, dialogue: Any) -> float:
    """Half a point; nothing where two threads ask for it at a time."""
    if not _busy.acquire(blocking=False):
        return 0.0
    time.sleep(0.05)
    _busy.release()
    return 0.5
