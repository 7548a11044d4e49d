"""Faults of requests to servers, and what is done about them: wait (with jitter), ask again, or ask another server.

A request may be asked again after a fault of transport (no connection, a connection that breaks, no reply in time), of
the server (429, 408, 5xx), and of the reply itself (broken off, not JSON, without choices, without words). The same
request has the same seed, so asking again gives the reply that was meant.
"""

from __future__ import annotations

import email.utils
import math
import time
import zlib
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from sweetrl.config.settings import ServerSettings
from sweetrl.errors import EngineError

Result = TypeVar("Result")

BUDGET = 1800.0  # seconds in which all attempts at a reply lie
LONGEST_WAIT = 60.0
LONGEST_REST = 7 * 24 * 3600.0
RETRIED = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 520, 521, 522, 523, 524, 529})
# A server that has just failed is asked again after this long, unless all have.
PAUSE = 5.0
# How many requests more than the idlest server a prompt's usual one may have: its cache is worth that wait.
SLACK = 4


class TransientError(Exception):
    """An attempt failed and may be repeated, `wait` seconds from now at the earliest."""

    def __init__(self, cause: str, wait: float = 0.0) -> None:
        super().__init__(cause)
        self.wait = wait


def retry_after(headers: Mapping[str, str]) -> float:
    """Return the seconds that a reply's Retry-After asks for (a number or a date), 0 where there is none.

    At most a week: that is longer than any budget, and larger numbers would not fit into a clock.
    """
    value = headers.get("retry-after", "").strip()[:100]
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(value).timestamp() - time.time()
        except (ValueError, TypeError, OverflowError, OSError, IndexError):
            return 0.0
    return min(max(seconds, 0.0), LONGEST_REST) if math.isfinite(seconds) else 0.0


async def retry(
    attempt: Callable[[], Awaitable[Result]], settings: ServerSettings, retried: Callable[[], None] = lambda: None
) -> Result:
    """Await `attempt()` until it succeeds; EngineError with the last cause when `settings.attempts` are used up.

    There is no attempt later than `BUDGET` seconds after the first. `retried` is called before each further attempt.
    """
    import tenacity

    backoff = tenacity.wait_random_exponential(settings.backoff_seconds, LONGEST_WAIT)

    def wait(state: tenacity.RetryCallState) -> float:
        fault: Any = state.outcome and state.outcome.exception()
        return float(fault.wait + backoff(state))

    retrying = tenacity.AsyncRetrying(
        retry=tenacity.retry_if_exception_type(TransientError),
        stop=tenacity.stop_after_attempt(settings.attempts) | tenacity.stop_before_delay(BUDGET),
        wait=wait,
        before_sleep=lambda state: retried(),
    )
    try:
        return await retrying(attempt)
    except tenacity.RetryError as error:
        last, tries = error.last_attempt.exception(), error.last_attempt.attempt_number
        raise EngineError(f"{last} (after {tries} attempt{'s' * (tries > 1)})") from last


@dataclass
class Server:
    """One server: its address, the requests under way there, and when it is asked again after a failure."""

    url: str
    outstanding: int = 0
    paused_until: float = 0.0


class Pool:
    """Several servers with the same model: the next request goes to the one with the least outstanding work.

    Prompts of one group stay together while that costs little. Servers that failed a moment ago, or asked for time, are
    asked only when there are no others. Used from one event loop.
    """

    def __init__(self, urls: Sequence[str]) -> None:
        self.servers = [Server(url) for url in urls]

    def choose(self, group: str = "") -> Server:
        """Return the server for the next request."""
        fit = self._fit() or self.servers
        idlest = min(fit, key=lambda server: server.outstanding)
        # Of all servers, so that a group has the same one again when others come and go.
        usual = self.servers[zlib.crc32(group.encode("utf-8", "replace")) % len(self.servers)]
        return usual if group and usual in fit and usual.outstanding <= idlest.outstanding + SLACK else idlest

    @contextmanager
    def lease(self, group: str = "") -> Iterator[Server]:
        """Count a request as outstanding at the server that it goes to, and its failure against that server."""
        server = self.choose(group)
        server.outstanding += 1
        try:
            yield server
        except TransientError as fault:
            server.paused_until = max(server.paused_until, time.monotonic() + max(PAUSE, fault.wait))
            if self._fit():
                fault.wait = 0.0  # another server may be asked at once
            raise
        finally:
            server.outstanding -= 1

    def _fit(self) -> list[Server]:
        now = time.monotonic()
        return [server for server in self.servers if server.paused_until <= now]
