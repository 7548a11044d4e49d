"""Evaluate a registered version on the current held-out tasks, and store the result with it.

For comparing versions that were trained before the tasks, the number of turns or the scoring changed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

from prefect import flow
from prefect.logging import get_run_logger
from typer import Argument

from flows.console import program
from sweetrl.colbench.find import load_domain
from sweetrl.config.settings import load_settings
from sweetrl.console.printing import in_words
from sweetrl.evaluation.report import level
from sweetrl.evaluation.statistics import bootstrap_mean, wilson_interval
from sweetrl.tracking.registry import open_reference
from tasks.promotion import evaluate_version
from tasks.workspace import only_run


@flow(name="evaluate", validate_parameters=False)
def evaluate(reference: str = "@champion", root: str = ".") -> dict[str, float]:
    """Return task id -> reward of the version `reference`, MODEL[@ALIAS] or MODEL/VERSION."""
    folder, say = Path(root).resolve(), get_run_logger().info
    settings = load_settings(folder / "params.yaml")
    registry, alias = open_reference(reference, settings.tracking, folder)
    with only_run(folder):
        rewards = evaluate_version(settings, folder, registry, registry.get(alias), say)
    headline, labels = json.loads(registry.get(alias).tags["evaluation"]), load_domain(settings).shown_labels
    how, count = settings.evaluate, len(rewards)
    solved = wilson_interval(round(headline["success_after"] * count), count, how.confidence)
    reward = bootstrap_mean(list(rewards.values()), how.confidence, how.resamples, settings.seed)
    rates = {labels.success.lower(): solved.as_dict(), labels.reward.lower(): reward.as_dict()}
    sure = level({"confidence": how.confidence})
    say(f"{registry.name}@{alias}: {in_words(rates)} on {count} tasks ({sure} intervals)")
    return rewards


@program
def main(reference: Annotated[str, Argument(help="MODEL[@ALIAS] or MODEL/VERSION")] = "@champion") -> None:
    """Evaluate a registered version on the current held-out tasks."""
    evaluate(reference)


if __name__ == "__main__":
    main()
