"""What an OpenEnv server says, read in one place: bytes in, plain values out, with limits on sizes, types and time.

Whatever a server does wrong becomes one of the exceptions below, with a sentence.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit

import httpx

from sweetrl.engines.bodies import clean
from sweetrl.errors import UserError, missing_extra
from sweetrl.text import excess

try:
    from websockets.exceptions import WebSocketException
    from websockets.sync.client import ClientConnection, connect
except ModuleNotFoundError as error:
    if missing := missing_extra(error):
        raise missing from error
    raise

LONGEST_MESSAGE = 16 * 2**20  # bytes
LONGEST_PAGE = 2**20  # bytes
LONGEST_TEXT = 100_000  # characters of what a server says of itself
LONGEST_QUOTE = 200  # characters of a server's words in a message of ours
SPLITS = 64  # that are looked at
GREATEST_REWARD = 1e12
LEVELS = 100  # of nested JSON


class ServerError(Exception):
    """The server fails, or does not do what it should; the message is a sentence without its end."""


class ConnectionLost(ServerError):
    """There is no connection (any more): a new one may do."""


class ServerFull(ServerError):
    """The server has no free session."""


class InvalidAction(Exception):
    """What the agent said is no action; the message says why."""


@dataclass(frozen=True)
class Observation:
    """What a reset or a step returns."""

    fields: Mapping[str, Any]
    reward: float
    done: bool


@dataclass(frozen=True)
class Schema:
    """The JSON schemas of the fields of an action or observation, and which fields are required."""

    fields: Mapping[str, Mapping[str, Any]]
    required: tuple[str, ...]


@dataclass(frozen=True)
class Description:
    """What a server says of itself; `splits` is empty where it lists no tasks."""

    name: str
    about: str
    action: Schema
    observation: Schema
    splits: tuple[str, ...]


# The server


class Server:
    """An OpenEnv server at `url`, which has so many `seconds` for each answer.

    `key_variable` names the environment variable with the key that is sent as a bearer token, if any.
    """

    def __init__(self, url: str, seconds: float, key_variable: str = "") -> None:
        self.url, self.seconds = url.strip().rstrip("/"), seconds
        scheme, _, self._rest = self.url.partition("://")
        try:
            host = urlsplit(self.url).hostname
        except ValueError:
            host = None
        if scheme not in ("http", "https") or not host:
            raise UserError(
                f"suite_options.url: `{url}` is no address of an OpenEnv server; name one as in http://localhost:8000."
            )
        self._scheme = "ws" if scheme == "http" else "wss"
        key = os.environ.get(key_variable, "") if key_variable else ""
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        # A proxy that the environment names does not stand between us and our own machine.
        self._local = host in ("localhost", "127.0.0.1", "::1")

    def describe(self) -> Description:
        """Ask the server what it is. What it does not tell is empty; ServerError where it does not answer."""
        schema, metadata = _object(self._page("/schema")), _object(self._page("/metadata"))
        names = _list(self._page("/list_environments"))
        name = clean(names[0][:LONGEST_QUOTE]) if names and isinstance(names[0], str) else ""
        splits = _list(self._page(f"/{quote(name, safe='')}/splits")) if name else []
        return Description(
            name=name,
            about=clean(str(metadata.get("description") or "")[:LONGEST_TEXT]),
            action=_schema(schema.get("action")),
            observation=_schema(schema.get("observation")),
            splits=tuple(one for split in splits[:SPLITS] if isinstance(one := _object(split).get("name"), str)),
        )

    def count_tasks(self, name: str, split: str) -> int:
        """Return how many tasks the environment `name` has in a split."""
        count = _object(self._page(f"/{quote(name, safe='')}/num_tasks", {"split": split})).get("num_tasks")
        if not isinstance(count, int) or isinstance(count, bool) or count < 0:
            raise ServerError(f"{self.url}: the server does not say how many tasks the split `{split}` has")
        return count

    def connect(self) -> Connection:
        """Open a session; ConnectionLost where that does not work."""
        options: dict[str, Any] = {"proxy": None} if self._local else {}
        try:
            socket = connect(
                f"{self._scheme}://{self._rest}/ws",
                open_timeout=self.seconds,
                close_timeout=min(5.0, self.seconds),
                max_size=LONGEST_MESSAGE,
                additional_headers=self._headers,
                **options,
            )
        except (OSError, WebSocketException, ValueError) as error:
            raise ConnectionLost(f"{self.url}: no session can be opened ({_quote(error)})") from error
        return Connection(socket, self.url, self.seconds)

    def _page(self, path: str, body: Any = None) -> Any:
        """Return what is at `path`; None where the server has no such page."""
        url, deadline = f"{self.url}{path}", time.monotonic() + self.seconds
        options: dict[str, Any] = {"timeout": self.seconds, "headers": self._headers, "trust_env": not self._local}
        try:
            with httpx.stream("GET" if body is None else "POST", url, json=body, **options) as reply:
                if reply.status_code in (404, 405, 501):
                    return None
                content = bytearray()
                for part in reply.iter_bytes():
                    content += part
                    if len(content) > LONGEST_PAGE:
                        raise ServerError(f"{url}: the page is longer than {LONGEST_PAGE // 1024} KiB")
                    if time.monotonic() > deadline:
                        raise ServerError(f"{url}: no whole page within {self.seconds:g} s")
                if reply.status_code != 200:
                    text = content.decode("utf-8", "replace")
                    raise ServerError(f"{url}: status {reply.status_code} ({_quote(text)})")
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise ServerError(f"{url}: the server cannot be reached ({_quote(error)})") from error
        return _json(bytes(content), url)


class Connection:
    """A WebSocket, for which the server has a session."""

    def __init__(self, socket: ClientConnection, url: str, seconds: float) -> None:
        self._socket, self.url, self._seconds = socket, url, seconds

    def reset(self, arguments: Mapping[str, Any]) -> Observation:
        """Begin an episode."""
        return self._observation("reset", arguments)

    def step(self, action: Mapping[str, Any]) -> Observation:
        """Take a step; InvalidAction where the server does not take `action` for one."""
        return self._observation("step", action)

    def state(self) -> dict[str, Any]:
        """Return the state of the episode."""
        return self._ask({"type": "state"}, "state")

    def close(self) -> None:
        """End the session; never fails."""
        with suppress(Exception):  # the server notices sooner or later
            self._socket.send('{"type": "close"}')
            self._socket.close()

    def _observation(self, kind: str, data: Mapping[str, Any]) -> Observation:
        found = self._ask({"type": kind, "data": dict(data)}, "observation")
        fields, done, reward = found.get("observation"), found.get("done", False), found.get("reward")
        if not isinstance(fields, dict) or not isinstance(done, bool):
            raise ServerError(f"{self.url}: an observation must be an object, and `done` true or false")
        if reward is not None and not (isinstance(reward, int | float) and abs(reward) <= GREATEST_REWARD):
            raise ServerError(f"{self.url}: a reward must be a number, found {_quote(repr(reward))}")
        return Observation(fields, float(reward or 0.0), done)

    def _ask(self, message: dict[str, Any], expected: str) -> dict[str, Any]:
        url = self.url
        try:
            # A server that has no session says so and hangs up, perhaps before we send: what it said can still be read.
            with suppress(WebSocketException):
                self._socket.send(json.dumps(message))
            raw = self._socket.recv(timeout=self._seconds)
        except TimeoutError as error:
            raise ServerError(f"{url}: no answer within {self._seconds:g} s") from error
        except (OSError, WebSocketException) as error:
            raise ConnectionLost(f"{url}: the session broke off ({_quote(error)})") from error
        found = _object(_json(raw, url))
        data = found.get("data")
        if not isinstance(data, dict):
            raise ServerError(f"{url}: a message must be an object with `type` and `data`")
        if found.get("type") == "error":
            raise _error(url, message["type"], data)
        if found.get("type") != expected:
            raise ServerError(f"{url}: expected a message of type {expected}, found {_quote(repr(found.get('type')))}")
        return data


# Parsing


def _error(url: str, asked: str, data: Mapping[str, Any]) -> Exception:
    """Return what an error message of the server means."""
    code, text = data.get("code"), _quote(data.get("message"))
    if code == "VALIDATION_ERROR" and asked == "step":
        errors = data.get("errors")
        first = _object(errors[0]) if isinstance(errors, list) and errors else {}
        place = first.get("loc")
        where = ".".join(str(part) for part in place) if isinstance(place, list) else ""
        return InvalidAction(": ".join(part for part in (_quote(where), _quote(first.get("msg", text))) if part))
    if code == "CAPACITY_REACHED":
        return ServerFull(f"{url}: the server has no free session ({text})")
    return ServerError(f"{url}: {asked} failed ({text})")


def _schema(value: Any) -> Schema:
    definitions, required = _object(_object(value).get("$defs")), _list(_object(value).get("required"))

    def resolved(field: dict[str, Any]) -> dict[str, Any]:
        return _object(definitions.get(str(field.get("$ref")).rpartition("/")[2])) or field

    # What every action and observation has is not for the agent.
    fields = {
        clean(name): resolved(field)
        for name, field in _object(_object(value).get("properties")).items()
        if isinstance(field, dict) and name not in ("metadata", "done", "reward")
    }
    return Schema(fields, tuple(name for name in fields if name in required))


def parse_json(text: str | bytes) -> Any:
    """Return the JSON value in `text`; ValueError for what is none, NaN and endless nesting included."""

    def refuse(name: str) -> Any:
        raise ValueError(f"{name} is no number")

    try:
        value = json.loads(text, parse_constant=refuse)
    except RecursionError as error:
        raise ValueError("too many levels") from error
    if excess(value, LEVELS):
        raise ValueError("too many levels")
    return value


def _json(raw: str | bytes, url: str) -> Any:
    try:
        return parse_json(raw)
    except ValueError as error:
        raise ServerError(f"{url}: the answer is not JSON ({_quote(error)})") from error


def _quote(words: object) -> str:
    """One short line of what somebody else says."""
    text = str("" if words is None else words)[: 4 * LONGEST_QUOTE]
    return clean(" ".join(text.split())[:LONGEST_QUOTE])


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
