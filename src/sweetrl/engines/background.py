"""One event loop in a thread of its own, for everything in this process that talks to servers.

Code of any thread hands coroutines over and waits for futures; code in any event loop awaits them. `Bridge` makes a
batch engine one that is asked prompt by prompt.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from sweetrl.errors import NoRoom
from sweetrl.protocols import Engine
from sweetrl.types import Completion, Prompt, Sampling, Usage

Item = TypeVar("Item")
Result = TypeVar("Result")

_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None


def background_loop() -> asyncio.AbstractEventLoop:
    """Return the loop, which starts with the first call and ends with the process."""
    global _loop
    with _lock:
        if _loop is None or _loop.is_closed():
            _loop = asyncio.new_event_loop()
            threading.Thread(target=_loop.run_forever, name="sweetrl-loop", daemon=True).start()
        return _loop


def wait(work: Coroutine[Any, Any, Result]) -> Result:
    """Run `work` in the background loop and wait for it; an interruption (Ctrl-C, SIGTERM) cancels it first."""
    future = asyncio.run_coroutine_threadsafe(work, background_loop())
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


async def in_thread(function: Callable[..., Result], *arguments: Any) -> Result:
    """Await `function(*arguments)` in a thread of its own, for which the end of the process does not wait.

    (It does for those of an executor: whoever waits for a user's line could not be ended by Ctrl-C.)
    """
    future: Future[Result] = Future()

    def work() -> None:
        future.set_running_or_notify_cancel()
        try:
            future.set_result(function(*arguments))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=work, name="sweetrl-user", daemon=True).start()
    return await asyncio.wrap_future(future)


async def in_background(work: Coroutine[Any, Any, Result]) -> Result:
    """Await `work` in the background loop, wherever the caller runs."""
    if asyncio.get_running_loop() is _loop:
        return await work
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, background_loop()))


async def side_by_side(items: Iterator[Item], work: Callable[[Item], Awaitable[None]], workers: int) -> None:
    """Await `work` of each item, begun in order with at most `workers` under way; the first exception ends all."""

    async def worker() -> None:
        for item in items:  # shared by all workers, which are in one thread
            await work(item)

    tasks = [asyncio.ensure_future(worker()) for _ in range(workers)]
    try:
        for task in asyncio.as_completed(tasks):
            await task
    finally:
        for each in tasks:
            each.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class Bridge:
    """An AsyncEngine over an Engine that lives in this process; at most `rows` completions are in one batch.

    What waits while the engine works is its next batch. Which prompts share a batch depends on timing, so a completion
    is repeatable as far as the engine keeps it free of its batch: the same tokens, log-probs up to rounding. Where
    bytes must be equal, dialogues advance together instead.
    """

    speaks_tokens = True

    def __init__(self, engine: Engine, rows: int = 256) -> None:
        self.engine, self.name, self.rows = engine, engine.name, rows
        self._waiting: dict[asyncio.Future[list[Completion]], tuple[Prompt, Sampling]] = {}
        self._turn = asyncio.Lock()
        self._worker = ThreadPoolExecutor(1, "sweetrl-bridge")

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
        self._waiting[future] = prompt, sampling
        try:
            async with self._turn:
                while not future.done():  # else it was in an earlier batch
                    await self._sample_batch()
        finally:
            self._waiting.pop(future, None)
        return checked_room(prompt, future.result())

    async def _sample_batch(self) -> None:
        """Sample for the first who waits, and for those that can be sampled together with it."""
        sampling = next(iter(self._waiting.values()))[1]
        together = [future for future, (_, other) in self._waiting.items() if other == sampling]
        batch = together[: max(self.rows // sampling.n, 1)]
        prompts = [self._waiting[future][0] for future in batch]
        loop = asyncio.get_running_loop()
        try:
            replies = await loop.run_in_executor(self._worker, self.engine.sample, prompts, sampling)
        except Exception as error:
            for future in batch:
                future.set_exception(error)
        else:
            for future, completions in zip(batch, replies, strict=True):
                future.set_result(completions)
        for future in batch:
            self._waiting.pop(future, None)


def checked_room(prompt: Prompt, completions: list[Completion]) -> list[Completion]:
    """Return `completions`; NoRoom where the context had none for them."""
    if not all(completion.token_ids for completion in completions):
        raise NoRoom(f"the dialogue's {len(prompt.token_ids)} tokens leave no room in the model's context")
    return completions
