"""Which attempts at a task are compared: preference pairs of whole trajectories for the critic.

Eq. 2 compares a chosen trajectory with a rejected one of the same task. Never two attempts with equal reward, never one
that was lost or not scored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from sweetrl.colbench.scoring import unpriced
from sweetrl.errors import UserError
from sweetrl.sweet.tables import Table, write_table
from sweetrl.types import Trajectory, TrajectoryPair

if TYPE_CHECKING:
    from sweetrl.colbench.domain import Domain
    from sweetrl.config.settings import CriticSettings, RankSettings, RftSettings

Rule = Literal["official", "all"]


def usable(trajectory: Trajectory) -> bool:
    """Whether a trajectory may be learnt from: it ended by the protocol and was scored."""
    return trajectory.outcome != "lost" and trajectory.reward is not None


class _Attempt(NamedTuple):
    """What pairs are made of: many fit in memory."""

    number: int
    reward: float
    success: bool


def trajectory_pairs(
    trajectories: Iterable[Trajectory], rule: Rule = "official", gap: float = 0.1
) -> tuple[list[TrajectoryPair], dict[str, int]]:
    """Pair up the attempts of every task, in the order in which tasks first appear and by attempt within a task.

    official  chosen is the first attempt that is a success (a reward of 1), rejected every attempt with less reward
    all       every two attempts whose rewards differ by at least `gap`, the better one chosen

    Counts say what became of the batch: `trajectories`, `unusable` ones (lost, or without a reward), `tasks`,
    `tasks_with_pairs`, `pairs`, and comparisons left out because rewards are `equal` or `too_close` (less than `gap`).
    """
    by_task: dict[str, list[_Attempt]] = {}
    counts = dict.fromkeys(("trajectories", "unusable", "tasks", "tasks_with_pairs", "equal", "too_close", "pairs"), 0)
    for trajectory in trajectories:
        counts["trajectories"] += 1
        if usable(trajectory) and trajectory.reward is not None:
            attempt = _Attempt(trajectory.attempt, trajectory.reward, trajectory.success)
            by_task.setdefault(trajectory.task.id, []).append(attempt)
        else:
            counts["unusable"] += 1
    pairs: list[TrajectoryPair] = []
    for task_id, attempts in by_task.items():
        attempts.sort(key=lambda attempt: attempt.number)
        before = len(pairs)
        if rule == "official":
            best = next((attempt for attempt in attempts if attempt.success), None)
            comparisons = [(best, other) for other in attempts if other is not best] if best else []
        else:
            comparisons = [
                (first, second) if first.reward >= second.reward else (second, first)
                for first, second in combinations(attempts, 2)
            ]
        for chosen, rejected in comparisons:
            difference = chosen.reward - rejected.reward
            if difference <= 0.0:
                counts["equal"] += 1
            elif rule == "all" and difference < gap - 1e-9:  # 0.3 - 0.2 is a little less than 0.1
                counts["too_close"] += 1
            else:
                pairs.append(TrajectoryPair(task_id, chosen.number, rejected.number, chosen.reward, rejected.reward))
        counts["tasks_with_pairs"] += len(pairs) > before
    return pairs, counts | {"tasks": len(by_task), "pairs": len(pairs)}


@dataclass
class DataCounts:
    """What collected dialogues offer to learn from, counted once: methods say by it what is missing before they run.

    `dialogues` counts the usable ones. Of them, `imitable` have a reward of `rft.min_reward` or more, and
    `without_reference` no training-time information c (a reference or hidden information). `pairs` are those of
    attempts at one task (`critic.pairs`).
    """

    domain: Domain
    critic: CriticSettings
    rank: RankSettings
    rft: RftSettings
    dialogues: int = 0
    imitable: int = 0
    without_reference: int = 0
    pairs: int = 0

    def read(self, trajectories: Iterable[Trajectory]) -> tuple[list[TrajectoryPair], dict[str, int]]:
        """Count `trajectories`, and return what `trajectory_pairs` makes of them by the settings of the critic."""
        pairs, counts = trajectory_pairs(self._counted(trajectories), self.critic.pairs, self.critic.gap)
        self.pairs += len(pairs)
        return pairs, counts

    def _counted(self, trajectories: Iterable[Trajectory]) -> Iterator[Trajectory]:
        least = self.rft.min_reward
        for trajectory in trajectories:
            if usable(trajectory):
                self.dialogues += 1
                self.imitable += (unpriced(trajectory).reward or 0.0) >= least
                self.without_reference += not self.domain.reference(trajectory.task)
            yield trajectory

    def missing_pairs(self) -> str | None:
        """Say that there are no two attempts to compare, or None."""
        if self.pairs:
            return None
        comparable = {
            "official": "one that succeeds and one with a lower reward",
            "all": f"two whose rewards differ by {self.critic.gap:g} (critic.gap)",
        }[self.critic.pairs]
        return (
            f"of the {self.dialogues} dialogues no task has {comparable} (critic.pairs: {self.critic.pairs}), so "
            "nothing can be compared; bring more attempts at each task, or change critic.pairs"
        )


def write_pairs(path: Path, pairs: Sequence[TrajectoryPair]) -> None:
    """Write pairs as Parquet (zstd); equal pairs give equal bytes."""
    write_table(path, TrajectoryPair, pairs)


def read_pairs(path: Path) -> list[TrajectoryPair]:
    """Read what `write_pairs` wrote; a missing file or column is a UserError that names it."""
    return list(Table(path, TrajectoryPair, "validate"))


def index_pairs(
    pairs: Sequence[TrajectoryPair],
    trajectories: Iterable[Trajectory],
    take: Callable[[Trajectory], None],
    where: str = "pairs",
) -> list[tuple[int, int]]:
    """Give every trajectory that occurs in `pairs` to `take`, once; return the pairs as (chosen, rejected) indices.

    The indices count what `take` was given. A pair whose trajectory is not there is a UserError that names `where`, the
    task and the attempt.
    """
    paired = {(pair.task_id, attempt) for pair in pairs for attempt in (pair.chosen_attempt, pair.rejected_attempt)}
    index: dict[tuple[str, int], int] = {}
    for trajectory in trajectories:
        key = (trajectory.task.id, trajectory.attempt)
        if key in paired and key not in index:
            index[key] = len(index)
            take(trajectory)
    result = []
    for row, pair in enumerate(pairs):
        keys = (pair.task_id, pair.chosen_attempt), (pair.task_id, pair.rejected_attempt)
        for key in keys:
            if key not in index:
                raise UserError(
                    f"{where}: row {row}: attempt {key[1]} at task {key[0]} is not among the trajectories; "
                    "run the stage `validate` again."
                )
        result.append((index[keys[0]], index[keys[1]]))
    return result
