"""What goes wrong between us and a server, and what is done about it: wait (a little at random), ask again, or another.

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
import zlib
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
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
# A server that has just failed is asked again after this long, unless all have.
PAUSE = 5.0
# How many requests more than the idlest server a prompt's usual one may have: its cache is worth that wait.
SLACK = 4


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
    try:
        return await retrying(attempt)
    except RetryError as error:
        last, tries = error.last_attempt.exception(), error.last_attempt.attempt_number
        plural = "" if tries == 1 else "s"
        raise EngineError(f"{last} (after {tries} attempt{plural})") from last


# Which server is asked


@dataclass
class Server:
    """One server: its address, the requests under way there, when it is asked again after a failure (`paused_until`),
    and when it has said that it may be asked again (`held_until`, from a Retry-After).
    """

    url: str
    outstanding: int = 0
    paused_until: float = 0.0
    held_until: float = 0.0


class Pool:
    """Several servers with the same model: the next request goes to the one with the least outstanding work.

    Prompts of one group stay together while that costs little.
    Servers that failed a moment ago are asked only when there are no others; servers that asked for time are not asked
    before it is over (`held` says how long all of them want to be left alone). Used from one event loop.
    """

    def __init__(self, urls: Sequence[str], clock: Callable[[], float] = time.monotonic) -> None:
        if not urls:
            raise ValueError("a pool needs at least one server")
        self.servers = [Server(url) for url in urls]
        self._clock = clock
        self._turn = 0

    def choose(self, group: str = "") -> Server:
        """Return the server for the next request."""
        now = self._clock()
        free = [server for server in self.servers if server.held_until <= now] or self.servers
        fit = [server for server in free if server.paused_until <= now] or free
        least = min(server.outstanding for server in fit)
        if group:
            # Of all servers, so that a group has the same one again when others come and go.
            usual = self.servers[zlib.crc32(group.encode("utf-8", "replace")) % len(self.servers)]
            if usual in fit and usual.outstanding <= least + SLACK:
                return usual
        idle = [server for server in fit if server.outstanding == least]
        self._turn += 1
        return idle[self._turn % len(idle)]

    @contextmanager
    def lease(self, group: str = "") -> Iterator[Server]:
        """Count a request as outstanding at the server that it goes to."""
        server = self.choose(group)
        server.outstanding += 1
        try:
            yield server
        finally:
            server.outstanding -= 1

    def failed(self, server: Server) -> None:
        """Ask others for a while."""
        server.paused_until = self._clock() + PAUSE

    def hold(self, server: Server, seconds: float) -> None:
        """Send `server` nothing new for `seconds`, whatever else it has said before."""
        server.held_until = max(server.held_until, self._clock() + seconds)

    def held(self) -> float:
        """Return the seconds until a server may be asked; 0 where one may be asked now."""
        return max(min(server.held_until for server in self.servers) - self._clock(), 0.0)
