"""A server of ours at an address of this machine: the address is taken first, and told when it accepts connections.

Web pages of somebody else reach such an address, too, through a browser on this machine: `own_name` and `other_site`
tell their requests from those of people and programs here.

uvicorn waits for a request's head and body as long as the client likes, and its `limit_concurrency` looks at whole
heads only. Who opens connections and says little would so take all files that the process may open; here such
connections are closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import resource
import socket
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from sweetrl.errors import UserError

# In which the whole head of a request must arrive, on a new connection and after an answer; and then its whole body.
PART_SECONDS = 30.0
MOST_CONNECTIONS = 4096
QUEUE = 2048  # connections that the system keeps until they are accepted


@contextlib.contextmanager
def listening(host: str, port: int) -> Iterator[socket.socket]:
    """Yield a socket at the address, for `serve_app`; one that is taken, or is none, is a UserError.

    Who needs time before it can serve (to load a model) takes the address before that.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except (OSError, TypeError, UnicodeError) as error:  # the latter two of a host that is no name at all
            no_host = not isinstance(error, OSError) or isinstance(error, socket.gaierror)
            reason = (getattr(error, "strerror", None) or str(error)).lower()
            option = "--host" if no_host else "--port"
            raise UserError(
                f"{host}:{port}: nothing can be served there ({reason}); choose another {option}."
            ) from error
        yield listener


def serve_app(app: Any, listener: socket.socket, host: str, opened: Callable[[str], None], patience: int) -> None:
    """Serve the ASGI application `app` until interrupted; then requests have `patience` seconds to end.

    `opened` is told the address, as in http://127.0.0.1:8000, once connections are accepted there. A connection
    whose next request has no whole head within PART_SECONDS, or no whole body within as many after it, is closed. Half
    of the files that the process may open are for connections: where more come, the one that has kept us waiting for
    longest gives way.
    """
    import uvicorn
    from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

    shown = f"[{host}]" if ":" in host else host
    address = f"http://{shown}:{listener.getsockname()[1]}"
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST_CONNECTIONS if files == resource.RLIM_INFINITY else min(MOST_CONNECTIONS, files // 2)

    class Protocol(H11Protocol):
        idle: asyncio.TimerHandle | None = None  # runs while the client has not said a whole request
        read: RequestResponseCycle | None = None  # the last request whose head has come

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._wait()
            if len(self.connections) > most:
                known = [one for one in self.connections if isinstance(one, Protocol)]
                waiting = {one.idle.when(): one for one in known if one.idle is not None}
                waiting[min(waiting)].drop()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._look()

        def on_response_complete(self) -> None:
            super().on_response_complete()  # may begin the next request, if that was sent already
            if self.cycle.response_complete:
                self._wait()
            else:
                self._look()

        def connection_lost(self, error: Exception | None) -> None:
            self._stop()
            super().connection_lost(error)

        def drop(self) -> None:
            self._stop()
            self.connections.discard(self)
            self.transport.abort()

        def _look(self) -> None:
            if self.cycle is None or self.cycle.response_complete:
                return
            if not self.cycle.more_body:
                self._stop()
            elif self.read is not self.cycle:  # its body has a time of its own
                self._wait()
            self.read = self.cycle

        def _wait(self) -> None:
            self._stop()
            self.idle = self.loop.call_later(PART_SECONDS, self.drop)

        def _stop(self) -> None:
            if self.idle is not None:
                self.idle.cancel()
            self.idle = None

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            listener.listen(QUEUE)
            if self.started:
                opened(address)

    # asyncio accepts `backlog` connections in a row before it looks at any: few, or they are too many at once.
    config = uvicorn.Config(
        app,
        http=Protocol,
        ws="none",
        log_level="warning",
        timeout_graceful_shutdown=patience,
        backlog=max(most // 32, 1),
    )
    Server(config).run(sockets=[listener])


def for_this_machine_only(listener: socket.socket) -> bool:
    """Whether nobody but this machine reaches the socket's address."""
    return ipaddress.ip_address(listener.getsockname()[0]).is_loopback


def own_name(header: str, host: str) -> bool:
    """Whether a Host header names this machine: a number, localhost, its own name, or `host`, which it is bound to.

    A name of others may lead here (DNS rebinding).
    """
    name = header.rpartition(":")[0] if header.rpartition(":")[2].isdecimal() else header
    name = name.strip("[]").lower()
    with contextlib.suppress(ValueError):
        ipaddress.ip_address(name)
        return True
    return name in ("localhost", host.lower(), socket.gethostname().lower())


def other_site(headers: Mapping[str, str]) -> bool:
    """Whether a page of another site sends a request with these headers; only browsers say from where they ask."""
    if headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
        return True
    origin = headers.get("origin")
    return origin is not None and origin.partition("://")[2] != headers.get("host")
