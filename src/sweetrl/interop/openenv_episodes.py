"""Episodes of an OpenEnv server by their contents: what it says after these actions, whoever asks and whenever.

A server's sessions remember; sweetrl's users do not: what they say is a function of the dialogue so far. So an episode
is named by the arguments of its reset and the actions since. If a session stands right there, it goes on; otherwise
one is reset, and the actions are repeated. An environment that then answers differently is found out, and named.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from sweetrl.interop.openenv_format import Format
from sweetrl.interop.openenv_wire import Connection, ConnectionLost, InvalidAction, Observation, ServerError, ServerFull

KEPT = 2048  # positions that are remembered
TRIES = 3  # of an episode whose session breaks off
PAUSE = 0.2  # seconds before a full or broken server is asked again

Result = TypeVar("Result")


@dataclass(frozen=True)
class Position:
    """Where an episode stands: what was said last, the sum of the rewards, whether it has ended."""

    text: str
    total: float
    done: bool


IDLE = Position("", 0.0, True)


@dataclass(eq=False)
class _Session:
    """A connection, and where it stands: the `key` of the episode and the actions so far."""

    connection: Connection
    key: str = ""
    position: Position = IDLE


class Episodes:
    """Episodes of one server, in at most `sessions` sessions at a time. Thread-safe; close it afterwards.

    `connect` opens a session, `format` says what actions and observations look like. All calls raise ServerError where
    the server fails; a full one is asked again for `seconds`.
    """

    def __init__(self, connect: Callable[[], Connection], format: Format, sessions: int, seconds: float) -> None:
        self._connect, self._format, self._limit, self._seconds = connect, format, sessions, seconds
        self._changed = threading.Condition()
        self._waiting: list[_Session] = []  # the one that has waited longest comes first
        self._open = 0
        self._known: dict[str, Position] = {}

    def close(self) -> None:
        """End all sessions."""
        with self._changed:
            closing, self._waiting = self._waiting, []
            self._open -= len(closing)
        for session in closing:
            session.connection.close()

    def begin(self, start: Mapping[str, Any], *, state: bool = False) -> tuple[Position, dict[str, Any]]:
        """Return where an episode begins that is reset with `start`, and the server's `state` then, if wanted."""

        def attempt() -> tuple[Position, dict[str, Any]]:
            with self._session("") as session:
                session.key, session.position = "", IDLE
                position = self._position(session.connection.reset(start))
                return position, session.connection.state() if state else {}

        return self._retried(attempt)

    def after(self, start: Mapping[str, Any], heard: Sequence[str], actions: Sequence[str]) -> Position:
        """Return where the episode stands after `actions`, each an answer to the words at its place in `heard`."""
        before, key = _key(start, actions[:-1]), _key(start, actions)
        with self._changed:
            if key in self._known:
                return self._known[key]

        def attempt() -> Position:
            with self._session(before) as session:
                if session.key != before:
                    session.position = self._repeat(session.connection, start, heard, actions[:-1])
                for action in actions[-1:]:
                    session.position = self._step(session.connection, session.position, action)
                session.key = key
                return session.position

        position = self._retried(attempt)
        with self._changed:
            self._known[key] = position
            if len(self._known) > KEPT:
                del self._known[next(iter(self._known))]
        return position

    # In a session

    def _repeat(
        self, connection: Connection, start: Mapping[str, Any], heard: Sequence[str], actions: Sequence[str]
    ) -> Position:
        position = self._position(connection.reset(start))
        for number, expected in enumerate(heard):
            if number > 0:
                position = self._step(connection, position, actions[number - 1])
            if not position.text.startswith(expected):  # a dialogue may hold only the beginning
                raise ServerError(
                    f"{connection.url}: the environment does not repeat itself: after the same reset and actions "
                    f"({number}) it says something else; the arguments of the reset must decide what it says"
                )
        return position

    def _step(self, connection: Connection, position: Position, reply: str) -> Position:
        """Take one step. A reply that is no action is answered here, and changes nothing at the server."""
        if position.done:
            raise ServerError(f"{connection.url}: the episode has ended before its last action")
        try:
            return self._position(connection.step(self._format.action(reply)), position.total)
        except InvalidAction as error:
            return Position(f"That is no action: {error}", position.total, False)

    def _position(self, observation: Observation, total: float = 0.0) -> Position:
        return Position(self._format.text(observation.fields), total + observation.reward, observation.done)

    # Sessions

    def _retried(self, attempt: Callable[[], Result]) -> Result:
        """Return what `attempt` returns, which is called again where a session broke off or none is free."""
        deadline, tries = time.monotonic() + self._seconds, TRIES
        while True:
            try:
                return attempt()
            except ServerFull:
                if time.monotonic() > deadline:
                    raise
            except ConnectionLost:
                tries -= 1
                if not tries:
                    raise
                self.close()  # the others may have broken off, too
            time.sleep(PAUSE)

    @contextmanager
    def _session(self, key: str) -> Iterator[_Session]:
        """Lend a session: the one that stands at `key`, or any that can be had. It ends where something goes wrong."""
        session = self._take(key)
        try:
            if session is None:
                session = _Session(self._connect())
            yield session
        except BaseException as error:
            if session is not None:
                session.connection.close()
            with self._changed:
                self._open -= 1
                if isinstance(error, ServerFull):
                    self._limit = max(1, self._open)  # the server has so many for us
                self._changed.notify()
            raise
        with self._changed:
            self._waiting.append(session)
            self._changed.notify()

    def _take(self, key: str) -> _Session | None:
        """Return a session that nobody uses; None, and the right to open one, where there may be more."""
        with self._changed:
            while True:
                full = self._open >= self._limit
                waiting = self._waiting
                fitting = [one for one in waiting if one.key == key] or [one for one in waiting if one.position.done]
                if fitting or (full and waiting):
                    session = (fitting or waiting)[0]
                    waiting.remove(session)
                    return session
                if not full:
                    self._open += 1
                    return None
                self._changed.wait()


def _key(start: Mapping[str, Any], actions: Sequence[str]) -> str:
    return hashlib.sha256(json.dumps([start, *actions], sort_keys=True).encode()).hexdigest()
