"""A domain as an environment of the library verifiers (`verifiers.v1`): its model is the agent, the user the domain's.

    from sweetrl.interop.verifiers import load_environment

    env = load_environment("backend", split="test", count=20, seed=7, agent={"max_turns": 6})
    async with env.serving():
        episodes = [await env.run_slot(slot, context) for task in env.taskset for slot in env.slots(task, 4)]

With verifiers' own command line, and whatever else takes the id of a taskset (package sweetrl_verifiers):

    vf-eval sweetrl-verifiers --env.taskset.domain backend --env.taskset.split test -n 20 -r 4

What a task hides (reference, tests, hidden information) never leaves this process: verifiers carries the request and
the task's place, by which the environment looks it up again.
"""

from __future__ import annotations

import heapq
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field, ValidationError, model_validator

from sweetrl.api.domains import domain as make_domain
from sweetrl.api.rollouts import opened
from sweetrl.colbench.files import read_tasks
from sweetrl.engines.background import in_thread
from sweetrl.errors import SimulatorError, UserError, missing_extra
from sweetrl.rollout.scored import with_score
from sweetrl.types import Split, Task, Trajectory

try:
    import verifiers.v1 as vf
except ImportError as error:
    if missing := missing_extra(error):
        raise missing from error
    raise

if TYPE_CHECKING:
    from sweetrl.colbench.domain import Domain
    from sweetrl.protocols import Scorer
    from sweetrl.rollout.conversation import Conversation
    from sweetrl.rollout.environment import OpenEnvironment

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
    """How many; without it all of `file`, or as many as `tasks.train` or `tasks.test` says."""
    seed: int | None = None
    """The seed of the tasks and of the user; without it that of the settings."""
    difficulty: int | None = None
    """Synthetic suites: as `tasks.difficulty`."""
    file: Path | None = None
    """An official task file, whose tasks are taken instead of the domain's own."""

    @model_validator(mode="after")
    def _check(self) -> DomainTasksetConfig:
        try:
            open_config(self)
        except UserError as error:  # pydantic and the command line make a message of a ValueError
            raise ValueError(str(error)) from error
        return self


class DomainData(vf.TaskData):
    """What verifiers carries of a task, and what the agent's program may see: nothing that the user must not tell.

    `idx` is the task's place among those of `split`, `seed` and `difficulty`, or in `file`.
    """

    request: str
    domain: str
    split: Split | None
    seed: int
    difficulty: int | None
    file: str | None


class DomainTask(vf.Task[DomainData]):
    """A task of the domain. It has no prompt: the user opens the dialogue, and no environment without one can run it."""


class DomainTaskset(vf.Taskset[DomainTask, DomainTasksetConfig]):
    """The tasks of a domain, made or read as they are asked for."""

    def __init__(self, config: DomainTasksetConfig) -> None:
        super().__init__(config)
        self.domain = open_config(config)
        self._tasks = _Tasks(config, self.domain)  # shared with the views that verifiers makes (shallow copies)

    def load(self) -> Iterator[DomainTask]:
        """Yield the tasks."""
        config, settings = self.config, self.domain.settings
        system = self.domain.system_prompt(settings.agent.prompt)
        own = config.file is None
        place = -1
        while (task := self._tasks.at(place := place + 1)) is not None:
            data = DomainData(
                idx=place,
                id=task.id,
                name=task.id,
                system_prompt=system,
                request=task.problem_description,
                domain=self.domain.spec,
                split=config.split if own else None,
                seed=settings.seed,
                difficulty=settings.tasks.difficulty if own else None,
                file=None if own else str(config.file),
            )
            yield DomainTask(data, config.task)

    def find(self, data: DomainData) -> Task:
        """Return the domain's task that `data` is about; UserError where this taskset has another one in its place."""
        found = None if data.idx is None else self._tasks.at(data.idx)
        if found is None or (found.id, found.problem_description) != (data.id, data.request):
            raise UserError(
                f"task {data.id}: these tasks have another one at place {data.idx}; give the environment the same "
                "domain, settings, split, count and seed (or file) as the taskset that the task is from."
            )
        return found


