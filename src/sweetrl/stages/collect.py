"""Stage `collect`: k attempts of the base policy at a batch of training tasks, scored: all later training data.

With `collect.source: files` they are dialogues that others have made (sweetrl.stages.import_dialogues).
"""

from __future__ import annotations

from pathlib import Path

from sweetrl.api import rollouts
from sweetrl.colbench.find import load_domain
from sweetrl.colbench.store import TrajectoryStore, read_task_table
from sweetrl.config.settings import Settings
from sweetrl.console.printing import in_words
from sweetrl.engines.policy import Policy
from sweetrl.evaluation.metrics import over_tasks
from sweetrl.io import publish
from sweetrl.paths import TEST_TASKS, TRAIN_TASKS, TRAJECTORIES, VALIDATION_TASKS
from sweetrl.rollout.run import batch_of
from sweetrl.rollout.scored import THOUGHTS, summarize, thought_counter
from sweetrl.stages.import_dialogues import Importer, import_dialogues, trajectory_files
from sweetrl.stages.rescoring import recorded, score_again
from sweetrl.stages.run import StageRun, stage_main, stage_run
from sweetrl.tracking.runs import log_dialogues


def collect(settings: Settings) -> None:
    """Read the training tasks or files, write data/trajectories/. Finished shards survive a kill or a full disk."""
    sampled = settings.collect.source == "sampled"
    with stage_run("collect", settings, torch=sampled) as run:
        store, origin, counts = sample(run) if sampled else take_files(run)
        if not run.share.is_all:
            return
        metrics = summarize(store, thought_counter(settings.model))
        means = over_tasks(store.outlines())
        rates = f"{in_words(means)}, with 95\u00a0% intervals over tasks" if means else "fewer than two tasks scored"
        log_dialogues(run.log, {"collect": store}, settings.tracking, settings.seed)
        publish(store.folder, TRAJECTORIES)
        run.log_metrics(metrics | counts)
        if sampled:
            run.log_costs(store.folder.parent)
        thoughts = f", {metrics[THOUGHTS]:.1f} tokens of thoughts a reply" if THOUGHTS in metrics else ""
        run.summary = f"{len(store)} dialogues on {origin}, {rates}; {metrics['turns']:.1f} turns{thoughts}"


def sample(run: StageRun) -> tuple[TrajectoryStore, str, dict[str, int]]:
    """Let the base policy attempt the tasks; return the dialogues, what they are about, and nothing to count.

    Where only the reward has changed, the recorded dialogues are scored again, and none is played.
    """
    settings = run.settings
    tasks = batch_of(read_task_table(TRAIN_TASKS), settings.collect.first, settings.collect.tasks)
    run.log_input("train-tasks", TRAIN_TASKS)
    run.log_input("base", settings.model.base)
    scratch = run.scratch()
    domain, store = load_domain(settings), TrajectoryStore(scratch / "shards")
    if earlier := recorded(run, scratch, TRAJECTORIES):
        score_again(run, domain, TrajectoryStore(earlier), store)
        return store, f"{len(tasks)} tasks", {}
    run.spread()
    policy = Policy(settings.model, settings.engine)
    rollouts.collect(domain, policy, tasks, out=store.folder, running=run.running(scratch))
    return store, f"{len(tasks)} tasks", {}


def take_files(run: StageRun) -> tuple[TrajectoryStore, str, dict[str, int]]:
    """Read the dialogues of `sources.trajectories` but for those about held-out tasks; return as `sample` does."""
    place = Path(run.settings.sources.trajectories)
    files = trajectory_files(place)
    run.log_input("trajectories", place)
    tasks = []
    for name, path in {"validation-tasks": VALIDATION_TASKS, "test-tasks": TEST_TASKS}.items():
        tasks += read_task_table(path)
        run.log_input(name, path)
    store = TrajectoryStore(run.scratch() / "shards")
    counts = import_dialogues(Importer(load_domain(run.settings), files, tasks), store, run.mine)
    left_out = [f"{counts['held_out']} about validation and test tasks"] if counts["held_out"] else []
    left_out += [f"{counts['bad_rows']} bad rows"] if counts["bad_rows"] else []
    without = f" (left out: {' and '.join(left_out)})" if left_out else ""
    return store, f"{counts['tasks']} tasks from {place}{without}", counts


if __name__ == "__main__":
    stage_main(collect)
