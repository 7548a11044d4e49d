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
from sweetrl.tracking.registry import Registry, split_reference
from tasks.promotion import evaluate_version
from tasks.workspace import only_run


@flow(name="evaluate", validate_parameters=False)
def evaluate(reference: str = "@champion", root: str = ".") -> dict[str, float]:
    """Return task id -> reward of the version `reference`, MODEL[@ALIAS] or MODEL/VERSION."""
    folder, say = Path(root).resolve(), get_run_logger().info
    settings = load_settings(folder / "params.yaml")
    name, alias = split_reference(reference, settings.tracking.model)
    registry = Registry(settings.tracking.model_copy(update={"model": name}), folder)
    with only_run(folder):
        rewards = evaluate_version(settings, folder, registry, registry.get(alias), say)
    headline, labels = json.loads(registry.get(alias).tags["evaluation"]), load_domain(settings).shown_labels
    success = f"{labels.success.lower()} {headline['success_after']:.1%}"
    say(f"{name}@{alias}: {success}, {labels.reward.lower()} {headline['reward_after']:.1%} on {len(rewards)} tasks")
    return rewards


@program
def main(reference: Annotated[str, Argument(help="MODEL[@ALIAS] or MODEL/VERSION")] = "@champion") -> None:
    """Evaluate a registered version on the current held-out tasks."""
    evaluate(reference)


if __name__ == "__main__":
    main()
