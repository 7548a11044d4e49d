"""Stage `train-critic`: the turn-wise advantage function, from pairs of whole trajectories (Eqs. 2-3)."""

from __future__ import annotations

from sweetrl.colbench.find import load_domain
from sweetrl.config.settings import Settings
from sweetrl.console.progress import StepProgress, first_process
from sweetrl.io import publish
from sweetrl.methods.base import Inputs, find_method
from sweetrl.paths import CRITIC, PAIRS, REFERENCES, TRAJECTORIES
from sweetrl.stages.run import stage_main, stage_run


def train_critic(settings: Settings) -> None:
    """Read trajectories and pairs, train an adapter that sees c, write models/critic/."""
    with stage_run("train-critic", settings) as run:
        if why := find_method(settings.method).why_skipped("critic", settings.rank):
            run.skip(CRITIC, why)
            return
        from sweetrl.api.learning import training_job
        from sweetrl.colbench.store import TrajectoryStore
        from sweetrl.sweet.critic import fit_critic
        from sweetrl.sweet.pairs import read_pairs

        pairs = read_pairs(PAIRS)
        for name, path in (("trajectories", TRAJECTORIES), ("pairs", PAIRS), ("base", settings.model.base)):
            run.log_input(name, path)
        progress = StepProgress(run.stage, run.log_metrics)
        inputs = Inputs(TrajectoryStore(TRAJECTORIES), pairs, where=str(PAIRS))
        job = training_job(None, settings, load_domain(settings), inputs, run.scratch(), progress, REFERENCES)
        result = fit_critic(job)
        if not first_process():
            return
        publish(result.adapter, CRITIC)
        run.log_metrics(result.metrics)
        run.summary = f"{result.summary}, adapter in {CRITIC}"


if __name__ == "__main__":
    stage_main(train_critic, lambda settings: not find_method(settings.method).why_skipped("critic", settings.rank))
