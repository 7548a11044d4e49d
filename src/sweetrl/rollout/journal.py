"""Finished dialogues on disk before their shard is whole: one line each, appended as they end.

A line is handed to the operating system at once: a killed process (kill -9) loses no finished dialogue. A line that was
being written then is cut off when the journal is read. A journal is removed when its shard has been written.
"""

from __future__ import annotations

import dataclasses
import errno
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sweetrl.errors import UserError
from sweetrl.io import atomic_path, remove_leftovers
from sweetrl.types import AgentTurn, Message, Task, TestResult, Trajectory


class Journal:
    """The journals of unfinished shards, in `folder`; shard i has the positions [i * shard, (i + 1) * shard)."""

    def __init__(self, folder: Path, shard: int) -> None:
        self.folder, self.shard = Path(folder), shard

    def add(self, position: int, trajectory: Trajectory) -> None:
        """Append one finished dialogue; UserError where the disk is full."""
        path = self._path(position // self.shard)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            line = _line(position, trajectory)
            with path.open("ab", buffering=0) as target:
                if target.write(line) < len(line):
                    raise OSError(errno.ENOSPC, "no space left")
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            raise UserError(
                f"{path}: no space left on the disk; free some and run the same command again (finished work is kept)."
            ) from error

    def read(self, shard: int, attempts: Sequence[tuple[Task, int]]) -> dict[int, Trajectory]:
        """Return the finished dialogues of a shard by position in `attempts`, and cut off what is broken at the end."""
        path = self._path(shard)
        if not path.exists():
            return {}
        found: dict[int, Trajectory] = {}
        whole = 0
        for line in path.read_bytes().splitlines(keepends=True):
            if not line.endswith(b"\n"):
                break
            try:
                row = json.loads(line)
                position = int(row["position"])
                task, attempt = attempts[position]
                if (row["task"], row["trajectory"]["attempt"]) != (task.id, attempt):
                    raise UserError(
                        f"{path}: its dialogues belong to other tasks or attempts; remove the folder {self.folder} "
                        "and run again."
                    )
                found[position] = _trajectory(row["trajectory"], task)
            except (ValueError, KeyError, TypeError, IndexError):
                break
            whole += len(line)
        if whole < path.stat().st_size:
            with path.open("r+b") as target:
                target.truncate(whole)
        return found

    def write(self, shard: int, members: dict[int, Trajectory]) -> None:
        """Put `members` in the place of a shard's journal, all or nothing."""
        with atomic_path(self._path(shard)) as temporary:
            temporary.write_bytes(b"".join(_line(position, one) for position, one in sorted(members.items())))

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


def _line(position: int, trajectory: Trajectory) -> bytes:
    row = dataclasses.asdict(dataclasses.replace(trajectory, task=Task("", "", "")))
    del row["task"]
    return (json.dumps({"position": position, "task": trajectory.task.id, "trajectory": row}) + "\n").encode()


def _trajectory(row: dict[str, Any], task: Task) -> Trajectory:
    turns = tuple(
        AgentTurn(**{**turn, "token_ids": tuple(turn["token_ids"]), "logprobs": tuple(turn["logprobs"])})
        for turn in row["turns"]
    )
    messages = tuple(Message(**message) for message in row["messages"])
    tests = tuple(TestResult(**test) for test in row["tests"])
    return Trajectory(**{**row, "task": task, "messages": messages, "turns": turns, "tests": tests})
