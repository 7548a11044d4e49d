"""The project's own files: a table of tasks, and trajectories in Parquet shards. docs/data-formats.md has the schema.

Everything is written once (messages, token ids and log-probabilities; of prompts what is new), compressed with zstd,
and byte for byte the same for equal input and equal library versions, so that hashes mean something. Shards appear
under their name only when they are complete.
"""

from __future__ import annotations

import fcntl
import re
import tempfile
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweetrl.bounded import open_parquet
from sweetrl.errors import UserError
from sweetrl.io import atomic_path, private_file, remove_leftovers
from sweetrl.types import AgentTurn, Message, Task, TestResult, Trajectory

if TYPE_CHECKING:
    import pyarrow
    import pyarrow.parquet

FORMAT_KEY = b"sweetrl.format"  # in the metadata of the project's own tables
TASKS_FORMAT = "tasks/1"
TRAJECTORIES_FORMAT = "trajectories/2"
GROWING = ".growing"  # locked by the process that writes a folder's shards; holds how many dialogues there will be
_BATCH = 64  # rows in memory at a time while reading
_SHARD = re.compile(r"shard-(\d{5,})\.parquet")


# Tasks


def write_task_table(path: Path, tasks: Iterable[Task]) -> int:
    """Write `tasks` as one Parquet table in their order, all or nothing; return how many."""
    return _write(Path(path), [_task_record(task) for task in tasks], task_schema(), TASKS_FORMAT)


def read_task_table(path: Path) -> list[Task]:
    """Read a table of tasks; UserError for a missing file, for one that is not such a table, and for an empty one."""
    tasks = [_task(record) for record in _read(Path(path), TASKS_FORMAT)]
    if not tasks:
        raise UserError(f"{path}: the table holds no tasks; run the stage that writes it again.")
    return tasks


# Trajectories


