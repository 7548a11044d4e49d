"""Stage `collect`: k attempts of the base policy at a batch of training tasks, scored: all later training data."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweetrl.settings import Settings
from sweetrl.stages.common import publish, stage_main, stage_run
from sweetrl.tracking.traces import log_dialogues

if TYPE_CHECKING:
    from sweetrl.colbench.types import Task
    from sweetrl.engines.base import Usage
    from sweetrl.stages.common import StageRun

TASKS = Path("data/tasks/train.parquet")
TRAJECTORIES = Path("data/trajectories")


def collect(settings: Settings) -> None:
    """Read the training tasks, write data/trajectories/. Finished shards survive a kill or a full disk."""
    from sweetrl.colbench.store import TrajectoryStore, read_task_table

    tasks = batch_of(read_task_table(TASKS), settings.collect.first, settings.collect.tasks)
    # A task's attempts stand side by side: their equal prompts are computed once.
    attempts = [(task, attempt) for task in tasks for attempt in range(settings.collect.attempts)]
    with stage_run("collect", settings) as run:
        from sweetrl.engines.make import make_agent, serving
        from sweetrl.rollout.ledger import Ledger
        from sweetrl.rollout.people import usage_of
        from sweetrl.rollout.scene import scene
        from sweetrl.rollout.scored import Actors, rollout_scored, summarize
        from sweetrl.stages.meter import Meter

        base = Path(settings.model.base)
        run.log_input("train-tasks", TASKS)
        run.log_input("base", base)
        scratch = run.scratch(TASKS, base)
        store = TrajectoryStore(scratch / "shards")
        ledger = Ledger(scratch / f"costs{run.share.suffix}.jsonl")
        with (
            serving(settings.engine, settings.model, scratch / f"server{run.share.suffix}.log") as engine,
            scene(settings) as (simulator, scorer),
            Meter("collect", len(attempts), "dialogues") as meter,
        ):
            agent = make_agent(engine, settings.model, None, settings.collect.batch)
            actors = Actors(
                agent.engine,
                agent.chat,
                simulator,
                scorer,
                settings.agent,
                settings.simulator.characters(settings.suite),
            )
            try:
                rollout_scored(
                    attempts,
                    actors,
                    store,
                    seed=settings.seed,
                    policy_name=policy_name(settings),
                    batch=settings.collect.batch,
                    shard=settings.collect.shard,
                    progress=meter,
                    lost_share=settings.collect.lost_share,
                    ledger=ledger,
                    mine=run.mine,
                )
            finally:
                usage, heard = agent.engine.usage(), usage_of(simulator)
                run.log_metrics(cost(usage) | cost(heard, "simulator/"))
                agent.engine.close()
        if not run.share.whole:
            return
        metrics = summarize(store.read())
        log_dialogues(run.log, {"collect": store}, settings)
        publish(store.folder, TRAJECTORIES)
        run.log_metrics(metrics)
        log_costs(run, scratch, "costs*.jsonl")
        run.summary = (
            f"{len(attempts)} dialogues on {len(tasks)} tasks, success {metrics['success']:.1%}, mean reward "
            f"{metrics['reward']:.3f}, {metrics['turns']:.1f} turns"
        )


def batch_of(tasks: list[Task], first: int, count: int) -> list[Task]:
    """Return `count` tasks from number `first` on (at most all), going on at the beginning behind the last one."""
    return [tasks[(first + offset) % len(tasks)] for offset in range(min(count, len(tasks)))]


def policy_name(settings: Settings) -> str:
    """Return what trajectories call the agent that collects: the base model, or the model at a server of text."""
    return settings.engine.model if settings.engine.kind == "openai" else settings.model.base


def cost(usage: Usage | None, prefix: str = "") -> dict[str, float]:
    """Return the metrics of what an engine has spent; nothing where nobody counts."""
    if usage is None:
        return {}
    metrics: dict[str, Any] = {
        "prompt_tokens": usage.prompt_tokens,
        "cached_tokens": usage.cached_tokens,
        "generated_tokens": usage.generated_tokens,
        "seconds_sampling": usage.seconds,
        "gpu_seconds": usage.gpu_seconds,
        "tokens_per_second": usage.generated_tokens / max(usage.seconds, 1e-9),
    }
    if usage.requests:
        metrics |= {"requests": usage.requests, "retries": usage.retries, "failed_requests": usage.failures}
    return {f"{prefix}{name}": float(value) for name, value in metrics.items()}


def log_costs(run: StageRun, folder: Path, pattern: str, suffix: str = "") -> None:
    """Log what the dialogues in the ledgers `pattern` cost: sums, means and percentiles, and a line for each in a file.

    The sums take the place of what this process alone has spent: others may have made shares, or been killed before.
    """
    from sweetrl.rollout.ledger import Ledger, cost_metrics, cost_totals

    paths = sorted(folder.glob(pattern))
    costs = [one for path in paths for one in Ledger(path).read()]
    metrics = cost_totals(costs) | cost_metrics(costs)
    run.log_metrics({f"{name}{suffix}": value for name, value in metrics.items()})
    for path in paths:
        run.log_artifact(path, "costs")


def main() -> None:
    """Run the stage with the parameters in params.yaml."""
    stage_main(collect)


if __name__ == "__main__":
    main()
