"""What `validate` looks at: collected dialogues, pairs and shards as flat tables of verdicts, one row each.

A verdict column is empty where all is well and says in a few words what is wrong where it is not
(sweetrl.evaluation.checks). Dialogues pass through once and only their flat rows stay in memory, column by column.
"""

from __future__ import annotations

import hashlib
import logging
import math
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from statistics import fmean, variance
from typing import TYPE_CHECKING, Any

from sweetrl.colbench.scoring import price_fault, unpriced
from sweetrl.colbench.store import TrajectoryStore, trajectory_schema
from sweetrl.evaluation import checks
from sweetrl.types import Trajectory, TrajectoryPair

if TYPE_CHECKING:
    from sweetrl.colbench.domain import Domain
    from sweetrl.types import Task

logger = logging.getLogger("sweetrl")

Row = dict[str, Any]
Decode = Callable[[Sequence[int]], str]

KEYS = ("row", "task_id", "attempt")  # what names a dialogue in a message
UNSETTLED = (
    "its reference gives `{}` another value each time: make it a function of its arguments, or leave the task out"
)
ORDERED = (
    "the references of these tasks depend on the order of a set, so that right programs may be rated as wrong: sort in "
    "them, or leave the tasks out: %s"
)
REMEMBERED = 256  # tasks whose references are in memory in pieces: of pages these are 14 KiB each


class Rows(Sequence[Row]):
    """Rows with equal columns, which are lists: a row is made when it is asked for."""

    def __init__(self, rows: Iterable[Row] = ()) -> None:
        self.columns: dict[str, list[Any]] = {}
        for row in rows:
            self.append(row)

    def append(self, row: Row) -> None:
        """Add a row."""
        for name, value in row.items():
            self.columns.setdefault(name, []).append(value)

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), ()))

    def __getitem__(self, index: Any) -> Any:
        """Return a row; slices are not for this."""
        place = range(len(self))[index]
        return {name: values[place] for name, values in self.columns.items()}

    def column(self, name: str) -> list[Any]:
        """Return the values of a column; none where there are no rows."""
        return self.columns.get(name, [])


@dataclass(frozen=True)
class Summary:
    """A batch in a few numbers; the errors are standard errors of the means over tasks."""

    batch: str
    tasks: int
    trajectories: int
    lost: int
    mean_reward: float
    reward_error: float
    success_rate: float
    mean_turns: float
    turns_error: float


def shard_rows(store: TrajectoryStore) -> Rows:
    """One row for each shard: whether it can be read and has the columns and types it should have."""
    return Rows({"row": path.name, "schema": schema_fault(path)} for path in store.shards().values())


def schema_fault(path: Path) -> str | None:
    """What is wrong with the columns of a shard, or None."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        schema = pq.read_schema(path)
    except (pa.ArrowInvalid, OSError):
        return "it is no complete Parquet file"
    there = {field.name: field.type for field in schema}
    for field in trajectory_schema():
        if there.get(field.name) != field.type:
            return f"column `{field.name}` is {there.get(field.name, 'missing')}, expected {field.type}"
    return None


def places(store: TrajectoryStore) -> Iterator[str]:
    """Name the place of every trajectory in the order of `store.read()`: shard file and row in it."""
    import pyarrow.parquet as pq

    for path in store.shards().values():
        for number in range(pq.read_metadata(path).num_rows):
            yield f"{path.name} row {number}"


class TrajectoryTable:
    """Collects a row of verdicts for every trajectory that passes through `watch`.

    Where rewards are `recorded` elsewhere, the tasks' tests are not looked at.
    """

    def __init__(
        self, domain: Domain, max_turns: int, system: str = "", decode: Decode | None = None, recorded: bool = False
    ) -> None:
        self.domain, self.max_turns, self.system, self.decode = domain, max_turns, system, decode
        self._rows = Rows()
        self._words: list[bytes] = []
        self._contents: dict[str, bytes] = {}
        self._scored: dict[str, tuple[str, Task]] | None = None if recorded or domain.settings.reward.function else {}
        self._fragments = lru_cache(maxsize=REMEMBERED)(domain.hidden_fragments)

    def watch(self, trajectories: Iterable[Trajectory], places: Iterable[str]) -> Iterator[Trajectory]:
        """Pass trajectories on."""
        for place, trajectory in zip(places, trajectories, strict=True):
            self._rows.append(self._row(place, trajectory))
            yield trajectory

    def rows(self) -> Rows:
        """The rows, with the verdicts that need all attempts at a task."""
        tasks, numbers = self._rows.column("task_id"), self._rows.column("attempt")
        attempts = Counter(tasks)
        repeats = checks.first_repeats(zip(tasks, numbers, self._words, strict=True))
        self._rows.columns["attempts"] = [attempts[task] for task in tasks]
        self._rows.columns["duplicate"] = [
            None if repeat is None else f"the same words as attempt {repeat}" for repeat in repeats
        ]
        if unsettled := self._unsettled():
            faults = self._rows.column("tests")
            faults[:] = [fault or unsettled.get(task) for fault, task in zip(faults, tasks, strict=True)]
        for column in ("reward", "turns"):
            self._rows.columns[f"{column}_by_task"] = by_task(self._rows, column)
        return self._rows

    def _unsettled(self) -> dict[str, str]:
        """What is wrong with tasks whose reference does not give its tests the same values each time, by id."""
        scored = list((self._scored or {}).values())
        tests = self.domain.unsettled_tests([task for _, task in scored], hash_seed=1)
        doubtful = [pair for pair, test in zip(scored, tests, strict=True) if test]
        tests = self.domain.unsettled_tests([task for _, task in doubtful])
        if ordered := [f"{task.id} ({place})" for (place, task), test in zip(doubtful, tests, strict=True) if not test]:
            logger.warning(ORDERED, ", ".join(ordered))
        return {task.id: UNSETTLED.format(test) for (_, task), test in zip(doubtful, tests, strict=True) if test}

    def _row(self, place: str, trajectory: Trajectory) -> Row:
        task, reward = trajectory.task, trajectory.reward
        if self._scored is not None and task.test_cases:
            self._scored.setdefault(task.id, (place, task))
        self._words.append(_digest("\0".join(message.content for message in trajectory.messages)))
        content = _digest(repr(task))
        sampled = any(turn.token_ids for turn in trajectory.turns)
        return {
            "row": place,
            "task_id": sys.intern(task.id),  # each name once in memory
            "attempt": trajectory.attempt,
            "task": "another task has the same id" if self._contents.setdefault(task.id, content) != content else None,
            "turn_order": checks.turn_order(trajectory),
            "protocol": checks.protocol(trajectory, self.domain, self.max_turns),
            "turn_record": checks.turn_record(trajectory, self.domain),
            "tokens": checks.tokens(trajectory, self.decode) if self.decode else None,
            "reward": reward if reward is not None and math.isfinite(reward) else None,
            "scored": checks.scored(trajectory),
            "tests": self._score_fault(trajectory),
            "leak": checks.leak(trajectory, self._fragments(task), self.system),
            "seed": str(trajectory.seed) if sampled else None,
            "lost": (trajectory.error or "it was lost") if trajectory.outcome == "lost" else None,
            "turns": sum(message.role == "assistant" for message in trajectory.messages),
            "success": trajectory.success,
        }

    def _score_fault(self, trajectory: Trajectory) -> str | None:
        """What is wrong with the reward, as the domain sees it; a reward of the user's own is their business."""
        reward = self.domain.settings.reward
        fault = price_fault(trajectory, reward.turn_cost)
        return fault if fault or reward.function else self.domain.check_score(unpriced(trajectory))


