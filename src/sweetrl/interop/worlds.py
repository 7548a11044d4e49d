"""What the adapters share: a domain that opens with its first dialogue, and its tasks by their places.

world = World(sweetrl.domain("backend"))
task = world.tasks("test", count=20, seed=7).at(3)
talk = world.begin(task, seed=7)
...
world.score(task, talk).reward
world.close()
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator, Mapping
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
    from sweetrl.protocols import Scorer
    from sweetrl.rollout.context import Conversation, OpenEnvironment

SPLITS: tuple[Split, ...] = ("train", "test")


def domain_with(name: str, params: str | Path | None, settings: Mapping[str, Any]) -> Domain:
    """Return the domain `name` with `settings` by section over those of the file `params`; UserError for other keys."""
    if unknown := {"name", "params"} & settings.keys():
        raise UserError(f"settings: there is no section `{min(unknown)}`; docs/parameters.md lists them.")
    return make_domain(name, params, **settings)


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
        self._lists: dict[tuple[Split, int, int], TaskList] = {}
        self._end = weakref.finalize(self, self._stack.close)

    def tasks(self, split: str, count: int | None = None, seed: int | None = None) -> TaskList:
        """Return the domain's tasks of `split`: those of its generator, or of its files if the settings say so.

        Without `count` there are as many as `tasks.train` or `tasks.test` says, without `seed` it is the settings'.
        """
        if split not in SPLITS:
            raise UserError(f"split: `{split}` is not known; take {' or '.join(SPLITS)}.")
        settings = self.domain.settings
        if count is None:
            count = settings.tasks.test if split == "test" else settings.tasks.train
        if count < 1:
            raise UserError(f"count: {count} tasks are none; give at least 1.")
        key = (split, count, settings.seed if seed is None else seed)
        with self._lock:
            return self._lists.setdefault(key, TaskList(self.domain, *key))

    def open(self) -> OpenEnvironment:
        """Open the domain now, not with the first dialogue; UserError once it is closed."""
        with self._lock:
            if not self._end.alive:
                raise UserError(f"{self.domain.name}: this environment is closed; make a new one.")
            if self._open is None:
                self._open = self._stack.enter_context(opened(self.domain))
                self._scoring = _lock_for(self._open.scorer)
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


def _lock_for(scorer: Scorer) -> AbstractContextManager[Any]:
    """Return what keeps `scorer` to one thread at a time, if it does not say that it may be shared."""
    return nullcontext() if getattr(scorer, "thread_safe", False) else threading.Lock()


class TaskList:
    """Tasks by their places from 0, each made when it is first asked for. Thread-safe."""

    def __init__(self, domain: Domain, split: Split, count: int, seed: int) -> None:
        self.domain, self.split, self.count, self.seed = domain, split, count, seed
        self._lock = threading.Lock()
        self._known: list[Task] = []
        self._rest: Iterator[Task] | None = None

    def at(self, place: int) -> Task:
        """Return the task at `place`; a UserError where there is none."""
        if not isinstance(place, int) or isinstance(place, bool) or place < 0 or not self._reaches(place):
            raise UserError(
                f"{self.domain.name}: there is no {self.split} task {place}; there are {len(self)}, counted from 0."
            )
        return self._known[place]

    def first(self, count: int) -> list[Task]:
        """Return the first `count` tasks, or all if there are fewer; a UserError where there is none at all."""
        self._reaches(count - 1)
        if not self._known:
            raise UserError(f"{self.domain.name}: there are no {self.split} tasks; take another split or file.")
        return self._known[:count]

    def __iter__(self) -> Iterator[Task]:
        """Yield the tasks, each made when it is asked for; a UserError where there is none at all."""
        yield from self.first(1)
        place = 1
        while self._reaches(place):
            yield self._known[place]
            place += 1

    def __len__(self) -> int:
        """How many there are; makes all of them."""
        self._reaches(self.count)
        return len(self._known)

    def _reaches(self, place: int) -> bool:
        """Whether there is a task at `place`; makes those up to it."""
        with self._lock:
            if self._rest is None:
                self._known, self._rest = [], self._made()
            try:
                self._known += islice(self._rest, max(0, min(place, self.count) + 1 - len(self._known)))
            except BaseException:
                self._rest = None  # a generator that has raised seems to be at its end: say the same the next time
                raise
            return place < len(self._known)

    def _made(self) -> Iterator[Task]:
        options = self.domain.settings.tasks
        if options.source == "files":
            key, name = f"tasks.{self.split}_file", options.test_file if self.split == "test" else options.train_file
            if not name:
                raise UserError(f"`{key}` is empty; name an official task file, or set `tasks.source: synthetic`.")
            return islice(read_tasks(Path(name), self.domain), self.count)
        made = self.domain.tasks(self.split, self.count, self.seed, options.difficulty)
        return (self.domain.own(task) for task in islice(made, self.count))
