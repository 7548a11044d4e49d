"""A server of ours at an address of this machine: the address is taken first, and told when it accepts connections.

Web pages of somebody else reach such an address, too, through a browser on this machine: `own_name` and `other_site`
tell their requests from those of people and programs here.
"""

from __future__ import annotations

import contextlib
import ipaddress
import socket
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from sweetrl.errors import UserError


@contextlib.contextmanager
def listening(host: str, port: int) -> Iterator[socket.socket]:
    """Yield a socket at the address, for `serve_app`; one that is taken is a UserError.

    Who needs time before it can serve (to load a model) takes the address before that.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise UserError(f"{host}:{port}: nothing can be served there ({reason}); choose another --port.") from error
        yield listener


def serve_app(app: Any, listener: socket.socket, host: str, opened: Callable[[str], None], patience: int) -> None:
    """Serve the ASGI application `app` until interrupted; then requests have `patience` seconds to end.

    `opened` is told the address, as in http://127.0.0.1:8000, once connections are accepted there.
    """
    import uvicorn

    shown = f"[{host}]" if ":" in host else host
    address = f"http://{shown}:{listener.getsockname()[1]}"

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            if self.started:
                opened(address)

    Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=patience)).run(sockets=[listener])


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
