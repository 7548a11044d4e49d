"""A batch engine as one that is asked prompt by prompt: what waits while it works is its next batch.

Which prompts share a batch depends on timing, so a completion is repeatable as far as the engine keeps it free of its
batch: the same tokens, log-probs up to rounding. Where bytes must be equal, dialogues advance in lock-step instead.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from sweetrl.engines.background import in_background
from sweetrl.errors import NoRoom
from sweetrl.protocols import Engine
from sweetrl.types import Completion, Prompt, Sampling, Usage


class Bridge:
    """An AsyncEngine over an Engine that lives in this process; at most `rows` completions are in one batch."""

    speaks_tokens = True

    def __init__(self, engine: Engine, rows: int = 256) -> None:
        self.engine, self.name, self.rows = engine, engine.name, rows
        self._waiting: list[tuple[Prompt, Sampling, asyncio.Future[list[Completion]]]] = []
        self._worker = ThreadPoolExecutor(1, "sweetrl-bridge")
        self._running: asyncio.Task[None] | None = None

    async def ask(self, prompt: Prompt, sampling: Sampling) -> list[Completion]:
        """Return the completions of one prompt, sampled together with whatever else is waiting."""
        return await in_background(self._ask(prompt, sampling))

    def usage(self) -> Usage:
        """What the engine has spent."""
        return self.engine.usage()

    def close(self) -> None:
        """Free the engine."""
        self._worker.shutdown(wait=True, cancel_futures=True)
        self.engine.close()

    async def _ask(self, prompt: Prompt, sampling: Sampling) -> list[Completion]:
        future: asyncio.Future[list[Completion]] = asyncio.get_running_loop().create_future()
        self._waiting.append((prompt, sampling, future))
        if self._running is None:
            self._running = asyncio.ensure_future(self._run())
        completions = await future
        if any(not one.token_ids for one in completions):
            raise NoRoom(f"the dialogue's {len(prompt.token_ids)} tokens leave no room in the model's context")
        return completions

    async def _run(self) -> None:
        """Sample batch after batch until nothing waits."""
        try:
            while self._waiting:
                batch = self._next()
                prompts, sampling = [one[0] for one in batch], batch[0][1]
                work: Any = asyncio.get_running_loop().run_in_executor(
                    self._worker, self.engine.sample, prompts, sampling
                )
                try:
                    found = await work
                except Exception as error:
                    for _, _, future in batch:
                        if not future.done():
                            future.set_exception(error)
                    continue
                for (_, _, future), completions in zip(batch, found, strict=True):
                    if not future.done():
                        future.set_result(completions)
        finally:
            self._running = None

    def _next(self) -> list[tuple[Prompt, Sampling, asyncio.Future[list[Completion]]]]:
        """Take the first waiting prompt and those that can be sampled together with it."""
        self._waiting = [one for one in self._waiting if not one[2].done()] or self._waiting[:1]
        sampling = self._waiting[0][1]
        room = max(self.rows // sampling.n, 1)
        taken = [one for one in self._waiting if one[1] == sampling][:room]
        chosen = {id(one) for one in taken}
        self._waiting = [one for one in self._waiting if id(one) not in chosen]
        return taken
