"""What an OpenEnv server says, read in one place: bytes in, plain values out, with limits on sizes, types and time.

Everything a server does that is not as it should be becomes one of the exceptions below, with a sentence.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlsplit

import httpx

from sweetrl.engines.remote import clean
from sweetrl.errors import UserError, missing_extra

try:
    from websockets.exceptions import WebSocketException
    from websockets.sync.client import ClientConnection, connect
except ModuleNotFoundError as error:
    if missing := missing_extra(error):
        raise missing from error
    raise

TEXT = 100_000  # characters of an observation's text that are kept
MESSAGE = 16 * 2**20  # bytes of one message of the server
PAGE = 2**20  # bytes of what it says of itself
SAID = 200  # characters of an error message that are repeated
NAMES = 64  # splits that are looked at
GREATEST = 1e12  # a reward beyond it is none


class ServerFault(Exception):
    """The server does not do what it should; the message is a sentence."""


class Broken(ServerFault):
    """The connection does not work (any more): another one may."""


class Full(ServerFault):
    """The server has no free session."""


class Refused(Exception):
    """The server takes the action for none; the message says why."""


@dataclass(frozen=True)
class Said:
    """What comes back from a reset or a step."""

    text: str
    reward: float
    done: bool
    system: str = ""


@dataclass(frozen=True)
class Description:
    """What a server says of itself: the schemas of actions and observations, its splits if it lists tasks."""

    name: str = ""
    words: str = ""
    actions: Mapping[str, Any] = field(default_factory=dict)
    observations: Mapping[str, Any] = field(default_factory=dict)
    greets: bool = False
    splits: tuple[str, ...] = ()


class Address:
    """Where a server is, and how patiently it is asked; `key` is sent as a bearer token."""

    def __init__(self, url: str, seconds: float, key_variable: str = "") -> None:
        parts = urlsplit(url.strip().rstrip("/"))
        schemes = {"http": "ws", "https": "wss", "ws": "ws", "wss": "wss"}
        if parts.scheme not in schemes or not parts.hostname:
            raise UserError(f"suite_options.url: `{url}` is no address of a server; write http://localhost:8000.")
        self.url, self.seconds = url.strip().rstrip("/"), seconds
        rest = self.url[len(parts.scheme) :]
        self.socket = f"{schemes[parts.scheme]}{rest}/ws"
        self.http = f"{'https' if schemes[parts.scheme] == 'wss' else 'http'}{rest}"
        key = os.environ.get(key_variable, "") if key_variable else ""
        self.headers = {"Authorization": f"Bearer {key}"} if key else {}
        # A proxy that the environment names does not stand between us and our own machine.
        self.here = parts.hostname in ("localhost", "127.0.0.1", "::1")


# One session


class Connection:
    """A WebSocket, which is a session of its own at the server. `show` makes a text of an observation."""

    def __init__(self, address: Address, show: Callable[[Mapping[str, Any]], str]) -> None:
        self.address, self.show = address, show
        options: dict[str, Any] = {"proxy": None} if address.here else {}
        try:
            self._socket: ClientConnection = connect(
                address.socket,
                open_timeout=address.seconds,
                close_timeout=min(5.0, address.seconds),
                max_size=MESSAGE,
                additional_headers=address.headers,
                **options,
            )
        except (OSError, TimeoutError, WebSocketException, ValueError) as error:
            raise Broken(f"{address.url}: no session can be opened ({_words(error)})") from error

    def reset(self, arguments: Mapping[str, Any]) -> Said:
        """Begin an episode."""
        return self._observation({"type": "reset", "data": dict(arguments)})

    def step(self, action: Mapping[str, Any]) -> Said:
        """Take a step; Refused where the server takes `action` for none."""
        return self._observation({"type": "step", "data": dict(action)})

    def state(self) -> dict[str, Any]:
        """Return the state of the episode."""
        return self._ask({"type": "state"}, "state")

    def close(self) -> None:
        """End the session; never fails."""
        with suppress(Exception):  # it is gone, or goes with the process
            self._socket.send('{"type": "close"}')
            self._socket.close()

    def _observation(self, message: dict[str, Any]) -> Said:
        data = self._ask(message, "observation")
        observation, done, reward = data.get("observation"), data.get("done", False), data.get("reward")
        if not isinstance(observation, dict) or not isinstance(done, bool):
            raise ServerFault(f"{self.address.url}: an observation must be an object, and `done` true or false")
        if reward is not None and not (isinstance(reward, int | float) and abs(reward) <= GREATEST):
            raise ServerFault(f"{self.address.url}: a reward must be a number, found {_words(repr(reward))}")
        system = observation.get("system")
        try:
            text = clean(self.show(observation)[:TEXT])
        except LookupError as error:
            raise ServerFault(f"{self.address.url}: {error.args[0]}") from error
        return Said(text, float(reward or 0.0), done, clean(system[:TEXT]) if isinstance(system, str) else "")

    def _ask(self, message: dict[str, Any], kind: str) -> dict[str, Any]:
        url = self.address.url
        try:
            # A refused session is told why, and closed: what it was told is still there to be read.
            with suppress(WebSocketException):
                self._socket.send(json.dumps(message))
            raw = self._socket.recv(timeout=self.address.seconds)
        except TimeoutError as error:
            raise Broken(f"{url}: no reply within {self.address.seconds:g} s") from error
        except (OSError, WebSocketException) as error:
            raise Broken(f"{url}: the session broke off ({_words(error)})") from error
        found = read_json(raw, url)
        data = found.get("data") if isinstance(found, dict) else None
        if not isinstance(found, dict) or not isinstance(data, dict):
            raise ServerFault(f"{url}: a message must be an object with `type` and `data`")
        if found.get("type") == "error":
            raise _fault(url, message["type"], data)
        if found.get("type") != kind:
            raise ServerFault(f"{url}: expected a message of type {kind}, found {_words(repr(found.get('type')))}")
        return data


def _fault(url: str, asked: str, data: Mapping[str, Any]) -> Exception:
    """Return what an error message means."""
    code, said = data.get("code"), _words(data.get("message"))
    if code == "VALIDATION_ERROR" and asked == "step":
        errors = data.get("errors")
        first = errors[0] if isinstance(errors, list) and errors and isinstance(errors[0], dict) else {}
        place = first.get("loc")
        where = ".".join(str(part) for part in place[:4]) if isinstance(place, list) else ""
        return Refused(": ".join(part for part in (_words(where), _words(first.get("msg", said))) if part))
    if code == "CAPACITY_REACHED":
        return Full(f"{url}: the server has no free session ({said})")
    return ServerFault(f"{url}: {asked} failed ({said})")


def read_json(raw: str | bytes, url: str) -> Any:
    """Return the JSON value that `raw` is; NaN, and nesting without end, are none."""
    try:
        return json.loads(raw, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise ServerFault(f"{url}: what the server says is not JSON ({_words(error)})") from error


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is no number")


def _words(said: object) -> str:
    """One short line of what a server says."""
    return clean(" ".join(str("" if said is None else said)[: 4 * SAID].split())[:SAID])


# What a server says of itself


def describe(address: Address) -> Description:
    """Ask a server what it is; a ServerFault where it does not answer. What it does not tell stays empty."""
    with _client(address) as client:
        schema = _object(_page(client, address, "/schema"))
        about = _object(_page(client, address, "/metadata"))
        names = _page(client, address, "/list_environments")
        name = next((one for one in names if isinstance(one, str)), "") if isinstance(names, list) else ""
        listed = _page(client, address, f"/{quote(name, safe='')}/splits") if name else None
    splits = [one.get("name") for one in listed[:NAMES] if isinstance(one, dict)] if isinstance(listed, list) else []
    first = _object(schema.get("reset_observation")) or _object(schema.get("observation"))
    return Description(
        name=clean(name[:SAID]),
        words=clean(str(about.get("description") or "")[:TEXT]),
        actions=_object(schema.get("action")),
        observations=_object(schema.get("observation")),
        greets=_object(_object(first.get("properties")).get("system")).get("type") == "string",
        splits=tuple(one for one in splits if isinstance(one, str)),
    )


def count_tasks(address: Address, name: str, split: str) -> int:
    """Return how many tasks a split has."""
    with _client(address) as client:
        found = _object(_page(client, address, f"/{quote(name, safe='')}/num_tasks", {"split": split})).get("num_tasks")
    if not isinstance(found, int) or isinstance(found, bool) or found < 0:
        raise ServerFault(f"{address.url}: the server does not say how many tasks the split `{split}` has")
    return found


def _client(address: Address) -> httpx.Client:
    options: dict[str, Any] = {"mounts": {"all://": None}} if address.here else {}
    return httpx.Client(timeout=address.seconds, headers=address.headers, **options)


def _page(client: httpx.Client, address: Address, path: str, body: Any = None) -> Any:
    """Return what is at `path`, None where the server has no such thing."""
    deadline = time.monotonic() + address.seconds
    try:
        with client.stream("GET" if body is None else "POST", address.http + path, json=body) as reply:
            if reply.status_code in (404, 405, 501):
                return None
            content = bytearray()
            for part in reply.iter_bytes():
                content += part
                if len(content) > PAGE:
                    raise ServerFault(f"{address.url}{path}: the reply is longer than {PAGE // 1024} KiB")
                if time.monotonic() > deadline:
                    raise ServerFault(f"{address.url}{path}: no whole reply within {address.seconds:g} s")
            if reply.status_code != 200:
                told = content.decode("utf-8", "replace")
                raise ServerFault(f"{address.url}{path}: status {reply.status_code} ({_words(told)})")
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise ServerFault(f"{address.url}{path}: the server cannot be reached ({_words(error)})") from error
    return read_json(bytes(content), f"{address.url}{path}")


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
