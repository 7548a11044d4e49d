"""Finished dialogues on disk before their shard is whole: one line each, appended as they end.

A line is handed to the operating system at once: a killed process (kill -9) loses no finished dialogue. A line that was
being written then is cut off when the journal is read. A journal is removed when its shard has been written.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sweetrl.errors import UserError
from sweetrl.io import append_row, atomic_path, read_rows, remove_leftovers
from sweetrl.types import AgentTurn, Message, Task, TestResult, Trajectory


class Journal:
    """The journals of unfinished shards, in `folder`; shard i has the positions [i * shard, (i + 1) * shard)."""

    def __init__(self, folder: Path, shard: int) -> None:
        self.folder, self.shard = Path(folder), shard

    def add(self, position: int, trajectory: Trajectory) -> None:
        """Append one finished dialogue; UserError where the disk is full."""
        append_row(self._path(position // self.shard), _row(position, trajectory))

    def read(self, shard: int, attempts: Sequence[tuple[Task, int]]) -> dict[int, Trajectory]:
        """Return the finished dialogues of a shard by position in `attempts`, and cut off what is broken at the end."""
        path = self._path(shard)
        found: dict[int, Trajectory] = {}

        def take(row: dict[str, Any]) -> None:
            position = int(row["position"])
            task, attempt = attempts[position]
            if (row["task"], row["trajectory"]["attempt"]) != (task.id, attempt):
                raise UserError(
                    f"{path}: its dialogues belong to other tasks or attempts; remove the folder {self.folder} "
                    "and run again."
                )
            found[position] = _trajectory(row["trajectory"], task)

        read_rows(path, take)
        return found

    def write(self, shard: int, members: dict[int, Trajectory]) -> None:
        """Put `members` in the place of a shard's journal, all or nothing."""
        with atomic_path(self._path(shard)) as temporary:
            lines = (json.dumps(_row(position, one)) + "\n" for position, one in sorted(members.items()))
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
