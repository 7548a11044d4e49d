"""From dialogues that end in any order to shards in a fixed one: journals, scoring, and a new start after a kill."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

from sweetrl.colbench.store import TrajectoryStore
from sweetrl.errors import UserError
from sweetrl.io import append_row, atomic_path, read_rows, remove_leftovers
from sweetrl.protocols import AsyncEngine
from sweetrl.rollout.context import RolloutContext
from sweetrl.rollout.dialogue import Dialogue
from sweetrl.rollout.driver import advance_each
from sweetrl.rollout.ledger import Ledger
from sweetrl.rollout.scored import Losses, scored
from sweetrl.types import AgentTurn, Message, Task, TestResult, Trajectory

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
    """Attempt what neither a shard nor a journal holds, with `dialogues` under way; write each shard that is complete.

    A shard is scored and written beside the dialogues that go on. Its bytes do not depend on the order in which
    dialogues ended, nor on how often the run was killed. With `mine` only the shards that it says yes to are made.
    """
    work = _Shards(attempts, context, store, losses, shard, progress, mine)
    try:
        missing = work.resume()
        if missing:
            engine = cast(AsyncEngine, context.engine)
            positions: dict[int, int] = {}

            def opened() -> Iterator[Dialogue]:
                for position, task, attempt in missing:
                    dialogue = context.open(task, attempt, seed)
                    positions[id(dialogue)] = position
                    yield dialogue

            def ended(dialogue: Dialogue) -> None:
                if ledger is not None:
                    ledger.add([dialogue.cost(policy_name, engine.usage().devices)])
                work.finished(positions.pop(id(dialogue)), dialogue.close(policy_name))

            workers = min(dialogues, len(missing))
            advance_each(opened(), engine, context.simulator, context.sampling(), ended, workers)
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
        self.shared = mine is not None  # others write into the same folder
        self.attempts, self.context, self.store, self.losses, self.shard = attempts, context, store, losses, shard
        self.progress = progress or (lambda more: None)
        self.journal = Journal(store.folder / JOURNAL, shard)
        self.members: dict[int, dict[int, Trajectory]] = {}
        self.writer = ThreadPoolExecutor(1, "sweetrl-shards")
        self.writing: list[Future[None]] = []

    def size(self, index: int) -> int:
        """How many dialogues shard `index` has when it is complete."""
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
            finished = self.members[index] = self.journal.read(index, self.attempts)
            self.progress(len(finished))
            start = index * self.shard
            positions = range(start, start + self.size(index))
            left += [(at, *self.attempts[at]) for at in positions if at not in finished]
            self._write_if_complete(index)
        return left

    def finished(self, position: int, trajectory: Trajectory) -> None:
        """Keep one dialogue that has ended; UserError when too many are lost or something could not be written."""
        if trajectory.outcome != "lost":  # a lost one gets another chance in the next run
            self.journal.add(position, trajectory)
        self.progress(1)
        index = position // self.shard
        self.members[index][position] = trajectory
        self.losses.add([trajectory])
        self._write_if_complete(index)
        for write in [future for future in self.writing if future.done()]:
            self.writing.remove(write)
            write.result()

    def wait(self) -> None:
        """Return when everything is written; raises what went wrong with it."""
        for write in self.writing:
            write.result()

    def close(self) -> None:
        """Let the running write end; after too many losses, open the shards that hold lost dialogues again."""
        self.writer.shutdown(wait=True, cancel_futures=True)
        if self.losses.too_many:
            self._reopen_all()
        if not self.shared:
            self.journal.close()

    def _write_if_complete(self, index: int) -> None:
        if len(self.members[index]) == self.size(index):
            members = self.members.pop(index)
            self.writing.append(self.writer.submit(self._write, index, members))

    def _write(self, index: int, members: dict[int, Trajectory]) -> None:
        self.store.write_shard(index, scored([members[at] for at in sorted(members)], self.context.scorer))
        self.journal.drop(index)

    def _reopen(self) -> None:
        """Count what earlier runs lost; too much of it, and their shards are opened again."""
        for shard in self._lost_shards().values():
            self.losses.causes.update(each.error for each in shard if each.outcome == "lost")
        if self.losses.too_many:
            self._reopen_all()
            self.losses.causes.clear()

    def _lost_shards(self) -> dict[int, list[Trajectory]]:
        own = (index for index in self.store.shards() if self.mine(index))
        return {index: list(self.store.read_shard(index)) for index in own if self.store.lost(index)}

    def _reopen_all(self) -> None:
        """Turn shards that hold lost dialogues back into journals of the others."""
        for index, shard in self._lost_shards().items():
            start = index * self.shard
            self.journal.write(index, {start + at: each for at, each in enumerate(shard) if each.outcome != "lost"})
            self.store.shards()[index].unlink()


class Journal:
    """The journals of unfinished shards, in `folder`; shard i has the positions [i * shard, (i + 1) * shard).

    One line for each finished dialogue, appended as it ends and handed to the operating system at once: a killed
    process (kill -9) loses none. A line that was being written then is cut off when the journal is read. A journal is
    removed when its shard has been written.
    """

    def __init__(self, folder: Path, shard: int) -> None:
        self.folder, self.shard = Path(folder), shard

    def add(self, position: int, trajectory: Trajectory) -> None:
        """Append one finished dialogue; UserError where the disk is full."""
        append_row(self._path(position // self.shard), _row(position, trajectory))

    def read(self, shard: int, attempts: Sequence[tuple[Task, int]]) -> dict[int, Trajectory]:
        """Return the finished dialogues of a shard by position in `attempts`, and cut off what is broken at the end."""
        path = self._path(shard)
        finished: dict[int, Trajectory] = {}

        def take(row: dict[str, Any]) -> None:
            position = int(row["position"])
            task, attempt = attempts[position]
            if (row["task"], row["trajectory"]["attempt"]) != (task.id, attempt):
                raise UserError(
                    f"{path}: its dialogues belong to other tasks or attempts; remove the folder {self.folder} "
                    "and run again."
                )
            finished[position] = _trajectory(row["trajectory"], task)

        read_rows(path, take)
        return finished

    def write(self, shard: int, members: dict[int, Trajectory]) -> None:
        """Put `members` in the place of a shard's journal, all or nothing."""
        with atomic_path(self._path(shard)) as temporary:
            lines = (json.dumps(_row(position, member)) + "\n" for position, member in sorted(members.items()))
            temporary.write_text("".join(lines), encoding="utf-8")

    def drop(self, shard: int) -> None:
        """Remove the journal of a shard that has been written."""
        remove_leftovers(self._path(shard))
        self._path(shard).unlink(missing_ok=True)

    def close(self) -> None:
        """Remove the folder if nothing is left in it."""
        if self.folder.is_dir() and not any(self.folder.iterdir()):
            self.folder.rmdir()

    def _path(self, shard: int) -> Path:
        return self.folder / f"{shard:05d}.jsonl"


def _row(position: int, trajectory: Trajectory) -> dict[str, Any]:
    row = dataclasses.asdict(dataclasses.replace(trajectory, task=Task("", "", "")))
    del row["task"]
    return {"position": position, "task": trajectory.task.id, "trajectory": row}


def _trajectory(row: dict[str, Any], task: Task) -> Trajectory:
    turns = tuple(
        AgentTurn(**{**turn, "token_ids": tuple(turn["token_ids"]), "logprobs": tuple(turn["logprobs"])})
        for turn in row["turns"]
    )
    messages = tuple(Message(**message) for message in row["messages"])
    tests = tuple(TestResult(**test) for test in row["tests"])
    return Trajectory(**{**row, "task": task, "messages": messages, "turns": turns, "tests": tests})
