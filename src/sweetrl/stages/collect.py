"""Stage `collect`: k attempts of the base policy at a batch of training tasks, scored: all later training data."""

from __future__ import annotations

from pathlib import Path

from sweetrl.io import publish
from sweetrl.paths import TRAIN_TASKS, TRAJECTORIES
from sweetrl.plugins import load_domain
from sweetrl.running.costs import log_costs
from sweetrl.running.stage import stage_main, stage_run
from sweetrl.settings import Settings
from sweetrl.tracking.traces import log_dialogues


def collect(settings: Settings) -> None:
    """Read the training tasks, write data/trajectories/. Finished shards survive a kill or a full disk."""
    from sweetrl.colbench.store import read_task_table
    from sweetrl.rollout.run import batch_of

    tasks = batch_of(read_task_table(TRAIN_TASKS), settings.collect.first, settings.collect.tasks)
    with stage_run("collect", settings) as run:
        from sweetrl.api import rollouts
        from sweetrl.api.policy import Policy
        from sweetrl.rollout.ledger import Ledger
        from sweetrl.rollout.scored import summarize

        run.log_input("train-tasks", TRAIN_TASKS)
        run.log_input("base", settings.model.base)
        scratch = run.scratch(TRAIN_TASKS, Path(settings.model.base))
        suffix = run.share.suffix
        running = rollouts.Running(
            log=scratch / f"server{suffix}.log",
            ledger=Ledger(scratch / f"costs{suffix}.jsonl"),
            mine=run.mine,
            spent=run.log_metrics,
        )
        store = rollouts.collect(
            load_domain(settings), Policy.of(settings), tasks, out=scratch / "shards", running=running
        )
        if not run.share.whole:
            return
        metrics = summarize(store)
        log_dialogues(run.log, {"collect": store}, settings)
        publish(store.folder, TRAJECTORIES)
        run.log_metrics(metrics)
        log_costs(run, scratch, "costs*.jsonl")
        run.summary = (
            f"{len(store)} dialogues on {len(tasks)} tasks, success {metrics['success']:.1%}, mean reward "
            f"{metrics['reward']:.3f}, {metrics['turns']:.1f} turns"
        )


def main() -> None:
    """Run the stage with the parameters in params.yaml."""
    stage_main(collect)


if __name__ == "__main__":
    main()
