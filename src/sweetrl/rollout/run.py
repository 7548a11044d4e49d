"""Rollouts: the agent attempts tasks, in shards. A shard is the unit of determinism, and the most a kill costs.

Dialogues that advance each on its own end in any order: journals keep them until their shard is complete.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from pydantic import TypeAdapter

from sweetrl.colbench.store import TrajectoryStore
from sweetrl.errors import UserError
from sweetrl.io import append_row, read_rows
from sweetrl.protocols import AsyncEngine
from sweetrl.rollout.context import RolloutContext
from sweetrl.rollout.dialogue import Dialogue
from sweetrl.rollout.driver import advance_each, advance_together
from sweetrl.rollout.ledger import DialogueCost, Ledger
from sweetrl.rollout.scored import Losses, scored
from sweetrl.types import Completion, Task, Trajectory

JOURNAL = ".journal"
TRAJECTORY = TypeAdapter(Trajectory)
Attempts = Sequence[tuple[Task, int]]
Spent = Callable[[Sequence[DialogueCost]], None]


def batch_of(tasks: Sequence[Task], first: int, count: int) -> list[Task]:
    """Return `count` tasks from number `first` on (at most all), going on at the beginning behind the last one."""
    return [tasks[(first + offset) % len(tasks)] for offset in range(min(count, len(tasks)))]


def rollout(
    attempts: Attempts,
    context: RolloutContext,
    *,
    seed: int = 0,
    policy_name: str = "",
    batch: int = 128,
    progress: Callable[[int], None] = lambda finished: None,
    spent: Spent | None = None,
) -> list[Trajectory]:
    """Let the agent attempt each (task, attempt number); return the dialogues in order, not yet scored.

    Deterministic: equal arguments give equal trajectories. The agent's context holds its replies as the ids it sampled;
    the user's words are appended to them. A dialogue that outgrows the model's context, or whose user cannot reply,
    comes back with outcome "lost" and the cause in `error`. As dialogues end, `progress` is
    called with how many, `spent` with what they have cost. `batch` dialogues advance together.
    """
    engine = context.engine
    if isinstance(engine, AsyncEngine) or context.chat is None:
        raise ValueError("dialogues that advance together need a batch engine and a chat format")
    trajectories: list[Trajectory] = []
    for start in range(0, len(attempts), batch):
        dialogues = [context.open(task, attempt, seed) for task, attempt in attempts[start : start + batch]]
        session, sampling = engine.session(), context.sampling()

        def speak(active: Sequence[Dialogue], session=session, sampling=sampling) -> list[Completion]:
            return [reply for (reply,) in session.sample([dialogue.prompt() for dialogue in active], sampling)]

        def ended(over: Sequence[Dialogue]) -> None:
            if spent is not None:
                devices = engine.usage().devices
                spent([dialogue.cost(policy_name, devices) for dialogue in over])
            progress(len(over))

        advance_together(dialogues, speak, context.simulator, ended)
        trajectories.extend(dialogue.close(policy_name) for dialogue in dialogues)
    return trajectories


def rollout_scored(
    attempts: Attempts,
    context: RolloutContext,
    store: TrajectoryStore,
    *,
    seed: int,
    policy_name: str,
    batch: int,
    shard: int,
    progress: Callable[[int], None] | None = None,
    lost_share: float = 1.0,
    ledger: Ledger | None = None,
    mine: Callable[[int], bool] | None = None,
) -> TrajectoryStore:
    """Let the agent attempt each (task, attempt number), score the answers, and write `store` shard by shard.

    Shard i holds the attempts [i * shard, (i + 1) * shard) in order. Shards that are there already are left alone, so
    a killed run goes on where it was and ends with the same bytes; the caller gives every set of arguments a folder of
    its own. `progress` is called with how many have ended. `batch` dialogues are under way at a time: together, turn by
    turn, with a batch engine; each on its own with an AsyncEngine, of which every finished dialogue is kept at once.

    Raises UserError as soon as more than `lost_share` of the dialogues are lost, those of earlier runs included. What
    is finished stays; running again attempts the lost ones again (with a batch engine: their whole shards).
    `ledger` takes what each dialogue has cost, as it ends.
    With `mine` only the shards for which it is true are made (others make the rest, in the same folder).
    """
    own = [index for index in range(-(-len(attempts) // shard)) if mine is None or mine(index)]
    progress = progress or (lambda finished: None)
    parts = {index: attempts[index * shard : (index + 1) * shard] for index in own}
    losses = Losses(sum(map(len, parts.values())), lost_share)
    losses.causes.update(cause for index in store.shards() if index in parts for cause in store.lost(index))
    if losses.too_many:
        _take_again(store, own)
        losses.causes.clear()
    present, journal = store.shards(), Journal(store.folder / JOURNAL)
    missing = {index: part for index, part in parts.items() if index not in present}
    progress(sum(len(part) for index, part in parts.items() if index in present))
    how: dict[str, Any] = {
        "seed": seed,
        "policy_name": policy_name,
        "batch": 1 if getattr(context.simulator, "serial", False) else batch,
        "progress": progress,
        "spent": None if ledger is None else ledger.add,
    }
    with store.growing(len(attempts), alone=mine is None):
        try:
            if isinstance(context.engine, AsyncEngine):
                _shards_of_each(missing, context, store, journal, losses, **how)
            else:
                for index, part in missing.items():
                    trajectories = rollout(part, context, **how)
                    losses.add(trajectories)
                    store.write_shard(index, scored(trajectories, context.scorer))
        finally:
            if losses.too_many:
                _take_again(store, own)
    for index in own:
        journal.drop(index)
    if mine is None:  # else others may write into it
        journal.close()
    return store


def _take_again(store: TrajectoryStore, own: Sequence[int]) -> None:
    """Remove the shards that hold lost dialogues, so that they are made again.

    A batch engine makes the others in a shard again, too: a dialogue's log-probabilities depend in their last bits on
    the dialogues beside it. Of an AsyncEngine the journals hold those that were not lost.
    """
    for index, path in store.shards().items():
        if index in own and store.lost(index):
            path.unlink()


def _shards_of_each(
    missing: Mapping[int, Attempts],
    context: RolloutContext,
    store: TrajectoryStore,
    journal: Journal,
    losses: Losses,
    *,
    seed: int,
    policy_name: str,
    batch: int,
    progress: Callable[[int], None],
    spent: Spent | None,
) -> None:
    """Make the shards `missing`, with `batch` dialogues under way; those that journals hold are not made again.

    A shard that is complete is scored and written beside the dialogues that go on. Its bytes do not depend on the order
    in which dialogues ended, nor on how often the run was killed.
    """
    members = {index: journal.read(index, part) for index, part in missing.items()}
    progress(sum(map(len, members.values())))
    left = [(index, at) for index, part in missing.items() for at in range(len(part)) if at not in members[index]]
    engine = cast(AsyncEngine, context.engine)
    opened: dict[int, tuple[int, int]] = {}  # shard and place in it of each dialogue that is under way
    writing: list[Future[None]] = []

    def begun() -> Iterator[Dialogue]:
        for index, at in left:
            dialogue = context.open(*missing[index][at], seed)
            opened[id(dialogue)] = index, at
            yield dialogue

    def ended(dialogue: Dialogue) -> None:
        """Keep one dialogue; UserError when too many are lost or something could not be written."""
        if spent is not None:
            spent([dialogue.cost(policy_name, engine.usage().devices)])
        (index, at), trajectory = opened.pop(id(dialogue)), dialogue.close(policy_name)
        if trajectory.outcome != "lost":  # a lost one gets another chance in the next run
            journal.add(index, at, trajectory)
        progress(1)
        members[index][at] = trajectory
        losses.add([trajectory])
        write_if_complete(index)
        for write in [future for future in writing if future.done()]:
            writing.remove(write)
            write.result()

    def write_if_complete(index: int) -> None:
        if len(members[index]) == len(missing[index]):
            writing.append(writer.submit(write, index, members.pop(index)))

    def write(index: int, trajectories: dict[int, Trajectory]) -> None:
        store.write_shard(index, scored([trajectories[at] for at in sorted(trajectories)], context.scorer))
        if all(trajectory.outcome != "lost" for trajectory in trajectories.values()):  # else they may be taken again
            journal.drop(index)

    writer = ThreadPoolExecutor(1, "sweetrl-shards")
    try:
        for index in missing:
            write_if_complete(index)
        if left:
            workers = min(batch, len(left))
            advance_each(begun(), engine, context.simulator, context.sampling(), ended, workers)
        for future in writing:
            future.result()
    finally:
        writer.shutdown(wait=True, cancel_futures=True)


class Journal:
    """The journals of unfinished shards, in `folder`, a file each.

    One line for each finished dialogue, appended as it ends and handed to the operating system at once: a killed
    process (kill -9) loses none. A line that was being written then is cut off when the journal is read.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)

    def add(self, shard: int, at: int, trajectory: Trajectory) -> None:
        """Append the finished dialogue of a shard's attempt number `at`; UserError where the disk is full."""
        row = TRAJECTORY.dump_python(replace(trajectory, task=Task("", "", "")), exclude={"task"})
        append_row(self._path(shard), {"at": at, "task": trajectory.task.id, "trajectory": row})

    def read(self, shard: int, attempts: Attempts) -> dict[int, Trajectory]:
        """Return the finished dialogues of a shard by place in its `attempts`; what is broken at the end is cut off."""
        path = self._path(shard)
        finished: dict[int, Trajectory] = {}

        def take(row: dict[str, Any]) -> None:
            task, attempt = attempts[int(row["at"])]
            if (row["task"], row["trajectory"]["attempt"]) != (task.id, attempt):
                raise UserError(
                    f"{path}: its dialogues belong to other tasks or attempts; remove the folder {self.folder} "
                    "and run again."
                )
            finished[int(row["at"])] = TRAJECTORY.validate_python({**row["trajectory"], "task": task})

        read_rows(path, take)
        return finished

    def drop(self, shard: int) -> None:
        """Remove the journal of a shard that is written."""
        self._path(shard).unlink(missing_ok=True)

    def close(self) -> None:
        """Remove the folder if nothing is left in it."""
        if self.folder.is_dir() and not any(self.folder.iterdir()):
            self.folder.rmdir()

    def _path(self, shard: int) -> Path:
        return self.folder / f"{shard:05d}.jsonl"