class TrajectoryStore:
    """Trajectories in a folder of numbered Parquet shards; shard i holds what its writer gave it, in that order.

    Iterating reads a few at a time, `len` reads the shards' footers alone.
    """

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        self._keep: object = None  # whatever must live as long as this (a temporary folder)

    @classmethod
    def temporary(cls) -> TrajectoryStore:
        """Return an empty store in a temporary folder that is removed with the store."""
        kept = tempfile.TemporaryDirectory(prefix="sweetrl-")
        store = cls(Path(kept.name) / "shards")
        store._keep = kept
        return store

    def __iter__(self) -> Iterator[Trajectory]:
        return self.read()

    def __len__(self) -> int:
        """How many trajectories there are, from the shards' footers alone."""
        return sum(_rows(path) for path in self.shards().values())

    def __getitem__(self, index: int) -> Trajectory:
        """Return trajectory number `index` (from 0; negative from the end); reads its shard alone."""
        place = index if index >= 0 else len(self) + index
        for trajectory in self.pick([place]) if 0 <= place < len(self) else ():
            return trajectory
        raise IndexError(f"{self.folder}: there is no trajectory {index}, only {len(self)}")

    def write_shard(self, index: int, trajectories: Sequence[Trajectory]) -> Path:
        """Write shard `index` (shard-00000.parquet ...) all or nothing, replacing an old one; return its path.

        A shard has one writer: what killed writers have left of it is removed.
        """
        path = self.folder / f"shard-{index:05d}.parquet"
        remove_leftovers(path)
        _write(path, [_trajectory_record(each) for each in trajectories], trajectory_schema(), TRAJECTORIES_FORMAT)
        return path

    @contextmanager
    def growing(self, total: int, alone: bool = True) -> Iterator[None]:
        """Let others see (`growing_to`), until the block or the process ends, that `total` dialogues are written here.

        One of several processes that share the work is not `alone`: the last one takes the mark away.
        """
        path = private_file(self.folder / GROWING)
        with path.open("r+") as mark:
            with suppress(OSError):  # a file system without locks: nobody sees it
                fcntl.flock(mark, fcntl.LOCK_SH)
            mark.write(str(total))
            mark.truncate()
            try:
                yield
            finally:
                if alone:
                    path.unlink(missing_ok=True)

    def growing_to(self) -> int:
        """Return how many dialogues the store will have if a process is writing it right now, else 0."""
        with suppress(OSError), (self.folder / GROWING).open("rb") as mark:
            try:
                fcntl.flock(mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                total = mark.read(16)
                return int(total) if total.isdigit() else 0
        return 0

    def shards(self) -> dict[int, Path]:
        """Complete shards by number, in rising order; empty where the folder is missing."""
        names = ((_SHARD.fullmatch(path.name), path) for path in self.folder.glob("shard-*.parquet"))
        return dict(sorted((int(match[1]), path) for match, path in names if match))

    def row(self, index: int, row: int) -> Trajectory:
        """Return trajectory number `row` (from 0) of shard `index` without making the others; IndexError for none."""
        for trajectory in _trajectories(self.shards()[index], [row]):
            return trajectory
        raise IndexError(f"{self.folder}: shard {index} has no row {row}")

    def read_shard(self, index: int) -> Iterator[Trajectory]:
        """Yield the trajectories of one shard in order, a few in memory at a time."""
        return _trajectories(self.shards()[index])

    def lost(self, index: int) -> list[str]:
        """Return why dialogues of one shard were lost, a cause for each; their words are not read."""
        rows = _read(self.shards()[index], TRAJECTORIES_FORMAT, ("outcome", "error"))
        return [row["error"] for row in rows if row["outcome"] == "lost"]

    def read(self) -> Iterator[Trajectory]:
        """Yield every trajectory in shard order, a few in memory at a time.

        Raises UserError where there are no shards, where one is missing in the numbers, or where one cannot be read.
        """
        for path in self._complete():
            yield from _trajectories(path)

    def outlines(self) -> Iterator[Trajectory]:
        """Yield every trajectory without its words, which are not read: the task's id, attempt, reward and outcome.

        Raises as `read` does.
        """
        for path in self._complete():
            for record in _read(path, TRAJECTORIES_FORMAT, ("task.id", "attempt", "reward", "outcome", "solved")):
                yield Trajectory(**record | {"task": Task(record["task"]["id"], "", ""), "messages": ()})

    def pick(self, places: Sequence[int]) -> Iterator[Trajectory]:
        """Yield the trajectories at `places` (from 0, rising) without making the others. Raises as `read` does."""
        first = begin = 0
        for path in self._complete():
            rows = _rows(path)
            end = bisect_left(places, first + rows, begin)
            here = [place - first for place in places[begin:end]]
            if here:
                yield from _trajectories(path, here)
            first, begin = first + rows, end

    def _complete(self) -> Iterator[Path]:
        """Yield the shards' paths in order; UserError where there are none, or where one is missing in the numbers."""
        shards = self.shards()
        if not shards:
            raise UserError(f"{self.folder}: there are no trajectories here; run the stage that collects them.")
        for expected, (index, path) in enumerate(shards.items()):
            if index != expected:
                raise UserError(f"{self.folder}: shard {expected} is missing; run the stage that writes them again.")
            yield path


# Records: what a row of Parquet holds


def _task_record(task: Task) -> dict[str, Any]:
    return vars(task) | {"test_cases": [{"name": name, "call": call} for name, call in task.test_cases]}


def _task(record: dict[str, Any]) -> Task:
    return Task(**record | {"test_cases": tuple((case["name"], case["call"]) for case in record["test_cases"])})


def _trajectory_record(trajectory: Trajectory) -> dict[str, Any]:
    messages = trajectory.messages
    turns = []
    for turn in trajectory.turns:
        visible = messages[turn.message_index].content if 0 <= turn.message_index < len(messages) else None
        # Nearly always the raw reply is the message itself: it is written once.
        turns.append(vars(turn) | {"raw": None if turn.raw == visible else turn.raw})
    return vars(trajectory) | {
        "task": _task_record(trajectory.task),
        "messages": [vars(message) for message in messages],
        "turns": turns,
        "tests": [vars(test) for test in trajectory.tests],
        "extra": sorted(trajectory.extra.items()),
        "parts": sorted(trajectory.parts.items()),
    }


def _trajectory(record: dict[str, Any]) -> Trajectory:
    messages = tuple(Message(**message) for message in record["messages"])
    turns = []
    for turn in record["turns"]:
        raw = messages[turn["message_index"]].content if turn["raw"] is None else turn["raw"]
        tokens = {name: tuple(turn[name]) for name in ("token_ids", "logprobs", "prompt_ids") if name in turn}
        turns.append(AgentTurn(**turn | tokens | {"raw": raw}))
    parts = {
        "task": _task(record["task"]),
        "messages": messages,
        "turns": tuple(turns),
        "tests": tuple(TestResult(**test) for test in record["tests"]),
        "extra": dict(record["extra"]),
        "parts": dict(record["parts"]),
    }
    return Trajectory(**record | parts)


# Parquet


@lru_cache
def task_schema() -> pyarrow.Schema:
    """The columns of a table of tasks with their types."""
    import pyarrow as pa

    text = pa.string()
    calls = pa.list_(pa.struct({"name": text, "call": text}))
    return _schema(
        ("hidden_information",),
        {
            "id": text,
            "problem_description": text,
            "ground_truth": text,
            "test_cases": calls,
            "hidden_information": text,
            "suite": text,
        },
    )


@lru_cache
def trajectory_schema() -> pyarrow.Schema:
    """The columns of a trajectory shard with their types."""
    import pyarrow as pa

    text, number = pa.string(), pa.float64()
    turn = {
        "message_index": pa.int32(),
        "raw": text,
        "token_ids": pa.list_(pa.int32()),
        "logprobs": pa.list_(number),
        "finish_reason": text,
        "prompt_kept": pa.int32(),
        "prompt_ids": pa.list_(pa.int32()),
    }
    return _schema(
        ("answer", "reward", "solved"),
        {
            "task": pa.struct(list(task_schema())),
            "attempt": pa.int32(),
            "messages": pa.list_(pa.struct({"role": text, "content": text})),
            "turns": pa.list_(pa.struct(turn)),
            "answer": text,
            "reward": number,
            "tests": pa.list_(pa.struct({"name": text, "passed": pa.bool_(), "reason": text, "detail": text})),
            "outcome": text,
            "seed": pa.int64(),
            "policy": text,
            "simulator": text,
            "error": text,
            "extra": pa.map_(text, text),
            "parts": pa.map_(text, number),
            "solved": pa.bool_(),
        },
    )


def _schema(optional: Sequence[str], columns: dict[str, pyarrow.DataType]) -> pyarrow.Schema:
    import pyarrow as pa

    return pa.schema([pa.field(name, kind, nullable=name in optional) for name, kind in columns.items()])


def format_of(path: Path) -> str | None:
    """Return which of the project's own formats the Parquet file `path` has, None for tables that others have made.

    A file that is missing or no Parquet is a UserError.
    """
    with open_parquet(path) as file:
        form = (file.schema_arrow.metadata or {}).get(FORMAT_KEY)
    return None if form is None else form.decode()


def _write(path: Path, records: list[dict[str, Any]], schema: pyarrow.Schema, form: str) -> int:
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.Table.from_pylist(records, schema=schema.with_metadata({FORMAT_KEY: form}))
    with atomic_path(path) as temporary:
        pq.write_table(table, temporary, compression="zstd", row_group_size=1024)
    return len(records)


def _rows(shard: Path) -> int:
    with _open(shard, TRAJECTORIES_FORMAT) as file:
        return int(file.metadata.num_rows)


def _open(path: Path, form: str) -> pyarrow.parquet.ParquetFile:
    """Open one of the project's own files; another format than `form` is a UserError."""
    file = open_parquet(path)
    actual = (file.schema_arrow.metadata or {}).get(FORMAT_KEY, b"no format of this project").decode()
    if actual != form:
        raise UserError(f"{path}: expected the format {form}, found {actual}; run the stage that writes it again.")
    return file


def _trajectories(path: Path, places: Sequence[int] | None = None) -> Iterator[Trajectory]:
    """Yield the trajectories of a shard, or those at `places` (rising)."""
    return map(_trajectory, _read(path, TRAJECTORIES_FORMAT, places=places))


def _read(
    path: Path, form: str, columns: Sequence[str] | None = None, places: Sequence[int] | None = None
) -> Iterator[dict[str, Any]]:
    """Yield the rows of a file, or those at `places` (rising), with all or some `columns`."""
    import pyarrow as pa

    first = begin = 0
    with _open(path, form) as file:
        try:
            for batch in file.iter_batches(batch_size=_BATCH, columns=None if columns is None else list(columns)):
                if places is None:
                    yield from batch.to_pylist()
                    continue
                end = bisect_left(places, first + len(batch), begin)
                yield from batch.take(pa.array([place - first for place in places[begin:end]], pa.int64())).to_pylist()
                first, begin = first + len(batch), end
        except (pa.ArrowException, OSError) as error:
            raise UserError(f"{path}: the file is damaged; run the stage that writes it again.") from error
