"""A domain as a task of inspect_ai: any of its models talks to the domain's user, and gets the domain's reward.

    inspect eval sweetrl/colbench --model openai/gpt-4o-mini -T domain=backend -T count=50 -T seed=7

The same from Python:

    import inspect_ai
    from sweetrl.interop.inspect import colbench

    (log,) = inspect_ai.eval(colbench("backend", count=50, seed=7), model="openai/gpt-4o-mini")
    for score in log.results.scores:                       # reward, success
        print(score.name, score.metrics["mean"].value, score.metrics["stderr"].value)

An epoch is an attempt: its user has a seed of their own. Logs hold the request and the task's place, by which it is
looked up again, and nothing of what a task hides. `inspect score` scores the dialogues of a log again: the user then
says what the log says.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from weakref import WeakValueDictionary

import anyio.to_thread

from sweetrl.colbench.users import ScriptedUser
from sweetrl.errors import SimulatorError, UserError, UserLeft, extras
from sweetrl.interop.worlds import World, domain_named
from sweetrl.types import Message, Trajectory
from sweetrl.types import Task as DomainTask

with extras():
    from inspect_ai import Task, task
    from inspect_ai.dataset import MemoryDataset, Sample
    from inspect_ai.model import ChatMessageAssistant, ChatMessageSystem, ChatMessageUser
    from inspect_ai.scorer import Score, Scorer, Target, mean, scorer, stderr
    from inspect_ai.solver import Generate, Solver, TaskState, solver

Settings = Mapping[str, Any]
KEY = "sweetrl"  # of a sample's metadata, and of its store
BROKEN_OFF = "broken_off"  # the outcome of a dialogue that a limit of Inspect has ended


@task
def colbench(
    domain: str = "backend",
    split: str = "test",
    count: int | None = None,
    seed: int | None = None,
    params: str | None = None,
    prompt: str = "full",
    settings: dict[str, Any] | None = None,
) -> Task:
    """Dialogues with the user of a domain: `backend`, `frontend`, or one by its path, `my_package.forms:Forms`.

    `count` tasks of `split` (without it as many as `tasks.test` or `tasks.train` says), made from `seed`, which is the
    user's, too. `params` is a file of settings, `settings` are sections over it: `{"agent": {"max_turns": 6}}`.
    `prompt` is the system prompt (`agent.prompt`); `full` tells a model that was not trained here all it must know.
    Raises UserError for what is wrong.
    """
    settings = _with_prompt(settings or {}, prompt)
    world = _world(domain, params, settings)
    world.domain.system_prompt(world.domain.settings.agent.prompt)  # what is wrong with it is reported here
    tasks = world.tasks(split, count, seed)
    among = {"split": split, "count": len(tasks), "seed": world.domain.settings.seed if seed is None else seed}
    samples = [
        Sample(id=task.id, input=task.problem_description, metadata={KEY: {**among, "place": place}})
        for place, task in enumerate(tasks)
    ]
    return Task(
        dataset=MemoryDataset(samples, name=world.domain.name),
        solver=dialogue(domain, params, settings),
        scorer=colbench_reward(domain, params, settings),
    )


@solver
def dialogue(domain: str = "backend", params: str | None = None, settings: dict[str, Any] | None = None) -> Solver:
    """Let the model and the domain's user talk until the dialogue ends.

    A user who cannot go on fails the sample (`--retry-on-error` tries it again).
    """
    world = _world(domain, params, settings or {})

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        sample = await anyio.to_thread.run_sync(_find, world, state)
        talk = await anyio.to_thread.run_sync(world.begin, *sample)
        state.store.set(KEY, {"outcome": BROKEN_OFF})  # unless it comes to its end
        state.messages = [ChatMessageSystem(content=talk.system), ChatMessageUser(content=talk.request)]
        words: str | None = talk.request
        while words is not None:
            state = await generate(state)
            words = await anyio.to_thread.run_sync(talk.say, _replies(state.messages)[-1])
            if words is not None:
                state.messages.append(ChatMessageUser(content=words))
        if talk.outcome == "lost":
            raise SimulatorError(f"task {state.sample_id}: the dialogue is lost: {talk.score().error}")
        state.store.set(KEY, {"outcome": talk.outcome})
        state.completed = True
        return state

    return solve


@scorer(metrics={"reward": [mean(), stderr()], "success": [mean(), stderr()]})
def colbench_reward(
    domain: str = "backend", params: str | None = None, settings: dict[str, Any] | None = None
) -> Scorer:
    """Score the dialogue by the domain's own scorer (a sandbox, a browser), as its messages say that it went.

    The value holds `reward` and `success`, the metadata how the dialogue ended, and the reward's named parts. A
    dialogue that a limit of Inspect has broken off has no answer.
    """
    world = _world(domain, params, settings or {})

    async def score(state: TaskState, target: Target) -> Score:
        dialogue = await anyio.to_thread.run_sync(_score, world, state)
        assert dialogue.reward is not None  # nothing can be lost once more
        turns = sum(message.role == "assistant" for message in dialogue.messages)
        return Score(
            value={"reward": dialogue.reward, "success": float(dialogue.success)},
            answer=dialogue.answer,
            metadata={"outcome": _outcome(state), "turns": turns, "parts": dict(dialogue.parts)},
        )

    return score


# The domain, and what a sample is about


_worlds: WeakValueDictionary[str, World] = WeakValueDictionary()
_making = threading.Lock()


def _world(domain: str, params: str | None, settings: Settings) -> World:
    """Return the world of a domain, which task, solver and scorer share: a log names them by these arguments."""
    key = json.dumps([domain, params, settings], sort_keys=True, default=str)
    with _making:
        if (world := _worlds.get(key)) is None:
            _worlds[key] = world = World(domain_named("colbench", domain, params, settings))
        return world


def _with_prompt(settings: Settings, prompt: str) -> dict[str, Any]:
    agent = settings.get("agent", {})
    if not isinstance(agent, Mapping) or "prompt" in agent:
        return dict(settings)  # parse_settings says what is wrong with it
    return {**settings, "agent": {**agent, "prompt": prompt}}


def _find(world: World, state: TaskState) -> tuple[DomainTask, int, int, str]:
    """Return a sample's task, seed, attempt and agent; UserError where the domain has another task in its place."""
    place = (state.metadata or {}).get(KEY)
    if not isinstance(place, Mapping) or set(place) != {"split", "place", "count", "seed"}:
        raise UserError(f"sample {state.sample_id}: its metadata has no `{KEY}`; it is no sample of sweetrl/colbench.")
    task = world.same_task(str(state.sample_id), state.input_text, **place)
    return task, place["seed"], state.epoch - 1, str(state.model)


