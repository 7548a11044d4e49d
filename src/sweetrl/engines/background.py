"""One event loop in a thread of its own, for everything in this process that talks to servers.

Code of any thread hands coroutines over and waits for futures; code in any event loop awaits them.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

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


def submit(work: Coroutine[Any, Any, Result]) -> Future[Result]:
    """Start `work` in the background loop."""
    return asyncio.run_coroutine_threadsafe(work, background_loop())


def wait(work: Coroutine[Any, Any, Result]) -> Result:
    """Run `work` in the background loop and wait for it; an interruption (Ctrl-C, SIGTERM) cancels it first."""
    future = submit(work)
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


async def in_background(work: Coroutine[Any, Any, Result]) -> Result:
    """Await `work` in the background loop, wherever the caller runs."""
    if asyncio.get_running_loop() is _loop:
        return await work
    return await asyncio.wrap_future(submit(work))
