"""What goes wrong between us and a server, and what is done about it: wait (a little at random), and ask again.

A request may be asked again after a fault of transport (no connection, a connection that breaks, no reply in time), of
the server (429, 408, 5xx), and of the reply itself (broken off, not JSON, without choices, without words). The same
request has the same seed, so asking again gives the reply that was meant. Waits double from `backoff` on, each drawn
from the upper half of its range; a Retry-After is obeyed, by all requests to that server. Attempts and the time for all
of them together are limited.
"""

from __future__ import annotations

import email.utils
import math
import random
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from sweetrl.errors import EngineError

Result = TypeVar("Result")

LONGEST_WAIT = 60.0
LONGEST_REST = 7 * 24 * 3600.0
RETRIED = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 520, 521, 522, 523, 524, 529})
# Whose Retry-After speaks for the whole server: too many requests, unavailable, overloaded.
PACED = frozenset({429, 503, 529})


@dataclass(frozen=True)
class RetryPolicy:
    """How long one reply is waited for: `timeout` for each attempt, `attempts` of them in at most `budget` seconds."""

    timeout: float = 300.0
    attempts: int = 8
    budget: float = 1800.0
    backoff: float = 0.5


class Budget:
    """The seconds that one reply may still take; those in which it waits for its turn do not count."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    @property
    def left(self) -> float:
        """How many there are; below 0 it is used up."""
        return self._end - time.monotonic()

    @contextmanager
    def untouched(self) -> Iterator[None]:
        """What is done here takes none of them."""
        began = time.monotonic()
        try:
            yield
        finally:
            self._end += time.monotonic() - began


class TransientError(Exception):
    """An attempt failed and may be repeated, `wait` seconds from now at the earliest.

    `server` says whether it looks as if the server, and not just this request, was in trouble.
    """

    def __init__(self, cause: str, wait: float = 0.0, server: bool = False) -> None:
        super().__init__(cause)
        self.wait = wait
        self.server = server


def retry_after(headers: Mapping[str, str]) -> float:
    """Return the seconds that a reply's Retry-After asks for (a number or a date), 0 where there is none.

    More than a week is a week: longer than any budget, and no number or date of a server is too large for a clock.
    """
    value = headers.get("retry-after", "").strip()[:100]
    if not value:
        return 0.0
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(value).timestamp() - time.time()
        except (ValueError, TypeError, OverflowError, OSError, IndexError):
            return 0.0
    return min(max(seconds, 0.0), LONGEST_REST) if math.isfinite(seconds) else 0.0


async def retry(
    attempt: Callable[[], Awaitable[Result]],
    retry_policy: RetryPolicy,
    retried: Callable[[TransientError], None] = lambda fault: None,
    budget: Budget | None = None,
) -> Result:
    """Await `attempt()` until it succeeds; EngineError with the last cause when `retry_policy` is used up.

    `retried` is told of each fault that is followed by another attempt. `budget` is the policy's, where `attempt` waits
    for something that is not to count.
    """
    from tenacity import AsyncRetrying, RetryError, retry_if_exception_type

    budget = budget or Budget(retry_policy.budget)

    def fault_of(state: Any) -> TransientError:
        fault = state.outcome.exception()
        assert isinstance(fault, TransientError)
        return fault

    def wait(state: Any) -> float:
        # Not from a seed: equal draws would bring all who wait back at one moment, and no result depends on them.
        ceiling = min(retry_policy.backoff * 2.0 ** (state.attempt_number - 1), LONGEST_WAIT)
        return max(fault_of(state).wait, random.SystemRandom().uniform(ceiling / 2, ceiling))

    def enough(state: Any) -> bool:
        return bool(state.upcoming_sleep > budget.left or state.attempt_number >= retry_policy.attempts)

    retrying = AsyncRetrying(
        retry=retry_if_exception_type(TransientError),
        stop=enough,
        wait=wait,
        before_sleep=lambda state: retried(fault_of(state)),
    )
    tries = 0

    async def counted() -> Result:
        nonlocal tries
        tries += 1
        return await attempt()

    try:
        return await retrying(counted)
    except RetryError as error:
        last = error.last_attempt.exception()
        plural = "" if tries == 1 else "s"
        raise EngineError(f"{last} (after {tries} attempt{plural})") from last