class _Tasks:
    """The tasks of a config, each made once, when it is first asked for; for several threads."""

    def __init__(self, config: DomainTasksetConfig, domain: Domain) -> None:
        self._begin = lambda: tasks_of(config, domain)
        self._lock = threading.Lock()
        self._known: list[Task] = []
        self._rest = self._begin()

    def at(self, place: int) -> Task | None:
        """Return the task at `place` (from 0), None behind the last one."""
        with self._lock:
            while len(self._known) <= place:
                try:
                    task = next(self._rest, None)
                except BaseException:
                    # A generator that has raised seems to be at its end: the next call shall say the same again.
                    self._known, self._rest = [], self._begin()
                    raise
                if task is None:
                    return None
                self._known.append(task)
            return self._known[place]


def open_config(config: DomainTasksetConfig) -> Domain:
    """Return the domain that a config names, with its settings; UserError for what is wrong there."""
    changes = dict(config.settings)
    if unknown := {"name", "params"} & changes.keys():
        raise UserError(f"{ID}: unknown parameter `{min(unknown)}`; docs/parameters.md lists the known ones.")
    if config.seed is not None:
        changes["seed"] = config.seed
    if config.difficulty is not None and isinstance(changes.setdefault("tasks", {}), dict):
        changes["tasks"] = {**changes["tasks"], "difficulty": config.difficulty}
    found = make_domain(config.domain, config.params, **changes)
    if config.file is not None and not config.file.is_file():
        raise UserError(f"{config.file}: there is no such task file; fix `file`.")
    if config.file is None and found.settings.tasks.source == "files":
        raise UserError(f"{ID}: the settings take tasks from files (`tasks.source`); name the one to take in `file`.")
    return found


def tasks_of(config: DomainTasksetConfig, domain: Domain) -> Iterator[Task]:
    """Yield the tasks that a config names, in order; UserError for a file that is wrong, or without a single task."""
    wanted = domain.settings.tasks
    if config.file is not None:
        made = read_tasks(config.file, domain)
        count = config.count
    else:
        count = config.count or (wanted.test if config.split == "test" else wanted.train)
        made = domain.tasks(config.split, count, domain.settings.seed, wanted.difficulty)
    found = False
    for task in islice(made, count):
        found = True
        yield domain.own(task)
    if not found:
        raise UserError(f"{domain.name}: there are no tasks to attempt; take another split or file.")


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
        self._world: OpenEnvironment | None = None
        self._stack = ExitStack()
        self._scoring: AbstractContextManager[Any] = nullcontext()
        self._attempts = _Attempts()

    async def start(self) -> None:
        """Open the domain: the user, and what scores answers (a sandbox, a browser)."""
        self._world = await in_thread(self._stack.enter_context, opened(self.taskset.domain))
        self._scoring = _lock_for(self._world.scorer)
        self._attempts = _Attempts()

    async def stop(self) -> None:
        """Close what `start` opened."""
        self._world = None
        await in_thread(self._stack.close)

    async def run(self, task: DomainTask, agents: vf.Agents) -> None:
        """Let the agent and the user talk about `task` until the dialogue ends, and record what it is worth.

        A dialogue that the user cannot go on with fails the episode (verifiers may retry it). One that a limit of
        verifiers breaks off is scored as one without an answer.
        """
        if self._world is None:
            raise UserError(f"{ID}: the environment is not open; run episodes inside `async with env.serving():`.")
        known = await in_thread(self.taskset.find, task.data)
        attempt = self._attempts.take(known.id)
        trace: vf.Trace | None = None
        try:
            async with agents.agent.interaction(task) as interaction:
                trace = interaction.trace
                talk = self._world.begin(known, self.taskset.domain.settings.seed, attempt)
                segment = await interaction.turn(talk.request)
                while not segment.terminated:
                    words = await in_thread(talk.say, spoken(segment))
                    if words is None:
                        break
                    segment = await interaction.turn(words)
                if not trace.errors:
                    record(trace, await in_thread(self._score, talk, known, attempt), talk.outcome or BROKEN_OFF)
        finally:
            if trace is None or not trace.ok:
                self._attempts.give_back(known.id, attempt)

    def _score(self, talk: Conversation, task: Task, attempt: int) -> Trajectory:
        """Return the scored dialogue; SimulatorError where the user could not go on with it."""
        assert self._world is not None
        with self._scoring:
            if not talk.done:
                unanswered = Trajectory(task, attempt, talk.messages, outcome="max_turns_reached")
                return with_score(unanswered, self._world.scorer.score([unanswered])[0])
            found = talk.score()
        if found.reward is None:
            raise SimulatorError(f"task {task.id}: the dialogue is lost: {found.error}")
        return found


