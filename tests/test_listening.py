"""The project's servers: an address is announced when it accepts connections, and not before."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from sweetrl.errors import UserError
from sweetrl.listening import for_this_machine_only, listening, serve_app

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
def test_the_address_is_announced_when_connections_are_accepted(host: str) -> None:
    seen: list[str] = []

    def opened(address: str) -> None:
        seen.append(address)
        url = httpx.URL(address)
        socket.create_connection((url.host, url.port or 0), timeout=60).close()
        raise Leave

    try:
        with listening(host, 0) as listener:
            with pytest.raises(ConnectionRefusedError):  # the address is taken, and nobody answers yet
                socket.create_connection(listener.getsockname()[:2], timeout=60)
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


def test_who_reaches_an_address() -> None:
    for host, only_here in (("127.0.0.1", True), ("127.0.0.5", True), ("localhost", True), ("0.0.0.0", False)):
        with listening(host, 0) as listener:
            assert for_this_machine_only(listener) is only_here


@pytest.mark.parametrize("host", ["ü..", "a" * 64 + ".invalid"])
def test_an_impossible_host_is_one_sentence(host: str) -> None:
    with pytest.raises(UserError, match=r"nothing can be served there \(.+\); choose another --host\."):
        listening(host, 0).__enter__()


SERVER = """
import asyncio, resource
from sweetrl import listening as module

async def app(scope, receive, send):
    if scope["type"] == "lifespan":
        for state in ("startup", "shutdown"):
            await receive()
            await send({"type": f"lifespan.{state}.complete"})
        return
    if scope["path"] == "/slow":
        await asyncio.sleep(1.5)
    while scope["method"] == "POST":
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        if not message["more_body"]:
            break
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]})
    await send({"type": "http.response.body", "body": b"well"})

resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
module.PART_SECONDS = 1.0
with module.listening("127.0.0.1", 0) as listener:
    module.serve_app(app, listener, "127.0.0.1", lambda address: print(address, flush=True), patience=1)
"""


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[httpx.URL, Path]]:
    """A server in a process that may open 64 files, and what it says on stderr."""
    errors = tmp_path_factory.mktemp("limited") / "stderr"
    with errors.open("wb") as err:
        process = subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, stderr=err, env=os.environ)
    assert process.stdout is not None
    try:
        yield httpx.URL(process.stdout.readline().decode().strip()), errors
    finally:
        process.terminate()
        process.wait(120)
        process.stdout.close()


def connected(url: httpx.URL, words: bytes) -> socket.socket:
    connection = socket.create_connection((url.host, url.port or 0), timeout=60)
    connection.sendall(words)
    return connection


def ended(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


POST = b"POST /health HTTP/1.1\r\nHost: here\r\nContent-Length: 6\r\n\r\n"


@pytest.mark.parametrize("words", [b"GET /health HTTP/1.1\r\n", POST, POST + b"a bod"])
def test_connections_that_say_little_do_not_stop_a_server(limited: tuple[httpx.URL, Path], words: bytes) -> None:
    url, errors = limited
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(connected(url, words)) for _ in range(300)]
        for _ in range(3):
            assert httpx.get(f"{url}/health", trust_env=False, timeout=60).text == "well"
        started = time.monotonic()
        assert all(map(ended, sockets))
        assert time.monotonic() - started < 60.0
    assert errors.read_text() == ""


def test_the_head_of_a_request_has_its_time_and_the_answer_has_its_own(limited: tuple[httpx.URL, Path]) -> None:
    url, errors = limited
    assert httpx.get(f"{url}/slow", trust_env=False, timeout=60).text == "well", "an answer may take longer"
    head = b"GET /health HTTP/1.1\r\nHost: here\r\n\r\n"
    with connected(url, head) as connection:
        while not (answer := connection.recv(4096)).endswith(b"well"):
            assert answer, "closed without an answer"
        for letter in head[:8]:  # a second request, letter by letter
            time.sleep(0.2)
            with contextlib.suppress(OSError):
                connection.sendall(bytes([letter]))
        assert ended(connection)
    assert errors.read_text() == ""


def test_the_body_of_a_request_has_a_time_of_its_own(limited: tuple[httpx.URL, Path]) -> None:
    url, errors = limited
    with connected(url, b"") as connection:
        for part in (POST, b"a ", b"body"):
            time.sleep(0.4 if part == b"body" else 0.5)  # 1.4 s in all, and the body came within 1 s
            connection.sendall(part)
        while not (answer := connection.recv(4096)).endswith(b"well"):
            assert answer, "closed without an answer"
    with connected(url, POST) as connection:
        for letter in b"a bod":
            time.sleep(0.3)
            with contextlib.suppress(OSError):
                connection.sendall(bytes([letter]))
        assert ended(connection)
    assert errors.read_text() == ""
