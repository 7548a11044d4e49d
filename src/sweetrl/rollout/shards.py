"""From dialogues that end in any order to shards in a fixed one: journals, scoring, and a new start after a kill."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

from sweetrl.colbench.store import TrajectoryStore
from sweetrl.errors import UserError
from sweetrl.io import append_row, read_rows
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
    missing: Sequence[int],
    journal: Journal,
    losses: Losses,
    seed: int,
    policy_name: str,
    dialogues: int,
    shard: int,
    progress: Callable[[int], None],
    ledger: Ledger | None = None,
) -> None:
    """Make the shards `missing`, with `dialogues` under way; attempted is what their journals do not hold.

    A shard that is complete is scored and written beside the dialogues that go on. Its bytes do not depend on the order
    in which dialogues ended, nor on how often the run was killed.
    """
    members = {index: journal.read(index, attempts) for index in missing}
    positions = {index: range(len(attempts))[index * shard : (index + 1) * shard] for index in missing}
    progress(sum(map(len, members.values())))
    engine = cast(AsyncEngine, context.engine)
    opened: dict[int, int] = {}  # the position of each dialogue that is under way
    writing: list[Future[None]] = []

    def begun() -> Iterator[Dialogue]:
        for at in left:
            task, attempt = attempts[at]
            dialogue = context.open(task, attempt, seed)
            opened[id(dialogue)] = at
            yield dialogue

    def ended(dialogue: Dialogue) -> None:
        """Keep one dialogue; UserError when too many are lost or something could not be written."""
        if ledger is not None:
            ledger.add([dialogue.cost(policy_name, engine.usage().devices)])
        at, trajectory = opened.pop(id(dialogue)), dialogue.close(policy_name)
        if trajectory.outcome != "lost":  # a lost one gets another chance in the next run
            journal.add(at, trajectory)
        progress(1)
        members[at // shard][at] = trajectory
        losses.add([trajectory])
        write_if_complete(at // shard)
        for write in [future for future in writing if future.done()]:
            writing.remove(write)
            write.result()

    def write_if_complete(index: int) -> None:
        if len(members[index]) == len(positions[index]):
            writing.append(writer.submit(write, index, members.pop(index)))

    def write(index: int, trajectories: dict[int, Trajectory]) -> None:
        store.write_shard(index, scored([trajectories[at] for at in positions[index]], context.scorer))
        if all(trajectory.outcome != "lost" for trajectory in trajectories.values()):  # else they may be taken again
            journal.drop(index)

    left = [at for index in missing for at in positions[index] if at not in members[index]]
    writer = ThreadPoolExecutor(1, "sweetrl-shards")
    try:
        for index in missing:
            write_if_complete(index)
        if left:
            workers = min(dialogues, len(left))
            advance_each(begun(), engine, context.simulator, context.sampling(), ended, workers)
        for future in writing:
            future.result()
    finally:
        writer.shutdown(wait=True, cancel_futures=True)


class Journal:
    """The journals of unfinished shards, in `folder`; shard i has the positions [i * shard, (i + 1) * shard).

    One line for each finished dialogue, appended as it ends and handed to the operating system at once: a killed
    process (kill -9) loses none. A line that was being written then is cut off when the journal is read.
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

    def drop(self, shard: int) -> None:
        """Remove the journal of a shard that is written."""
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
