"""One policy on the held-out tasks: the part of a cell that follows its training, run in the cell's folder.

models/policy (none for methods without training: the base) -> reports/results.parquet.
"""

from __future__ import annotations

from pathlib import Path

from sweetrl.settings import Settings
from sweetrl.stages.common import stage_main, stage_run

OUT = Path("reports/results.parquet")


def evaluate(settings: Settings) -> None:
    """Attempt the first evaluate.tasks test tasks once each; finished shards survive a kill."""
    from sweetrl.colbench.store import TrajectoryStore, read_task_table
    from sweetrl.stages.evaluate import POLICY, TASKS, attempt

    tasks = read_task_table(TASKS)[: settings.evaluate.tasks]
    adapter = POLICY if (POLICY / "adapter_config.json").exists() else None
    with stage_run("evaluate", settings) as run:
        from sweetrl.evaluation.metrics import AFTER, result_of, summarize_policy, write_results
        from sweetrl.rollout.scene import scene
        from sweetrl.stages.meter import Meter

        run.log_input("test-tasks", TASKS)
        run.log_input("base", settings.model.base)
        if adapter is not None:
            run.log_input("policy", adapter)
        store = TrajectoryStore(run.scratch(TASKS, settings.model.base, *([adapter] if adapter else [])) / "dialogues")
        with (
            scene(settings) as (simulator, scorer),
            Meter("evaluate", len(tasks), "dialogues") as meter,
        ):
            attempt(tasks, adapter, AFTER, store, settings, simulator, scorer, meter)
        dialogues = list(store.read())
        results = [result_of(one, AFTER, settings.agent.rounds) for one in dialogues]
        write_results(OUT, results)
        ruler = settings.evaluate
        found = summarize_policy(results, ruler.confidence, ruler.resamples, settings.seed)
        turns = [turn for one in dialogues for turn in one.turns]
        run.log_metrics(
            {name: value["value"] for name, value in found.items() if isinstance(value, dict) and "value" in value}
            | {"reply_tokens": sum(len(turn.token_ids) for turn in turns) / max(1, len(turns))}
        )
        name, told = ("success", found["success"])
        if settings.suite == "frontend":
            name, told = f"mean reward ({settings.similarity.kind})", found["tests_passed"]
        run.summary = f"{len(results)} tasks, {name} {told['value']:.1%} [{told['low']:.1%}, {told['high']:.1%}]"


def main() -> None:
    """Run it with the parameters in params.yaml of the folder."""
    stage_main(evaluate)


if __name__ == "__main__":
    main()
