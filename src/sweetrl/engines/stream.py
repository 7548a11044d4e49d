"""The transformers engine asked prompt by prompt: each reply goes back when it is over, whatever else is under way."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import Future
from queue import SimpleQueue
from threading import Thread

from sweetrl.engines.background import Bridge, checked_room
from sweetrl.engines.slots import SlotReply
from sweetrl.engines.transformers import TransformersEngine
from sweetrl.protocols import AsyncEngine
from sweetrl.types import Completion, Prompt, Sampling, Usage

Request = tuple[Prompt, Sampling, Future[list[Completion]]]


def async_engine(engine: TransformersEngine) -> AsyncEngine:
    """Return the engine as one that is asked prompt by prompt: by its slots, or in batches where it has none."""
    return Stream(engine) if engine.slotted else Bridge(engine)


class Stream:
    """An AsyncEngine over an engine with slots, which a thread of its own steps as long as there is something to do.

    Which replies are under way together depends on timing, so a completion is repeatable as far as it does not depend
    on its batch: the same tokens, log-probs up to rounding.
    """

    speaks_tokens = True

    def __init__(self, engine: TransformersEngine) -> None:
        self.engine, self.name = engine, engine.name
        self._requests: SimpleQueue[Request | None] = SimpleQueue()  # None: the end
        self._thread = Thread(target=self._work, name="sweetrl-stream", daemon=True)
        self._thread.start()

    async def ask(self, prompt: Prompt, sampling: Sampling) -> list[Completion]:
        """Return the completions of one prompt."""
        future: Future[list[Completion]] = Future()
        self._requests.put((prompt, sampling, future))
        return checked_room(prompt, await asyncio.wrap_future(future))

    def usage(self) -> Usage:
        """What the engine has spent."""
        return self.engine.usage()

    def close(self) -> None:
        """Free the engine."""
        self._requests.put(None)
        self._thread.join()
        self.engine.close()

    def _work(self) -> None:
        slots, under_way = self.engine.slots(), list[tuple[Request, list[SlotReply]]]()
        while True:
            while not under_way or not self._requests.empty():
                request = self._requests.get()
                if request is None:
                    return
                if not under_way:
                    time.sleep(0.02)  # prompts that are sent together enter together
                prompt, sampling, future = request
                if future.set_running_or_notify_cancel():
                    under_way.append((request, slots.add(prompt, sampling)))
            try:
                if slots.busy:
                    slots.step()
                over = [(request, group) for request, group in under_way if not any(reply.open for reply in group)]
                completed = self.engine.complete([request[0] for request, _ in over], [group for _, group in over])
            except Exception as error:
                for (_, _, future), _ in under_way:
                    future.set_exception(error)
                slots, under_way = self.engine.slots(), []
                continue
            under_way = [(request, group) for request, group in under_way if any(reply.open for reply in group)]
            for ((_, _, future), _), completions in zip(over, completed, strict=True):
                future.set_result(completions)
