"""What the adapters share: a domain that opens with its first dialogue, and its tasks by their places.

world = World(sweetrl.domain("backend"))
task = world.task(3, "test", count=20, seed=7)
talk = world.begin(task, seed=7)
...
world.score(task, talk).reward
world.close()
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweetrl.api.rollouts import domain as make_domain
from sweetrl.api.rollouts import opened
from sweetrl.colbench.files import read_tasks
from sweetrl.errors import UserError
from sweetrl.rollout.scored import with_score
from sweetrl.types import Split, Task, Trajectory

if TYPE_CHECKING:
    from sweetrl.colbench.domain import Domain
    from sweetrl.rollout.context import Conversation, OpenEnvironment

SPLITS: tuple[Split, ...] = ("train", "test")


def domain_named(where: str, domain: Domain | str, params: str | Path | None, settings: Mapping[str, Any]) -> Domain:
    """Return `domain`, or the one of this name with `settings` by section over those of the file `params`.

    UserError for settings that are no sections, and for those of a domain that is made already.
    """
    if isinstance(domain, str):
        if unknown := {"name", "params"} & settings.keys():
            raise UserError(f"settings: there is no section `{min(unknown)}`; docs/parameters.md lists them.")
        return make_domain(domain, params, **settings)
    if params is not None or settings:
        named = "params" if params is not None else min(settings)
        raise UserError(f"{where}: `{named}` goes into sweetrl.domain(...) where the domain is made.")
    return domain


class World:
    """A domain, opened once for all of its dialogues, which may be in several threads.

    It opens with the first dialogue and closes with `close`, or when nobody has it any more (at the latest with the
    process): most libraries have no place where an environment could be closed.
    """

    def __init__(self, domain: Domain) -> None:
        self.domain = domain
        self._stack = ExitStack()
        self._lock = threading.Lock()
        self._scoring: AbstractContextManager[Any] = threading.Lock()
        self._open: OpenEnvironment | None = None
        self._making = threading.Lock()
        self._tasks: dict[tuple[Split, int, int], list[Task]] = {}
        self._end = weakref.finalize(self, self._stack.close)

    def tasks(self, split: str, count: int | None = None, seed: int | None = None) -> list[Task]:
        """Return the domain's tasks of `split`: those of its generator, or of its files if the settings say so.

        Without `count` there are as many as `tasks.train` or `tasks.test` says, without `seed` it is the settings'.
        Test tasks are those behind the first `tasks.test_first`. They are made once, which may take seconds. UserError
        where there are none.
        """
        if split not in SPLITS:
            raise UserError(f"split: `{split}` is not known; take {' or '.join(SPLITS)}.")
        settings = self.domain.settings
        if count is None:
            count = settings.tasks.test if split == "test" else settings.tasks.train
        if count < 1:
            raise UserError(f"count: {count} tasks are none; give at least 1.")
        key = (split, count, settings.seed if seed is None else seed)
        with self._making:
            if key not in self._tasks:
                self._tasks[key] = self._made(*key)
            return self._tasks[key]

    def task(self, place: int, split: str, count: int | None = None, seed: int | None = None) -> Task:
        """Return the task at `place` (from 0) of `tasks`; UserError where there is none."""
        tasks = self.tasks(split, count, seed)
        if type(place) is not int or not 0 <= place < len(tasks):
            raise UserError(
                f"{self.domain.name}: there is no {split} task {place}; there are {len(tasks)}, counted from 0."
            )
        return tasks[place]

    def same_task(self, name: str, request: str, place: int, split: str, count: int | None, seed: int | None) -> Task:
        """Return the task at `place`; UserError where it is not the one called `name` with this `request`."""
        task = self.task(place, split, count, seed)
        if (task.id, task.problem_description) != (name, request):
            raise UserError(
                f"task {name}: there is another one at place {place}; take the same domain, settings, split, count and "
                "seed as where the task is from."
            )
        return task

    def _made(self, split: Split, count: int, seed: int) -> list[Task]:
        options = self.domain.settings.tasks
        first = options.test_first if split == "test" else 0
        if options.source == "files":
            name = options.test_file if split == "test" else options.train_file
            if not name:
                raise UserError(
                    f"`tasks.{split}_file` is empty; name an official task file, or set `tasks.source: synthetic`."
                )
            tasks = list(islice(read_tasks(Path(name), self.domain), first, first + count))
        else:
            made = self.domain.tasks(split, first + count, seed, options.difficulty)
            tasks = [self.domain.own(task) for task in islice(made, first, first + count)]
        if not tasks:
            raise UserError(f"{self.domain.name}: there are no {split} tasks; take another split or file.")
        return tasks

    def open(self) -> OpenEnvironment:
        """Open the domain now, not with the first dialogue; UserError once it is closed."""
        with self._lock:
            if not self._end.alive:
                raise UserError(f"{self.domain.name}: this environment is closed; make a new one.")
            if self._open is None:
                self._open = self._stack.enter_context(opened(self.domain))
                if getattr(self._open.scorer, "thread_safe", False):
                    self._scoring = nullcontext()
            return self._open

    def begin(self, task: Task, seed: int | None = None, attempt: int = 0, agent: str = "") -> Conversation:
        """Begin a dialogue about `task` with `agent`; `seed` (by default the settings') is the user's."""
        return self.open().begin(task, self.domain.settings.seed if seed is None else seed, attempt, agent)

    def score(self, task: Task, talk: Conversation) -> Trajectory:
        """Return the dialogue with its reward (None where it was lost); one that goes on counts as one without answer.

        Raises UserError where the reward does not work.
        """
        assert self._open is not None  # there is a dialogue
        with self._scoring:
            if talk.done:
                return talk.score()
            unanswered = Trajectory(task, 0, talk.messages, outcome="max_turns_reached")
            return with_score(unanswered, self._open.scorer.score([unanswered])[0])

    def close(self) -> None:
        """Close what the first dialogue has opened. May be called twice; no dialogue begins afterwards."""
        with self._lock:
            self._end()
            self._open = None
