"""A domain as an environment of the library verifiers (`verifiers.v1`): its model is the agent, the user the domain's.

    import asyncio
    import verifiers.v1 as vf
    from sweetrl.interop.verifiers import load_environment

    env = load_environment("backend", split="test", count=20, seed=7, agent={"max_turns": 6})
    server = vf.EvalClientConfig(base_url="http://localhost:8000/v1", api_key_var="NO_KEY")
    model = vf.ModelContext(client=server, model="Qwen/Qwen3-8B", sampling=vf.SamplingConfig(temperature=0.7))

    async def attempts(number):
        gate = asyncio.Semaphore(16)  # episodes at a time
        async with env.serving():
            slots = [slot for task in env.taskset for slot in env.slots(task, number)]
            return await asyncio.gather(*(env.run_slot(slot, model, gate) for slot in slots))

    episodes = asyncio.run(attempts(4))
    print(sum(episode.traces[0].reward for episode in episodes if episode.ok))

With verifiers' own command line, and whatever else takes the id of a taskset (package sweetrl_verifiers):

    vf-eval sweetrl-verifiers --env.taskset.domain backend --env.taskset.split test -n 20 -r 4

What a task hides (reference, tests, hidden information) never leaves this process: verifiers carries the request and
the task's place, by which the environment looks it up again.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError, model_validator

from sweetrl.colbench.domain import Domain
from sweetrl.engines.background import in_thread
from sweetrl.errors import SimulatorError, UserError, extras
from sweetrl.interop.worlds import World, domain_named
from sweetrl.types import Split, Task, Trajectory

with extras():
    import verifiers.v1 as vf

ID = "sweetrl-verifiers"
BROKEN_OFF = "broken_off"  # the outcome of a dialogue that a limit of verifiers has ended


# Tasks


class DomainTasksetConfig(vf.TasksetConfig):
    """Which domain, with which settings, and which of its tasks; on the command line under `--env.taskset.`."""

    domain: str = ""
    """`backend`, `frontend`, or a path as `my_package.forms:Forms`; empty: what `params` says, or backend."""
    params: Path | None = None
    """A parameter file whose settings the domain works with; without one the defaults."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """Settings by section, over those of `params`: `{"agent": {"max_turns": 6}}` (docs/parameters.md)."""
    split: Split = "train"
    """Which of the domain's tasks: `train` or `test`."""
    count: int | None = Field(None, ge=1)
    """How many; without it as many as `tasks.train` or `tasks.test` says."""
    seed: int | None = None
    """The seed of the tasks and of the user; without it that of the settings."""

    @model_validator(mode="after")
    def _check(self) -> DomainTasksetConfig:
        try:
            domain_of(self)
        except UserError as error:  # pydantic and the command line make a message of a ValueError
            raise ValueError(str(error)) from error
        return self


class DomainData(vf.TaskData):
    """What verifiers carries of a task, and what the agent's program may see: nothing that the user must not tell.

    `idx` is the task's place among those of `split` and `seed`.
    """

    request: str
    domain: str
    split: Split
    seed: int


class DomainTask(vf.Task[DomainData]):
    """A task of the domain, without a prompt: the user opens the dialogue, so only DomainEnv can run it."""


class DomainTaskset(vf.Taskset[DomainTask, DomainTasksetConfig]):
    """The tasks of a domain."""

    def __init__(self, config: DomainTasksetConfig) -> None:
        super().__init__(config)
        self.domain = domain_of(config)
        self._world = World(self.domain)

    def load(self) -> Iterator[DomainTask]:
        """Yield the tasks."""
        settings = self.domain.settings
        system = self.domain.system_prompt(settings.agent.prompt)
        for task in self._world.tasks(self.config.split, self.config.count):
            data = DomainData(
                id=task.id,
                name=task.id,
                system_prompt=system,
                request=task.problem_description,
                domain=self.domain.spec,
                split=self.config.split,
                seed=settings.seed,
            )
            yield DomainTask(data, self.config.task)

    def find(self, data: DomainData) -> Task:
        """Return the domain's task that `data` is about; UserError where this taskset has another one in its place."""
        config = self.config
        return self._world.same_task(str(data.id), data.request, data.idx, config.split, config.count, None)


def domain_of(config: DomainTasksetConfig) -> Domain:
    """Return the domain that a config names, with its settings; UserError for what is wrong there."""
    changes = config.settings if config.seed is None else config.settings | {"seed": config.seed}
    return domain_named(ID, config.domain, config.params, changes)


# Dialogues


class DomainEnvConfig(vf.EnvConfig):
    """Who plays the agent (`--env.agent.`): by default a plain chat program on this machine, which needs no container.

    The user, the turns and the reward are the domain's: settings of the taskset.
    """

    agent: vf.AgentConfig = vf.AgentConfig(harness={"id": "null"}, runtime={"type": "subprocess"})


