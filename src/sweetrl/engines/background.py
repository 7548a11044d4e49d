"""One event loop in a thread of its own, for everything in this process that talks to servers.

Code of any thread hands coroutines over and waits for futures; code in any event loop awaits them.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import Future
from typing import Any, TypeVar

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
