"""A server of ours at an address of this machine: the address is taken first, and told when it accepts connections."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator
from typing import Any

from sweetrl.errors import UserError


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
