"""One policy on the held-out tasks: the part of a variant that follows its training, run in the variant's folder.

models/policy (none for methods without training: the base) -> reports/results.parquet.
"""

from __future__ import annotations

from pathlib import Path

from sweetrl.paths import POLICY, RESULTS, TEST_TASKS
from sweetrl.plugins import load_domain, load_method
from sweetrl.running.stage import stage_main, stage_run
from sweetrl.settings import Settings


def evaluate(settings: Settings) -> None:
    """Attempt the first evaluate.tasks test tasks once each; finished shards survive a kill."""
    from sweetrl.colbench.store import TrajectoryStore, read_task_table

    settings = load_method(settings).at_evaluation(settings)
    tasks = read_task_table(TEST_TASKS)[: settings.evaluate.tasks]
    adapter = POLICY if (POLICY / "adapter_config.json").exists() else None
    with stage_run("evaluate", settings) as run:
        from sweetrl.api import rollouts
        from sweetrl.api.policy import Policy
        from sweetrl.evaluation.metrics import AFTER, write_results

        run.log_input("test-tasks", TEST_TASKS)
        run.log_input("base", settings.model.base)
        if adapter is not None:
            run.log_input("policy", adapter)
        scratch = run.scratch(TEST_TASKS, Path(settings.model.base), *([adapter] if adapter else []))
        domain, stores = load_domain(settings), {AFTER: TrajectoryStore(scratch / "dialogues")}
        with rollouts.attempted(domain, {AFTER: Policy.of(settings, adapter)}, tasks, stores) as environment:
            found = rollouts.summarise(domain, stores, environment)
        write_results(RESULTS, found.results)
        summary = found.summaries[AFTER]
        turns = [turn for one in found.dialogues[AFTER] for turn in one.turns]
        run.log_metrics(
            {name: value["value"] for name, value in summary.items()}
            | {"reply_tokens": sum(len(turn.token_ids) for turn in turns) / max(1, len(turns))}
        )
        told = summary["success" if domain.measure == "success" else "reward"]
        label = domain.shown_labels.success if domain.measure == "success" else domain.shown_labels.reward
        run.summary = (
            f"{len(found.results)} tasks, {label[:1].lower()}{label[1:]} {told['value']:.1%} "
            f"[{told['low']:.1%}, {told['high']:.1%}]"
        )


def main() -> None:
    """Run it with the parameters in params.yaml of the folder."""
    stage_main(evaluate)


if __name__ == "__main__":
    main()
