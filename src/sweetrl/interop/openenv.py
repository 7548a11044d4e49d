"""A domain as an OpenEnv server, with its client.

A server whose episodes are dialogues with the domain's user:

    python -m sweetrl.interop.openenv --domain backend --port 8000

    app = create_app(sweetrl.domain("backend"))         # the same for a program of your own (an ASGI application)

A client of it (reset takes split, index and seed; without an index the seed draws a task):

    with DialogueClient("http://localhost:8000").sync() as client:
        observation = client.reset(split="test", index=0, seed=7).observation
        while not observation.done:
            observation = client.step(DialogueAction(message=my_agent(observation.message))).observation
        print(observation.reward, observation.outcome)
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import threading
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field

import sweetrl
from sweetrl.errors import UserError, extras
from sweetrl.interop.worlds import SPLITS, World, domain_named
from sweetrl.seeds import dialogue_seed
from sweetrl.types import Outcome, Task

with extras():
    from openenv.core import Action, EnvClient, Environment, Observation, State
    from openenv.core.client_types import StepResult
    from openenv.core.env_server import create_app as make_app
    from openenv.core.env_server.types import EnvironmentMetadata, WSErrorCode
    from starlette.responses import JSONResponse

    from sweetrl.listening import Guard, for_this_machine_only, listening, serve_app

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.types import ASGIApp, Receive, Scope, Send

    from sweetrl.colbench.domain import Domain
    from sweetrl.rollout.context import Conversation

SESSIONS = 64  # dialogues of a client at a time
CLIENTS = 4  # that may have so many
LONGEST_MESSAGE = 1_000_000  # characters of one message of the agent
LONGEST_BODY = 2**23  # bytes: such a message, written as JSON
LISTED_TASKS = 1000  # that the Task API shows at once, of however many there are


class DialogueAction(Action):
    """What the agent says next."""

    message: str = Field(max_length=LONGEST_MESSAGE, description="The agent's reply to the user, as it writes it.")


class DialogueObservation(Observation):
    """What the agent hears: the user's words, and at the end how it went."""

    message: str = Field(description="What the user says: at reset the request; empty where the dialogue has ended.")
    system: str = Field("", description="At reset: the agent's system prompt.")
    outcome: Outcome | None = Field(None, description="How the dialogue ended; null while it goes on.")
    success: bool | None = Field(None, description="At the end: whether the task is solved.")
    parts: dict[str, float] = Field(default_factory=dict, description="At the end: the named parts of the reward.")
    error: str = Field("", description="Why the dialogue was lost (then it has no reward).")


class DialogueState(State):
    """Where an episode is; what the task hides is no part of it."""

    task_id: str | None = Field(None, description="The task's id; null before the first reset.")
    split: str | None = Field(None, description="Which tasks it is one of.")
    index: int | None = Field(None, description="Its place among them, from 0.")
    seed: int | None = Field(None, description="The user's seed: with split and index it repeats the episode.")


class DialogueEnvironment(Environment[DialogueAction, DialogueObservation, DialogueState]):
    """One session: one dialogue at a time with the user of `world`, which all sessions share."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world
        self._lock = threading.Lock()
        self._talk: Conversation | None = None
        self._task: Task | None = None
        self._state = DialogueState()

    # The dialogue

    def reset(
        self,
        seed: int | None = None,
        episode_id: str | None = None,
        split: str = "train",
        index: int | None = None,
        **unknown: Any,
    ) -> DialogueObservation:
        """Begin a dialogue about task `index` of `split`; `seed` is the user's, and draws the task without an index.

        Without a seed there is a random one, which `state` tells. Raises UserError for what is not known.
        """
        if unknown:
            raise UserError(f"reset: `{min(unknown)}` is not known; give split, index, seed and episode_id.")
        if seed is None:
            seed = random.SystemRandom().randrange(2**31)
        if type(seed) is not int or seed < 0:
            raise UserError("reset: `seed` is a whole number; correct it.")
        if index is None:
            index = dialogue_seed(seed, f"openenv {split}", 0) % len(self._world.tasks(split))
        with self._lock:
            self._task = self._world.task(index, split)
            self._talk = talk = self._world.begin(self._task, seed, agent="openenv")
            self._state = DialogueState(
                episode_id=str(episode_id or uuid.uuid4()), task_id=self._task.id, split=split, index=index, seed=seed
            )
            return DialogueObservation(message=talk.request, system=talk.system)

    def step(self, action: DialogueAction, timeout_s: float | None = None, **unknown: Any) -> DialogueObservation:
        """Let the agent speak and the user reply; the last step brings the reward, the others bring 0."""
        with self._lock:
            talk, task = self._talk, self._task
            if talk is None or task is None:
                raise UserError("step: no dialogue has begun in this session; reset first (over a WebSocket: /ws).")
            if talk.done:
                raise UserError(f"step: the dialogue about task {task.id} has ended; reset for another.")
            reply = talk.say(action.message)
            self._state.step_count += 1
            if reply is not None:
                return DialogueObservation(message=reply, reward=0.0)
            dialogue = self._world.score(task, talk)
            return DialogueObservation(
                message="",
                done=True,
                reward=dialogue.reward,
                outcome=dialogue.outcome,
                success=None if dialogue.reward is None else dialogue.success,
                parts=dict(dialogue.parts),
                error=dialogue.error,
            )

    @property
    def state(self) -> DialogueState:
        """Where the episode is."""
        return self._state.model_copy()

    def close(self) -> None:
        """Forget the dialogue; the domain stays open for other sessions."""
        self._talk = self._task = None

    # What there is

    def get_metadata(self) -> EnvironmentMetadata:
        """Say what this environment is; its description is the agent's system prompt."""
        domain = self._world.domain
        prompt = domain.system_prompt(domain.settings.agent.prompt)
        return EnvironmentMetadata(name=domain.name, description=prompt, version=sweetrl.__version__)

    def list_splits(self) -> list[str]:
        """Return the names of the splits."""
        return list(SPLITS)

    # Making tasks may take seconds: not in the server's event loop.

    async def num_tasks(self, split: str) -> int:
        """Return how many tasks a split has."""
        return len(await asyncio.to_thread(self._world.tasks, split))

    async def get_task(self, split: str, index: int) -> dict[str, Any]:
        """Return what anybody may know of a task; IndexError where there is none."""
        await self.num_tasks(split)  # what is wrong with the split is reported here
        try:
            return _public(split, index, self._world.task(index, split))
        except UserError as error:
            raise IndexError(str(error)) from error

    async def list_tasks(self, split: str) -> list[dict[str, Any]]:
        """Return the first tasks of a split, at most 1000."""
        return await self.get_task_range(split)

    async def get_task_range(
        self, split: str, start: int | None = None, stop: int | None = None
    ) -> list[dict[str, Any]]:
        """Return the tasks from `start` to before `stop` as a slice does, at most 1000."""
        tasks = await asyncio.to_thread(self._world.tasks, split)
        return [_public(split, index, task) for index, task in list(enumerate(tasks))[start:stop][:LISTED_TASKS]]


