"""Stage `collect`: k attempts of the base policy at a batch of training tasks, scored: all later training data.

With `collect.source: files` they are dialogues that others have made (sweetrl.stages.import_dialogues).
"""

from __future__ import annotations

from pathlib import Path

from sweetrl.colbench.find import load_domain
from sweetrl.config.settings import Settings
from sweetrl.io import digest, publish
from sweetrl.paths import TEST_TASKS, TRAIN_TASKS, TRAJECTORIES, VALIDATION_TASKS
from sweetrl.stages.run import StageRun, log_costs, stage_main, stage_run
from sweetrl.tracking.runs import log_dialogues


def collect(settings: Settings) -> None:
    """Read the training tasks, write data/trajectories/. Finished shards survive a kill or a full disk."""
    if settings.collect.source == "files":
        with stage_run("collect", settings, torch=False) as run:
            collect_files(settings, run)
        return
    from sweetrl.colbench.store import read_task_table
    from sweetrl.rollout.run import batch_of

    tasks = batch_of(read_task_table(TRAIN_TASKS), settings.collect.first, settings.collect.tasks)
    with stage_run("collect", settings) as run:
        from sweetrl.api import rollouts
        from sweetrl.engines.policy import Policy
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
        policy = Policy(settings.model, settings.engine)
        store = rollouts.collect(load_domain(settings), policy, tasks, out=scratch / "shards", running=running)
        if not run.share.whole:
            return
        metrics = summarize(store)
        log_dialogues(run.log, {"collect": store}, settings.tracking, settings.seed)
        publish(store.folder, TRAJECTORIES)
        run.log_metrics(metrics)
        log_costs(run, scratch, "costs*.jsonl")
        run.summary = (
            f"{len(store)} dialogues on {len(tasks)} tasks, success {metrics['success']:.1%}, mean reward "
            f"{metrics['reward']:.3f}, {metrics['turns']:.1f} turns"
        )


def collect_files(settings: Settings, run: StageRun) -> None:
    """Read the dialogues of `sources.trajectories` but for those about validation and test tasks; write the same."""
    from sweetrl.colbench.store import TrajectoryStore, read_task_table
    from sweetrl.rollout.scored import summarize
    from sweetrl.stages.import_dialogues import Importer, import_dialogues, trajectory_files

    held_out = {"validation-tasks": VALIDATION_TASKS, "test-tasks": TEST_TASKS}
    files = trajectory_files(Path(settings.sources.trajectories))
    tasks = [task for path in held_out.values() for task in read_task_table(path)]
    for name, path in {"trajectories": Path(settings.sources.trajectories), **held_out}.items():
        run.log_input(name, path)
    names = digest([path.name for path in files])  # they are in the names of tasks
    store = TrajectoryStore(run.scratch(names, *files, *held_out.values()) / "shards")
    counts = import_dialogues(Importer(load_domain(settings), files, tasks), store, run.mine)
    if not run.share.whole:
        return
    metrics = summarize(store)
    log_dialogues(run.log, {"collect": store}, settings.tracking, settings.seed)
    publish(store.folder, TRAJECTORIES)
    run.log_metrics(metrics | {name: float(count) for name, count in counts.items()})
    left_out = [f"{counts['held_out']} about validation and test tasks"] if counts["held_out"] else []
    left_out += [f"{counts['bad_rows']} bad rows"] if counts["bad_rows"] else []
    without = f" (left out: {' and '.join(left_out)})" if left_out else ""
    run.summary = (
        f"{len(store)} dialogues on {counts['tasks']} tasks from {settings.sources.trajectories}{without}, success "
        f"{metrics['success']:.1%}, mean reward {metrics['reward']:.3f}, {metrics['turns']:.1f} turns"
    )


if __name__ == "__main__":
    stage_main(collect)
