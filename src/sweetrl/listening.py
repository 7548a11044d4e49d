"""The servers of this project (viewer, endpoint, OpenEnv) at an address, and what guards all of them.

Pages of other sites reach an address of this machine through a browser that runs here: `own_name` and `other_site` tell
their requests from those of people and programs. Bodies have a largest size (`Guard`). uvicorn waits for a request as
long as the client likes, so that who opens connections and says little would take all files that the process may open:
`serve_app` closes such connections.
"""

from __future__ import annotations

import contextlib
import ipaddress
import resource
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sweetrl.errors import UserError

# Time for the head of a request to arrive, on a new connection or after an answer; then the same time for its body.
PART_SECONDS = 30.0
MOST_CONNECTIONS = 4096
QUEUE = 2048  # connections that the system keeps until they are accepted
LONGEST_BODY = 2**20  # bytes


@contextlib.contextmanager
def listening(host: str, port: int) -> Iterator[socket.socket]:
    """Yield a socket at the address, for `serve_app`; a UserError where the address is taken or impossible.

    A server that needs time before it can serve (to load a model) takes its address before that.
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


def serve_app(
    app: Any,
    listener: socket.socket,
    host: str,
    opened: Callable[[str], None],
    patience: int,
    ws: Literal["none", "auto"] = "none",
) -> None:
    """Serve the ASGI application `app` until interrupted; then requests have `patience` seconds to end.

    `opened` gets the address, as in http://127.0.0.1:8000, once connections are accepted there. Half of the files that
    the process may open are for connections. A connection is closed when the head of its next request takes longer than
    PART_SECONDS, or its body as long again. Where there are too many, those that have kept the server waiting longest
    are closed. `ws` says whether there are WebSockets.
    """
    import uvicorn
    from uvicorn.protocols.http.h11_impl import H11Protocol

    shown = f"[{host}]" if ":" in host else host
    address = f"http://{shown}:{listener.getsockname()[1]}"
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST_CONNECTIONS if files == resource.RLIM_INFINITY else min(MOST_CONNECTIONS, files // 2)
    slow = _SlowClients()

    def connect(server_state: Any, **more: Any) -> H11Protocol:
        """Make room for a new connection."""
        if len(server_state.connections) > most - 2:
            slow.close(server_state.connections, most - 2)
        return H11Protocol(server_state=server_state, **more)

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            listener.listen(QUEUE)
            if self.started:
                opened(address)

        async def on_tick(self, counter: int) -> bool:  # ten times a second
            slow.close(self.server_state.connections, most)
            return await super().on_tick(counter)

    config = uvicorn.Config(
        app,
        http=connect,  # type: ignore[arg-type]
        ws=ws,
        log_level="warning",
        limit_concurrency=most,
        # uvicorn's 5 s are also httpx's and the OpenAI client's: who asks again just then finds the connection closed.
        timeout_keep_alive=int(PART_SECONDS),
        timeout_graceful_shutdown=patience,
        # asyncio accepts so many connections in a row before it looks at any: few, or they are too many at once.
        backlog=max(most // 32, 1),
    )
    Server(config).run(sockets=[listener])


class _SlowClients:
    """Connections whose clients have not sent a complete request: which part is awaited, and since when."""

    def __init__(self) -> None:
        self.waits: dict[tuple[Any, str, object], float] = {}

    def close(self, connections: set[Any], room: int) -> None:
        """Close those that have taken PART_SECONDS for a part; of more than `room` connections also the slowest."""
        now, surplus = time.monotonic(), len(connections) - room
        missing = [part for connection in connections if (part := _missing(connection))]
        self.waits = {part: self.waits.get(part, now) for part in missing}
        for place, part in enumerate(sorted(self.waits, key=lambda part: self.waits[part])):
            if place >= surplus and now - self.waits[part] < PART_SECONDS:
                break
            connections.discard(part[0])
            part[0].transport.abort()


def _missing(connection: Any) -> tuple[Any, str, object] | None:
    """Return what has not come: the head of the next request, or the body of this one; None while it is answered."""
    if not hasattr(connection, "cycle"):  # a WebSocket
        return None
    request = connection.cycle
    if request is None or request.response_complete:
        return connection, "head", request
    return (connection, "body", request) if request.more_body else None


class Guard:
    """ASGI middleware: refuses other sites' requests with 403, and bodies of more than `longest` bytes with 413.

    `host` is the address of this machine that only this machine reaches; None where others reach the server, under
    names that it does not know: then every site may ask.
    """

    def __init__(self, app: ASGIApp, host: str | None, longest: int = LONGEST_BODY) -> None:
        self.app, self.host, self.longest = app, host, longest

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the application have what it may see."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if refusal := self._refusal(Headers(scope=scope)):
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008, "reason": refusal})
                return
            error = {"message": refusal, "type": "invalid_request_error", "param": None, "code": "foreign_site"}
            await JSONResponse({"error": error}, 403)(scope, receive, send)
            return
        size = 0

        async def limited() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > self.longest:
                raise HTTPException(413, f"The body is larger than {self.longest} bytes; send less.")
            return message

        await self.app(scope, limited if scope["type"] == "http" else receive, send)

    def _refusal(self, headers: Headers) -> str:
        if self.host is None:
            return ""
        if not own_name(headers.get("host", ""), self.host):
            return "This host name is not the server's; ask at the address that it printed."
        return "Pages of other sites may not ask here." if other_site(headers) else ""


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