def spoken(segment: vf.Segment) -> str:
    """Return what the agent said last with its blanks, which Segment.last_reply strips; empty where it said nothing."""
    if segment.root_reply is not None:
        return str(segment.root_reply)
    said = (one.content for one in reversed(segment.messages) if isinstance(one, vf.AssistantMessage))
    return next(said, None) or ""


def record(trace: vf.Trace, dialogue: Trajectory, outcome: str) -> None:
    """Write the score of `dialogue` onto its trace."""
    assert dialogue.reward is not None
    trace.record_reward("reward", dialogue.reward)
    trace.record_metric("success", dialogue.success)
    trace.record_metric("answered", outcome == "answered")
    trace.record_metric("turns", sum(message.role == "assistant" for message in dialogue.messages))
    for name, value in dialogue.parts.items():
        trace.record_metric(f"reward/{name}", value)
    trace.info["sweetrl"] = {"outcome": outcome, "attempt": dialogue.attempt, **dialogue.extra}


class _Attempts:
    """Numbers of attempts: the least that no other episode of the task has, so a repeated one gets its own again."""

    def __init__(self) -> None:
        self._next: Counter[str] = Counter()
        self._free: dict[str, list[int]] = defaultdict(list)

    def take(self, task: str) -> int:
        """Return the number of an attempt at `task` that begins."""
        if self._free[task]:
            return heapq.heappop(self._free[task])
        self._next[task] += 1
        return self._next[task] - 1

    def give_back(self, task: str, number: int) -> None:
        """Let another episode have the number of one that has failed."""
        heapq.heappush(self._free[task], number)


def _lock_for(scorer: Scorer) -> AbstractContextManager[Any]:
    """Return what keeps `scorer` to one thread at a time; nothing for the one that may be shared.

    CodeScorer says that it may (its sandbox has a thread and a lock of its own), and its programs take their time. A
    reward of somebody's own, or a picture model's cache (ClipReward), promises nothing about threads.
    """
    from sweetrl.domains.backend.rewards import CodeScorer

    return nullcontext() if isinstance(scorer, CodeScorer) else threading.Lock()


# For Python


def load_environment(
    domain: str = "backend",
    *,
    params: str | Path | None = None,
    split: Split = "train",
    count: int | None = None,
    seed: int | None = None,
    difficulty: int | None = None,
    file: str | Path | None = None,
    seat: Mapping[str, Any] | vf.AgentConfig | None = None,
    **settings: Any,
) -> DomainEnv:
    """Return the environment of a domain: `backend`, `frontend`, or one by its path, `my_package.forms:Forms`.

    The other arguments are those of DomainTasksetConfig, `settings` sections of the settings, as in
    `agent={"max_turns": 6}`. `seat` says who plays the agent, as `--env.agent.` does on verifiers' command line:
    `{"harness": {"id": "null"}, "max_total_tokens": 8000}`. Raises UserError for what is wrong.
    """
    values = {"domain": domain, "params": params, "split": split, "count": count, "seed": seed, "file": file}
    taskset = {"id": ID, **values, "difficulty": difficulty, "settings": settings}
    try:
        config = DomainEnvConfig.model_validate({"taskset": taskset} | ({} if seat is None else {"agent": seat}))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"] if part != "taskset")
        message = first["msg"].removeprefix("Value error, ").removesuffix(".")
        raise UserError(f"load_environment: `{where}`: {message}." if where else f"{message}.") from error
    return DomainEnv(config)