class DomainEnv(vf.Env[DomainEnvConfig]):
    """Dialogues between verifiers' model and the domain's user, scored as the domain says.

    A trace has one reward, `reward`; metrics `success`, `answered` and `turns`, and `reward/<part>` for each named part
    of the reward; and in `trace.info["sweetrl"]` how the dialogue ended (`outcome`) and the number of the attempt.
    Episodes of one task are its attempts 0, 1, ...: each has a user with a seed of its own, the same in every run.
    """

    def __init__(self, config: DomainEnvConfig) -> None:
        super().__init__(config)
        if not isinstance(self.taskset, DomainTaskset):
            raise ValueError(f"{ID}: this environment plays its own tasks; set the taskset's id to {ID}, too.")
        self._world: World | None = None
        self._attempts: defaultdict[str, set[int]] = defaultdict(set)  # numbers that are taken, by the task's id

    async def start(self) -> None:
        """Open the domain: the user, and what scores answers (a sandbox, a browser)."""
        self._world = World(self.taskset.domain)
        self._attempts.clear()
        await in_thread(self._world.open)

    async def stop(self) -> None:
        """Close what `start` opened."""
        world, self._world = self._world, None
        if world is not None:
            await in_thread(world.close)

    async def run(self, task: DomainTask, agents: vf.Agents) -> None:
        """Let the agent and the user talk about `task` until the dialogue ends, and record what it is worth.

        A dialogue that the user cannot go on with fails the episode (verifiers may retry it). One that a limit of
        verifiers breaks off is scored as one without an answer.
        """
        world = self._world
        if world is None:
            raise UserError(f"{ID}: the environment is not open; run episodes inside `async with env.serving():`.")
        own = await in_thread(self.taskset.find, task.data)
        # The least number that is free: an episode that is repeated after a failure is the same attempt again.
        taken = self._attempts[own.id]
        attempt = next(number for number in itertools.count() if number not in taken)
        taken.add(attempt)
        trace: vf.Trace | None = None
        try:
            async with agents.agent.interaction(task) as interaction:
                trace = interaction.trace
                talk = world.begin(own, attempt=attempt)
                segment = await interaction.turn(talk.request)
                while not segment.terminated:
                    words = await in_thread(talk.say, spoken(segment))
                    if words is None:
                        break
                    segment = await interaction.turn(words)
                if not trace.errors:
                    dialogue = await in_thread(world.score, own, talk)
                    if dialogue.reward is None:
                        raise SimulatorError(f"task {own.id}: the dialogue is lost: {dialogue.error}")
                    record(trace, dialogue)
                    outcome = talk.outcome or BROKEN_OFF
                    trace.info["sweetrl"] = {"outcome": outcome, "attempt": attempt, **dialogue.extra}
        finally:
            if trace is None or not trace.ok:
                taken.discard(attempt)


def spoken(segment: vf.Segment) -> str:
    """Return what the agent said last with its blanks, which Segment.last_reply strips; empty where it said nothing."""
    if segment.root_reply is not None:
        return str(segment.root_reply)
    texts = (message.content for message in reversed(segment.messages) if isinstance(message, vf.AssistantMessage))
    return next(texts, None) or ""


def record(trace: vf.Trace, dialogue: Trajectory) -> None:
    """Write the score of `dialogue` onto its trace."""
    trace.record_reward("reward", dialogue.reward)
    trace.record_metric("success", dialogue.success)
    trace.record_metric("answered", dialogue.outcome == "answered")
    trace.record_metric("turns", sum(message.role == "assistant" for message in dialogue.messages))
    for name, value in dialogue.parts.items():
        trace.record_metric(f"reward/{name}", value)


# For Python


def load_environment(
    domain: str = "backend",
    *,
    params: str | Path | None = None,
    split: Split = "train",
    count: int | None = None,
    seed: int | None = None,
    seat: Mapping[str, Any] | vf.AgentConfig | None = None,
    **settings: Any,
) -> DomainEnv:
    """Return the environment of a domain: `backend`, `frontend`, or one by its path, `my_package.forms:Forms`.

    The other arguments are those of DomainTasksetConfig, `settings` sections of the settings, as in
    `agent={"max_turns": 6}`. `seat` says who plays the agent, as `--env.agent.` does on verifiers' command line:
    `{"harness": {"id": "null"}, "max_total_tokens": 8000}`. Raises UserError for what is wrong.
    """
    values = {"domain": domain, "params": params, "split": split, "count": count, "seed": seed}
    taskset = {"id": ID, **values, "settings": settings}
    try:
        config = DomainEnvConfig.model_validate({"taskset": taskset} | ({} if seat is None else {"agent": seat}))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"] if part != "taskset")
        message = first["msg"].removeprefix("Value error, ").removesuffix(".")
        raise UserError(f"load_environment: `{where}`: {message}." if where else f"{message}.") from error
    return DomainEnv(config)
