"""Several servers with the same model, balanced by outstanding work."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

# A server that has just failed is asked again after this long, unless all have.
PAUSE = 5.0
# How many requests more than the idlest server a prompt's usual one may have: its cache is worth that wait.
SLACK = 4


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
    """Chooses the server with the least outstanding work; prompts of one group stay together while that costs little.

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
        free = [one for one in self.servers if one.held_until <= now] or self.servers
        fit = [one for one in free if one.paused_until <= now] or free
        least = min(one.outstanding for one in fit)
        if group:
            usual = fit[zlib.crc32(group.encode("utf-8", "replace")) % len(fit)]
            if usual.outstanding <= least + SLACK:
                return usual
        idle = [one for one in fit if one.outstanding == least]
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
        return max(min(one.held_until for one in self.servers) - self._clock(), 0.0)
