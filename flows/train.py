"""Train: every stage of dvc.yaml that has something to do, then registration and the promotion gate.

`python -m flows.run` (what `make run` and `sweetrl run` call) comes here only if there is something to do.
"""

from __future__ import annotations

from pathlib import Path

from prefect import flow
from prefect.logging import get_run_logger

from flows.spread import cluster_of_environment, spread
from sweetrl.config.settings import Settings
from sweetrl.stages.scratch import SPREAD
from sweetrl.tracking.registry import Registration
from tasks.pipeline import Selection, StageResult
from tasks.promotion import GateResult
from tasks.steps import gate, notify, promote_model, push_data, register_model, run_stage_task
from tasks.training import Outcome, Steps, run_pipeline
from tasks.workspace import only_run


@flow(name="train", validate_parameters=False)
def train(root: str = ".", home: str = "", begin: str = "", until: str = "") -> Outcome:
    """Bring the project at `root` up to date; `home` is the checkout with the embedded store, if that is another.

    With `begin` and `until`, names of stages, only those from the one to the other.
    """
    folder = Path(root).resolve()
    steps = prefect_steps()
    with only_run(folder):
        selection = Selection(begin or None, until or None)
        outcome = run_pipeline(folder, steps, Path(home).resolve() if home else folder, selection=selection)
    announce(outcome)
    return outcome


def prefect_steps() -> Steps:
    """Return the steps as Prefect tasks of the flow that is running."""

    def run(stage: str, root: Path, env: dict[str, str]) -> StageResult:
        cluster = cluster_of_environment()
        if cluster is not None and stage in SPREAD:
            spread(stage, root, cluster, env)
        return run_stage_task(stage)(stage, root, env)

    def register(settings: Settings, root: Path, parent: str | None, home: Path) -> Registration:
        return register_model(settings, root, parent, home)

    def stand(settings: Settings, root: Path, version: str) -> GateResult:
        return gate(settings, root, version)

    def crown(settings: Settings, root: Path, result: GateResult) -> GateResult:
        return promote_model(settings, root, result)

    def push(root: Path, branch: str | None) -> list[str]:
        return push_data(root, branch)

    return Steps(run, register, stand, crown, push=push, say=get_run_logger().info)


def announce(outcome: Outcome) -> None:
    """Tell the world about a new version and about a new champion."""
    if outcome.registration is not None and outcome.registration.created:
        notify("registered", outcome.registration.model, outcome.registration.version, {})
    if outcome.registration is not None and outcome.gate is not None and outcome.gate.promoted:
        payload = {"reason": outcome.gate.reason, "before": outcome.gate.before or ""}
        notify("promoted", outcome.registration.model, outcome.gate.version, payload)
