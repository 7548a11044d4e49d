"""Episodes of an OpenEnv server by their contents: what it says after so many actions, whoever asks and whenever.

A server's sessions remember, sweetrl's users do not: what they say is a function of the dialogue so far. So an episode
is named by how it was reset and by the actions since. The session that stands right there goes on; without one, a
session is reset and the actions are repeated. An environment that answers the same actions in another way the second
time is found out then, and named.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from sweetrl.errors import UserError
from sweetrl.interop.openenv_wire import Broken, Connection, Full, Refused, Said, ServerFault

KNOWN = 2048  # answers that are kept
TRIES = 3  # of an episode whose session breaks off
PAUSE = 0.2  # seconds until a full server is asked again

Result = TypeVar("Result")
Act = Callable[[str], Mapping[str, Any]]  # the action that a message of the agent is; Refused where it is none


@dataclass(frozen=True)
class Standing:
    """Where an episode stands: what was said last, and the sum of its rewards."""

    text: str
    total: float
    done: bool


@dataclass
class _Live:
    connection: Connection
    standing: Standing


class Episodes:
    """Episodes of one server, in at most `sessions` of its sessions at a time. Thread-safe; close it afterwards.

    `connect` opens a session, `act` makes an action of what the agent says. All calls raise ServerFault where the
    server fails.
    """

    def __init__(self, connect: Callable[[], Connection], act: Act, sessions: int, seconds: float) -> None:
        self._connect, self._act, self._most, self._seconds = connect, act, sessions, seconds
        self._changed = threading.Condition()
        self._live: OrderedDict[str, _Live] = OrderedDict()
        self._idle: list[Connection] = []
        self._open = 0
        self._known: OrderedDict[str, Standing] = OrderedDict()

    def __enter__(self) -> Episodes:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """End all sessions."""
        with self._changed:
            connections = [*self._idle, *(one.connection for one in self._live.values())]
            self._idle, self._open = [], self._open - len(connections)
            self._live.clear()
        for connection in connections:
            connection.close()

    def begin(self, start: Mapping[str, Any], field: str = "") -> tuple[Said, str]:
        """Return what a reset with `start` says, and `field` of the state it leads to."""
        said, state = self._tried(lambda: self._begin(start, bool(field)))
        if field and field not in state:
            raise UserError(f"suite_options.reference_field: the server's state has no `{field}`, but {_names(state)}.")
        found = state.get(field, "")
        return said, found if isinstance(found, str) else json.dumps(found, ensure_ascii=False)

    def after(self, start: Mapping[str, Any], request: str, actions: Sequence[str], heard: Sequence[str]) -> Standing:
        """Return where the episode stands after `actions`, of which all but the last have been answered by `heard`."""
        key = _key(start, actions)
        with self._changed:
            if (known := self._known.get(key)) is not None:
                self._known.move_to_end(key)
                return known
        return self._tried(lambda: self._go_on(start, request, actions, heard))

    def _tried(self, attempt: Callable[[], Result]) -> Result:
        """Return what `attempt` does; again, with new sessions, where one has broken off: others may have, too."""
        for _ in range(TRIES - 1):
            try:
                return attempt()
            except Broken:
                self.close()
                time.sleep(PAUSE)
        return attempt()

    def _begin(self, start: Mapping[str, Any], state: bool) -> tuple[Said, dict[str, Any]]:
        connection = self._take()
        try:
            found = connection.reset(start), connection.state() if state else {}
        except BaseException:
            self._drop(connection)
            raise
        self._give_back(connection)
        return found

    def _go_on(self, start: Mapping[str, Any], request: str, actions: Sequence[str], heard: Sequence[str]) -> Standing:
        live = self._at(start, actions[:-1]) if actions else None
        connection = self._take() if live is None else live.connection
        try:
            if live is not None:
                standing = live.standing
            else:
                standing = self._repeat(connection, start, request, actions[:-1], heard)
            if actions:
                standing = self._step(connection, standing, actions[-1])
        except BaseException:
            self._drop(connection)
            raise
        key = _key(start, actions)
        with self._changed:
            self._known[key] = standing
            while len(self._known) > KNOWN:
                self._known.popitem(last=False)
            if not standing.done and key not in self._live:
                self._live[key] = _Live(connection, standing)
                self._changed.notify()
                return standing
        self._give_back(connection)
        return standing

    def _repeat(
        self,
        connection: Connection,
        start: Mapping[str, Any],
        request: str,
        actions: Sequence[str],
        heard: Sequence[str],
    ) -> Standing:
        """Bring a session to where the dialogue is; ServerFault where the environment does not repeat itself."""
        said = connection.reset(start)
        standing = Standing(said.text, said.reward, said.done)
        self._compare(connection, standing, request, 0)
        for number, (words, expected) in enumerate(zip(actions, heard, strict=True), start=1):
            standing = self._step(connection, standing, words)
            self._compare(connection, standing, expected, number)
        return standing

    def _compare(self, connection: Connection, standing: Standing, expected: str, number: int) -> None:
        if not standing.text.startswith(expected):  # a dialogue may hold the beginning only
            raise ServerFault(
                f"{connection.address.url}: the environment does not repeat itself: after the same {number} actions it "
                "now says something else; what it says must be decided by the arguments of its reset"
            )

    def _step(self, connection: Connection, standing: Standing, words: str) -> Standing:
        """Take one step. What is no action is answered here, and changes nothing at the server."""
        if standing.done:
            raise ServerFault(f"{connection.address.url}: the episode has ended before its last action")
        try:
            said = connection.step(self._act(words))
        except Refused as refusal:
            return Standing(f"That is no action: {refusal}", standing.total, False)
        return Standing(said.text, standing.total + said.reward, said.done)

    # Sessions

    def _at(self, start: Mapping[str, Any], actions: Sequence[str]) -> _Live | None:
        with self._changed:
            return self._live.pop(_key(start, actions), None)

    def _take(self) -> Connection:
        """Return a session for a new episode: an idle one, a new one, or the one that has waited longest."""
        deadline = time.monotonic() + self._seconds
        while True:
            with self._changed:
                if self._idle:
                    return self._idle.pop()
                if self._open >= self._most:
                    if self._live:
                        return self._live.popitem(last=False)[1].connection
                    self._changed.wait(1.0)  # all of them are at work
                    continue
                self._open += 1
            try:
                return self._opened()
            except Full:
                with self._changed:
                    self._open -= 1
                    if self._open:
                        self._most = self._open  # so many the server has for us
                        continue
                if time.monotonic() > deadline:
                    raise
                time.sleep(PAUSE)
            except BaseException:
                with self._changed:
                    self._open -= 1
                raise

    def _opened(self) -> Connection:
        """Open a session; the server says with its first answer whether it has one."""
        connection = self._connect()
        try:
            connection.state()
        except Full:
            connection.close()
            raise
        except Broken:
            connection.close()
            raise
        except ServerFault:
            pass  # some have no state before the first reset
        return connection

    def _give_back(self, connection: Connection) -> None:
        with self._changed:
            self._idle.append(connection)
            self._changed.notify()

    def _drop(self, connection: Connection) -> None:
        connection.close()
        with self._changed:
            self._open -= 1
            self._changed.notify()


def _key(start: Mapping[str, Any], actions: Sequence[str]) -> str:
    return hashlib.sha256(json.dumps([start, *actions], sort_keys=True).encode()).hexdigest()


def _names(state: Mapping[str, Any]) -> str:
    return ", ".join(f"`{str(name)[:40]}`" for name in list(state)[:10]) or "nothing"