def pair_rows(pairs: Sequence[TrajectoryPair], trajectories: Rows) -> Rows:
    """One row for each pair, with a verdict on whether its two trajectories are there with these rewards."""
    names = (trajectories.column(name) for name in ("task_id", "attempt", "reward"))
    rewards = {(task, attempt): reward for task, attempt, reward in zip(*names, strict=True)}
    rows = Rows()
    for number, pair in enumerate(pairs):
        members = (pair.chosen_attempt, pair.chosen_reward), (pair.rejected_attempt, pair.rejected_reward)
        wrong = [member for member in members if rewards.get((pair.task_id, member[0])) != member[1]]
        fault = f"attempt {wrong[-1][0]} with reward {wrong[-1][1]:g} is not among the trajectories" if wrong else None
        rows.append({"row": f"pair {number}", **asdict(pair), "members": fault})
    return rows


def summarise(rows: Sequence[Row], batch: str) -> Summary:
    """The batch in a few numbers; lost dialogues count in `lost` only."""
    usable = [row for row in rows if row["reward"] is not None]
    reward, reward_error = _mean_over_tasks(usable, "reward")
    turns, turns_error = _mean_over_tasks(usable, "turns")
    return Summary(
        batch=batch,
        tasks=len({row["task_id"] for row in rows}),
        trajectories=len(rows),
        lost=sum(row["lost"] is not None for row in rows),
        mean_reward=reward,
        reward_error=reward_error,
        success_rate=sum(row["success"] for row in usable) / max(1, len(usable)),
        mean_turns=turns,
        turns_error=turns_error,
    )


def by_task(rows: Rows, column: str) -> list[float | None]:
    """The values of `column`, each so weighed that their mean is that of the tasks' means (as `summarise` has it).

    Where all tasks have as many attempts the values stay as they are; those of dialogues without a reward are None.
    """
    tasks, rewards, values = (rows.column(name) for name in ("task_id", "reward", column))
    attempts = Counter(task for task, reward in zip(tasks, rewards, strict=True) if reward is not None)
    each = attempts.total() / max(1, len(attempts))
    return [
        None if reward is None else float(value) * (each / attempts[task])
        for task, reward, value in zip(tasks, rewards, values, strict=True)
    ]


def batch_digest(store: TrajectoryStore) -> str:
    """16 hex digits of the shards' content: the name of a batch."""
    content = hashlib.sha256()
    for path in store.shards().values():
        content.update(hashlib.sha256(path.read_bytes()).digest())
    return content.hexdigest()[:16]


def _mean_over_tasks(rows: Sequence[Row], column: str) -> tuple[float, float]:
    """Mean of the tasks' means, and its standard error; attempts at one task are not independent, tasks are."""
    tasks: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        tasks[row["task_id"]].append(float(row[column]))
    means = [fmean(values) for values in tasks.values()]  # exact sums: `sum` rounds otherwise since Python 3.12
    if len(means) < 2:
        return (means or [0.0])[0], 0.0
    return fmean(means), math.sqrt(variance(means) / len(means))


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()
