"""Stage `train-policy`: training of the actor by the method in params.yaml; it never sees c."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sweetrl.colbench.find import load_domain
from sweetrl.config.settings import Settings
from sweetrl.console.progress import StepProgress, first_process
from sweetrl.io import publish
from sweetrl.methods.base import find_method
from sweetrl.paths import PAIRS, POLICY, PREFERENCES, REFERENCES, TRAIN_TASKS, TRAJECTORIES
from sweetrl.stages.run import stage_main, stage_run
from sweetrl.types import Preference, RankedState

if TYPE_CHECKING:
    from sweetrl.sweet.preferences import Replay
    from sweetrl.types import Task, Trajectory, TrajectoryPair

# Where what methods learn from lies.
FILES = {"tasks": TRAIN_TASKS, "trajectories": TRAJECTORIES, "pairs": PAIRS, "preferences": PREFERENCES}


class Files:
    """What a method learns from, in the project's files (sweetrl.methods.base.Inputs)."""

    where = str(PAIRS)

    def tasks(self) -> list[Task]:
        """The training tasks."""
        from sweetrl.colbench.store import read_task_table

        return read_task_table(TRAIN_TASKS)

    def trajectories(self) -> Iterable[Trajectory]:
        """The collected dialogues."""
        from sweetrl.colbench.store import TrajectoryStore

        return TrajectoryStore(TRAJECTORIES)

    def pairs(self) -> list[TrajectoryPair]:
        """Pairs of whole dialogues."""
        from sweetrl.sweet.pairs import read_pairs

        return read_pairs(PAIRS)

    def preferences(self) -> tuple[Sequence[Preference], Sequence[Replay]]:
        """Pairs of replies at one state, and successful dialogues."""
        from sweetrl.sweet import preferences as files
        from sweetrl.sweet.tables import Table

        pairs = Table(PREFERENCES / files.PREFERENCES, Preference)
        return pairs, Table(PREFERENCES / files.SFT_REPLAY, files.Replay)

    def candidates(self) -> Sequence[RankedState]:
        """All candidate replies of the ranked states."""
        from sweetrl.sweet.preferences import CANDIDATES
        from sweetrl.sweet.tables import Table

        return Table(PREFERENCES / CANDIDATES, RankedState)


def train_policy(settings: Settings) -> None:
    """Read what the method learns from, train an adapter, write models/policy/."""
    with stage_run("train-policy", settings) as run:
        from sweetrl.api.learning import training_job

        method = find_method(settings.method)
        wanted = method.needs if method.learns_from is None else method.learns_from
        needed = [path for name, path in FILES.items() if name in wanted]
        for path in needed:
            run.log_input(path.stem, path)
        run.log_input("base", settings.model.base)
        # The offline dialogues follow from all that decides those that a method makes itself.
        scratch = run.scratch(*needed, *([TRAJECTORIES] if TRAIN_TASKS in needed else []), Path(settings.model.base))
        progress = StepProgress(run.stage, run.log_metrics) if method.trains else None
        job = training_job(method, settings, load_domain(settings), Files(), scratch, progress, REFERENCES)
        result = method.train(job)
        if not first_process():
            return
        publish(result.adapter, POLICY)
        run.log_metrics(result.metrics)
        run.summary = f"{result.summary}, adapter in {POLICY}"


if __name__ == "__main__":
    stage_main(train_policy, lambda settings: find_method(settings.method).trains)