# The dialogue once more


def _score(world: World, state: TaskState) -> Trajectory:
    """Score the dialogue that a sample's messages are: by them alone, so that a log can be scored, too."""
    sample = _find(world, state)
    heard = [message.text for message in state.messages if isinstance(message, ChatMessageUser)][1:]
    replies = _replies(state.messages)
    if _outcome(state) == BROKEN_OFF:
        replies = replies[: len(heard)]  # what nobody has replied to was not the end

    def as_before(task: DomainTask, messages: Sequence[Message], seed: int) -> str:
        """The next of the user's words; without one they have left."""
        if (turn := len(messages) // 2 - 1) >= len(heard):
            raise UserLeft
        return heard[turn]

    talk = replace(world.open(), simulator=ScriptedUser(as_before)).begin(*sample)
    for reply in replies:
        if not talk.done:
            talk.say(reply)
    return world.score(sample[0], talk)


def _outcome(state: TaskState) -> str:
    end = state.store.get(KEY)
    if not isinstance(end, Mapping) or not isinstance(end.get("outcome"), str):
        raise UserError(
            f"sample {state.sample_id}: there is no dialogue with the domain's user; take the solver sweetrl/dialogue."
        )
    return str(end["outcome"])


def _replies(messages: Sequence[Any]) -> list[str]:
    return [message.text for message in messages if isinstance(message, ChatMessageAssistant)]
