"""A server of ours: its address is told when it accepts connections, and not before."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest

from sweetrl.errors import UserError
from sweetrl.listening import listening, serve_app

Receive, Send = Callable[[], Awaitable[dict[str, Any]]], Callable[[dict[str, Any]], Awaitable[None]]


class Leave(Exception):
    """The test has seen what it came for."""


def application(seen: list[str]) -> Callable[[dict[str, Any], Receive, Send], Awaitable[None]]:
    """An application that takes a while before it can answer."""

    async def app(scope: dict[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await receive()
            await asyncio.sleep(0.2)
            seen.append("ready")
            await send({"type": "lifespan.startup.complete"})
            await receive()
            await send({"type": "lifespan.shutdown.complete"})

    return app


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_the_address_is_told_when_connections_are_accepted(host: str) -> None:
    seen: list[str] = []

    def opened(address: str) -> None:
        seen.append(address)
        found = httpx.URL(address)
        socket.create_connection((found.host, found.port or 0), timeout=5).close()
        raise Leave

    try:
        with listening(host, 0) as listener:
            with pytest.raises(ConnectionRefusedError):  # the address is taken, and nobody answers yet
                socket.create_connection(listener.getsockname()[:2], timeout=5)
            port = listener.getsockname()[1]
            with pytest.raises(Leave):
                serve_app(application(seen), listener, host, opened, patience=1)
    except UserError:
        assert host == "::1"
        pytest.skip("this machine has no IPv6")
    assert seen == ["ready", f"http://[::1]:{port}" if host == "::1" else f"http://127.0.0.1:{port}"]


def test_an_address_that_is_taken_is_one_sentence() -> None:
    with listening("127.0.0.1", 0) as listener:
        listener.listen()
        port = listener.getsockname()[1]
        with pytest.raises(UserError, match=r"nothing can be served there \(address already in use\); choose another"):
            listening("127.0.0.1", port).__enter__()


@pytest.mark.parametrize("host", ["ü..", "a" * 64 + ".invalid"])
def test_a_host_that_is_none_is_one_sentence(host: str) -> None:
    with pytest.raises(UserError, match=r"nothing can be served there \(.+\); choose another --host\."):
        listening(host, 0).__enter__()
