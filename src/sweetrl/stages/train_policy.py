"""Stage `train-policy`: training of the actor by the method in params.yaml; it never sees c."""

from __future__ import annotations

from pathlib import Path

from sweetrl.api.learning import training_job
from sweetrl.colbench.find import load_domain
from sweetrl.colbench.store import TrajectoryStore, read_task_table
from sweetrl.config.settings import Settings
from sweetrl.console.progress import StepProgress, first_process
from sweetrl.io import publish
from sweetrl.methods.base import Inputs, find_method
from sweetrl.paths import PAIRS, POLICY, PREFERENCES, REFERENCES, TRAIN_TASKS, TRAJECTORIES
from sweetrl.stages.run import stage_main, stage_run
from sweetrl.sweet import preferences as files
from sweetrl.sweet.pairs import read_pairs
from sweetrl.sweet.tables import Table
from sweetrl.types import Preference, RankedState

# Where what methods learn from lies.
FILES = {"tasks": TRAIN_TASKS, "trajectories": TRAJECTORIES, "pairs": PAIRS, "preferences": PREFERENCES}


def train_policy(settings: Settings) -> None:
    """Read what the method learns from, train an adapter, write models/policy/."""
    with stage_run("train-policy", settings) as run:
        method = find_method(settings.method)
        needs = method.needs if method.learns_from is None else method.learns_from
        for path in (path for name, path in FILES.items() if name in needs):
            run.log_input(path.stem, path)
        run.log_input("base", settings.model.base)
        # The offline dialogues follow from all that decides those that a method makes itself.
        scratch = run.scratch(*([TRAJECTORIES] if "tasks" in needs else []))
        inputs = Inputs(
            TrajectoryStore(TRAJECTORIES),
            read_pairs(PAIRS) if "pairs" in needs else None,
            read_ranking(PREFERENCES) if "preferences" in needs else None,
            read_task_table(TRAIN_TASKS) if "tasks" in needs else None,
            where=str(PAIRS),
        )
        progress = StepProgress(run.stage, run.log_metrics) if method.trains else None
        job = training_job(method, settings, load_domain(settings), inputs, scratch, progress, REFERENCES)
        result = method.train(job)
        if not first_process():
            return
        publish(result.adapter, POLICY)
        run.log_metrics(result.metrics)
        run.summary = f"{result.summary}, adapter in {POLICY}"


def read_ranking(folder: Path) -> files.Ranking:
    """Return what lies in data/preferences, read item by item."""
    return files.Ranking(
        Table(folder / files.CANDIDATES, RankedState),
        Table(folder / files.PREFERENCES, Preference),
        Table(folder / files.SFT_REPLAY, files.Replay),
    )


if __name__ == "__main__":
    stage_main(train_policy, lambda settings: find_method(settings.method).trains)
