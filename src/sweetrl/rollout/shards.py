"""From dialogues that end in any order to shards in a fixed one: journals, scoring, and a new start after a kill."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import cast

from sweetrl.colbench.store import TrajectoryStore
from sweetrl.protocols import AsyncEngine
from sweetrl.rollout.context import RolloutContext
from sweetrl.rollout.dialogue import Dialogue
from sweetrl.rollout.driver import advance_each
from sweetrl.rollout.journal import Journal
from sweetrl.rollout.ledger import Ledger
from sweetrl.rollout.scored import Losses, scored
from sweetrl.types import Task, Trajectory

JOURNAL = ".journal"


def concurrent_shards(
    attempts: Sequence[tuple[Task, int]],
    context: RolloutContext,
    store: TrajectoryStore,
    losses: Losses,
    seed: int,
    policy_name: str,
    dialogues: int,
    shard: int,
    progress: Callable[[int], None] | None,
    ledger: Ledger | None = None,
    mine: Callable[[int], bool] | None = None,
) -> None:
    """Attempt what neither a shard nor a journal holds, with `dialogues` under way; write each shard when it is whole.

    A shard is scored and written beside the dialogues that go on. Its bytes do not depend on the order in which
    dialogues ended, nor on how often the run was killed. With `mine` only the shards that it says yes to are made.
    """
    work = _Shards(attempts, context, store, losses, shard, progress, mine)
    try:
        open_ones = work.resume()
        if open_ones:
            engine = cast(AsyncEngine, context.engine)
            positions: dict[int, int] = {}

            def opened() -> Iterator[Dialogue]:
                for position, task, attempt in open_ones:
                    dialogue = context.open(task, attempt, seed)
                    positions[id(dialogue)] = position
                    yield dialogue

            def ended(dialogue: Dialogue) -> None:
                if ledger is not None:
                    ledger.add([dialogue.cost(policy_name, engine.usage().devices)])
                work.finished(positions.pop(id(dialogue)), dialogue.close(policy_name))

            advance_each(
                opened(),
                engine,
                context.simulator,
                context.sampling(),
                ended,
                min(dialogues, len(open_ones)),
            )
        work.wait()
    finally:
        work.close()
    if losses.too_many:
        raise losses.error()


class _Shards:
    """The state of a run: which dialogues each unfinished shard has, and the shards that are being written."""

    def __init__(
        self,
        attempts: Sequence[tuple[Task, int]],
        context: RolloutContext,
        store: TrajectoryStore,
        losses: Losses,
        shard: int,
        progress: Callable[[int], None] | None,
        mine: Callable[[int], bool] | None = None,
    ) -> None:
        self.mine = mine or (lambda index: True)
        self.whole = mine is None
        self.attempts, self.context, self.store, self.losses, self.shard = attempts, context, store, losses, shard
        self.progress = progress or (lambda more: None)
        self.journal = Journal(store.folder / JOURNAL, shard)
        self.members: dict[int, dict[int, Trajectory]] = {}
        self.writer = ThreadPoolExecutor(1, "sweetrl-shards")
        self.writing: list[Future[None]] = []

    def size(self, index: int) -> int:
        """How many dialogues shard `index` has when it is whole."""
        return min(self.shard, len(self.attempts) - index * self.shard)

    def resume(self) -> list[tuple[int, Task, int]]:
        """Take over what earlier runs finished; return what is left, in order."""
        self._reopen()
        present = self.store.shards()
        left: list[tuple[int, Task, int]] = []
        for index in filter(self.mine, range(-(-len(self.attempts) // self.shard))):
            if index in present:
                self.journal.drop(index)
                self.progress(self.size(index))
                continue
            found = self.journal.read(index, self.attempts)
            self.members[index] = found
            self.progress(len(found))
            start = index * self.shard
            positions = range(start, start + self.size(index))
            left += [(at, *self.attempts[at]) for at in positions if at not in found]
            self._complete(index)
        return left

    def finished(self, position: int, trajectory: Trajectory) -> None:
        """Keep one dialogue that has ended; UserError when too many are lost or something could not be written."""
        if trajectory.outcome != "lost":  # a lost one gets another chance in the next run
            self.journal.add(position, trajectory)
        self.progress(1)
        index = position // self.shard
        self.members[index][position] = trajectory
        self.losses.add([trajectory])
        self._complete(index)
        for done in [one for one in self.writing if one.done()]:
            self.writing.remove(done)
            done.result()

    def wait(self) -> None:
        """Return when everything is written; raises what went wrong with it."""
        for one in self.writing:
            one.result()
        self.writing = []

    def close(self) -> None:
        """Let the running write end; after too many losses, open the shards that hold lost dialogues again."""
        self.writer.shutdown(wait=True, cancel_futures=True)
        if self.losses.too_many:
            self._reopen_all()
        if self.whole:  # else the folder is others', too
            self.journal.close()

    def _complete(self, index: int) -> None:
        if len(self.members[index]) == self.size(index):
            members = self.members.pop(index)
            self.writing.append(self.writer.submit(self._write, index, members))

    def _write(self, index: int, members: dict[int, Trajectory]) -> None:
        self.store.write_shard(index, scored([members[at] for at in sorted(members)], self.context.scorer))
        self.journal.drop(index)

    def _reopen(self) -> None:
        """Count what earlier runs lost; too much of it, and their shards are opened again."""
        for one in self._lost_shards().values():
            self.losses.causes.update(each.error for each in one if each.outcome == "lost")
        if self.losses.too_many:
            self._reopen_all()
            self.losses.causes.clear()

    def _lost_shards(self) -> dict[int, list[Trajectory]]:
        read = ((index, self.store.read_shard(index)) for index in self.store.shards() if self.mine(index))
        return {index: some for index, some in read if any(one.outcome == "lost" for one in some)}

    def _reopen_all(self) -> None:
        """Turn shards that hold lost dialogues back into journals of the others."""
        for index, some in self._lost_shards().items():
            start = index * self.shard
            self.journal.write(index, {start + at: one for at, one in enumerate(some) if one.outcome != "lost"})
            (self.store.shards()[index]).unlink()
