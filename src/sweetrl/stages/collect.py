"""Stage `collect`: k attempts of the base policy at a batch of training tasks, scored: all later training data."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sweetrl.settings import Settings, SimulatorSettings
from sweetrl.stages.common import publish, stage_main, stage_run

if TYPE_CHECKING:
    from sweetrl.colbench.simulators import Simulator
    from sweetrl.colbench.types import Task

TASKS = Path("data/tasks/train.parquet")
TRAJECTORIES = Path("data/trajectories")


def collect(settings: Settings) -> None:
    """Read the training tasks, write data/trajectories/. Finished shards survive a kill or a full disk."""
    from sweetrl.colbench.store import TrajectoryStore, read_task_table

    tasks = batch_of(read_task_table(TASKS), settings.collect.first, settings.collect.tasks)
    # A task's attempts stand side by side: their equal prompts are computed once.
    attempts = [(task, attempt) for task in tasks for attempt in range(settings.collect.attempts)]
    with stage_run("collect", settings) as run:
        from sweetrl.colbench.rewards import Scorer
        from sweetrl.engines.transformers import TransformersEngine
        from sweetrl.rollout.scored import Actors, rollout_scored, summarize
        from sweetrl.stages.meter import Meter

        base = Path(settings.model.base)
        run.log_input("train-tasks", TASKS)
        run.log_input("base", base)
        model = settings.model
        engine = TransformersEngine(model.base, None, model.dtype, model.device, model.threads, settings.collect.batch)
        store = TrajectoryStore(run.scratch(TASKS, base) / "shards")
        with Scorer(settings.reward) as scorer, Meter("collect", len(attempts), "dialogues") as meter:
            actors = Actors(
                engine,
                engine.chat,
                make_simulator(settings.simulator),
                scorer,
                settings.agent,
                settings.simulator.reply_characters,
            )
            rollout_scored(
                attempts,
                actors,
                store,
                seed=settings.seed,
                policy_name=model.base,
                batch=settings.collect.batch,
                shard=settings.collect.shard,
                progress=meter,
            )
        usage = engine.usage()
        engine.close()
        metrics = summarize(store.read())
        publish(store.folder, TRAJECTORIES)
        run.log_metrics(
            metrics
            | {
                "prompt_tokens": usage.prompt_tokens,
                "cached_tokens": usage.cached_tokens,
                "generated_tokens": usage.generated_tokens,
                "seconds_sampling": usage.seconds,
                "tokens_per_second": usage.generated_tokens / max(usage.seconds, 1e-9),
            }
        )
        run.summary = (
            f"{len(attempts)} dialogues on {len(tasks)} tasks, success {metrics['success']:.1%}, mean reward "
            f"{metrics['reward']:.3f}, {metrics['turns']:.1f} turns"
        )


def batch_of(tasks: list[Task], first: int, count: int) -> list[Task]:
    """Return `count` tasks from number `first` on (at most all), going on at the beginning behind the last one."""
    return [tasks[(first + offset) % len(tasks)] for offset in range(min(count, len(tasks)))]


def make_simulator(settings: SimulatorSettings) -> Simulator:
    """Return the person that the settings ask for."""
    from sweetrl.colbench.synthetic import ScriptedSimulator

    return ScriptedSimulator()


def main() -> None:
    """Run the stage with the parameters in params.yaml."""
    stage_main(collect)


if __name__ == "__main__":
    main()