def _public(split: str, index: int, task: Task) -> dict[str, Any]:
    """What the Task API says of a task: nothing that is hidden."""
    return {"id": task.id, "split": split, "index": index, "request": task.problem_description}


# The server


def create_app(domain: Domain | str, *, sessions: int = SESSIONS, **settings: Any) -> Starlette:
    """Return the server of a domain as an ASGI application, for `sessions` dialogues of a client's at a time.

    `domain` is one, or its name for `sweetrl.domain`, which takes `settings`. The tasks are those of the settings
    (section `tasks`). The domain opens with the first dialogue and closes with the server.
    """
    if sessions < 1:
        raise UserError(f"sessions: {sessions} dialogues at a time are none; give at least 1.")
    domain = domain_named("create_app", domain, settings.pop("params", None), settings)
    domain.system_prompt(domain.settings.agent.prompt)  # what is wrong with it is reported here, not in every reset
    world = World(domain)
    app: Any = make_app(
        partial(DialogueEnvironment, world),
        DialogueAction,
        DialogueObservation,
        env_name=domain.name,
        max_concurrent_envs=CLIENTS * sessions,
        state_cls=DialogueState,
    )
    app.router.on_shutdown.append(world.close)  # as OpenEnv itself does
    app.add_middleware(ClientSessions, most=sessions)
    app.add_exception_handler(UserError, lambda request, error: JSONResponse({"detail": str(error)}, 400))
    application: Starlette = app
    return application


class ClientSessions:
    """ASGI middleware: an address has at most `most` sessions at a time, so that it cannot take those of all others."""

    def __init__(self, app: ASGIApp, most: int) -> None:
        self.app, self.most, self.open = app, most, Counter[str]()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the application have the request, or answer one session too many as OpenEnv answers a full server."""
        address = (scope.get("client") or ("",))[0]
        if scope["type"] != "websocket":
            await self.app(scope, receive, send)
        elif self.open[address] < self.most:
            self.open[address] += 1
            try:
                await self.app(scope, receive, send)
            finally:
                self.open[address] -= 1
        else:
            message = f"{address} has {self.most} sessions already (--sessions); close one of them first"
            error = {"type": "error", "data": {"message": message, "code": WSErrorCode.CAPACITY_REACHED}}
            await receive()
            await send({"type": "websocket.accept"})
            await send({"type": "websocket.send", "text": json.dumps(error)})
            await send({"type": "websocket.close", "code": 1013})


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve a domain until Ctrl-C; what is wrong is one sentence and status 1."""
    parser = argparse.ArgumentParser("python -m sweetrl.interop.openenv", description="Serve a domain by OpenEnv.")
    parser.add_argument("--domain", default="", help="backend, frontend, or a path as in my_package.forms:Forms")
    parser.add_argument("--params", type=Path, help="a file of settings, as in params.yaml; without one the defaults")
    parser.add_argument("--host", default="127.0.0.1", help="the address to listen at; 0.0.0.0 is every one")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--sessions", type=int, default=SESSIONS, help="dialogues of a client's at a time")
    chosen = parser.parse_args(arguments)
    try:
        app = create_app(chosen.domain, sessions=chosen.sessions, params=chosen.params)
        with listening(chosen.host, chosen.port) as listener:
            host = chosen.host if for_this_machine_only(listener) else None
            app.add_middleware(Guard, host=host, longest=LONGEST_BODY)
            serve_app(app, listener, chosen.host, print, patience=5, ws="auto")
    except UserError as error:
        sys.exit(f"error: {error}")


# The client


class DialogueClient(EnvClient[DialogueAction, DialogueObservation, DialogueState]):
    """A session with the server of a domain; see the module."""

    def _step_payload(self, action: DialogueAction) -> dict[str, Any]:
        return action.model_dump()

    def _parse_result(self, payload: Mapping[str, Any]) -> StepResult[DialogueObservation]:
        # OpenEnv sends two of the fields beside the observation.
        beside = {name: payload[name] for name in ("done", "reward") if name in payload}
        observation = DialogueObservation.model_validate({**payload["observation"], **beside})
        return StepResult(observation=observation, reward=observation.reward, done=observation.done)

    def _parse_state(self, payload: Mapping[str, Any]) -> DialogueState:
        return DialogueState.model_validate(payload)


if __name__ == "__main__":
    main()
