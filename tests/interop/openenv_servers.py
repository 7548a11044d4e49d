"""Servers on localhost for the tests of OpenEnv: two games by the real package, and one that says what it is told."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import uvicorn
from openenv.core import Action, Environment, Observation, State
from openenv.core.env_server import create_app
from pydantic import Field
from websockets.sync.server import serve


@contextmanager
def served(app: Any, port: int = 0) -> Iterator[str]:
    """Serve an ASGI application in a thread; yield its address."""
    listener = socket.create_server(("127.0.0.1", port))
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", ws_ping_interval=None))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        deadline = time.monotonic() + 30
        while not server.started:
            assert thread.is_alive() and time.monotonic() < deadline, "the server does not start"
            time.sleep(0.01)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(20)
        listener.close()


class GuessAction(Action):
    """A guess."""

    guess: int = Field(ge=0, le=100, description="A number from 0 to 100.")


class GuessObservation(Observation):
    """A hint."""

    hint: str
    tries: int = 0


class GuessState(State):
    """What the environment knows."""

    secret: int = 0


class Guess(Environment[GuessAction, GuessObservation, GuessState]):
    """Guess a number: each guess costs a tenth, the right one brings 1 and ends the episode."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    made: list[Guess] = []  # noqa: RUF012
    resets: list[dict[str, Any]] = []  # noqa: RUF012

    def __init__(self) -> None:
        super().__init__()
        self._state = GuessState()
        self.made.append(self)

    def reset(self, seed: int | None = None, episode_id: str | None = None, **more: Any) -> GuessObservation:
        self.resets.append({"seed": seed, **more})
        rng = random.Random(seed)
        self._state = GuessState(episode_id=episode_id, secret=rng.randint(0, 100))
        return GuessObservation(hint=f"Guess my number (game {rng.randint(0, 10**6)}).")

    def step(self, action: GuessAction, timeout_s: float | None = None, **more: Any) -> GuessObservation:
        self._state.step_count += 1
        secret, tries = self._state.secret, self._state.step_count
        if action.guess == secret:
            return GuessObservation(hint="Right.", tries=tries, reward=1.0, done=True)
        hint = "Higher." if action.guess < secret else "Lower."
        return GuessObservation(hint=hint, tries=tries, reward=-0.1)

    @property
    def state(self) -> GuessState:
        return self._state


def guess_app(sessions: int = 8, environment: Callable[[], Guess] = Guess) -> Any:
    """The server of the game."""
    return create_app(environment, GuessAction, GuessObservation, max_concurrent_envs=sessions, state_cls=GuessState)


class LettersAction(Action):
    """Any words."""

    words: str = Field(description="Words with many of the letter.")


class LettersObservation(Observation):
    """A request for more."""

    words: str


class Letters(Environment[LettersAction, LettersObservation, State]):
    """Say a letter often: three steps, each with a tenth of the reward for each of them, at most a third."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self._state = State()

    def reset(self, seed: int | None = None, episode_id: str | None = None, **more: Any) -> LettersObservation:
        self._state = State(letter=random.Random(seed).choice("aeiou"))
        return LettersObservation(words=f"Game {seed}: which vowel do I like?")

    def step(self, action: LettersAction, timeout_s: float | None = None, **more: Any) -> LettersObservation:
        self._state.step_count += 1
        reward = min(0.1 * action.words.count(self._state.letter), 1 / 3)
        return LettersObservation(words="Go on.", reward=reward, done=self._state.step_count == 3)

    @property
    def state(self) -> State:
        return self._state


def letters_app() -> Any:
    """The server of the letters."""
    return create_app(Letters, LettersAction, LettersObservation, max_concurrent_envs=8)


@contextmanager
def raw_server(*replies: str | bytes, pages: Mapping[str, tuple[int, str]] | None = None) -> Iterator[str]:
    """A server that answers each message with the next of `replies`, whatever was asked, and each page as given.

    "silence" is no answer, "drop" ends the session.
    """
    waiting, known = list(replies), dict(pages or {})

    def handle(connection: Any) -> None:
        for _ in connection:
            reply = waiting.pop(0) if waiting else "drop"
            if reply == "drop":
                return
            if reply != "silence":
                connection.send(reply)

    def page(connection: Any, request: Any) -> Any:
        return None if request.path == "/ws" else connection.respond(*known.get(request.path, (404, "not here")))

    with serve(handle, "127.0.0.1", 0, process_request=page) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.socket.getsockname()[1]}"
        finally:
            server.shutdown()
            thread.join(10)
