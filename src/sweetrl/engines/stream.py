"""The transformers engine asked prompt by prompt: each reply goes back when it is over, whatever else is under way."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import Future
from queue import SimpleQueue
from threading import Thread

from sweetrl.engines.slots import SlotReply
from sweetrl.engines.transformers import TransformersEngine
from sweetrl.errors import NoRoom
from sweetrl.types import Completion, Prompt, Sampling, Usage

Request = tuple[Prompt, Sampling, Future[list[Completion]]]


class Stream:
    """An AsyncEngine over an engine in this process, which a thread of its own keeps at work while somebody asks.

    An engine with slots draws a token for all that are under way, step by step; another samples in batches, and what
    waits meanwhile is its next batch. Which replies are under way together depends on timing, so a completion is
    repeatable as far as it does not depend on its batch: the same tokens, log-probs up to rounding. Where bytes must be
    equal, dialogues advance together instead.
    """

    speaks_tokens = True

    def __init__(self, engine: TransformersEngine) -> None:
        self.engine, self.name = engine, engine.name
        self._requests: SimpleQueue[Request | None] = SimpleQueue()  # None: the end
        work = self._in_slots if engine.slotted else self._in_batches
        self._thread = Thread(target=work, name="sweetrl-stream", daemon=True)
        self._thread.start()

    async def ask(self, prompt: Prompt, sampling: Sampling) -> list[Completion]:
        """Return the completions of one prompt; NoRoom where the context has none for them."""
        future: Future[list[Completion]] = Future()
        self._requests.put((prompt, sampling, future))
        completions = await asyncio.wrap_future(future)
        if not all(completion.token_ids for completion in completions):
            raise NoRoom(f"the dialogue's {len(prompt.token_ids)} tokens leave no room in the model's context")
        return completions

    def usage(self) -> Usage:
        """What the engine has spent."""
        return self.engine.usage()

    def close(self) -> None:
        """Free the engine."""
        self._requests.put(None)
        self._thread.join()
        self.engine.close()

    def _received(self, idle: bool) -> list[Request] | None:
        """Return what has been asked since the last call, None at the end; where all else is `idle`, wait for it."""
        requests = list[Request]()
        while (idle and not requests) or not self._requests.empty():
            request = self._requests.get()
            if request is None:
                return None
            if idle and not requests:
                time.sleep(0.02)  # prompts that are sent together enter together
            if request[2].set_running_or_notify_cancel():
                requests.append(request)
        return requests

    def _in_slots(self) -> None:
        slots, under_way = self.engine.slots(), list[tuple[Request, list[SlotReply]]]()
        while (requests := self._received(idle=not under_way)) is not None:
            under_way += [((prompt, how, future), slots.add(prompt, how)) for prompt, how, future in requests]
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

    def _in_batches(self) -> None:
        waiting = list[Request]()
        while (requests := self._received(idle=not waiting)) is not None:
            waiting += requests
            sampling = waiting[0][1]
            batch = [request for request in waiting if request[1] == sampling]
            waiting = [request for request in waiting if request[1] != sampling]
            try:
                completed = self.engine.sample([prompt for prompt, _, _ in batch], sampling)
            except Exception as error:
                for _, _, future in batch:
                    future.set_exception(error)
                continue
            for (_, _, future), completions in zip(batch, completed, strict=True):
                future.set_result(completions)
