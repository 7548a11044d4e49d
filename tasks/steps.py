"""The Prefect tasks. DVC owns caching, so Prefect's is off everywhere; unit-test them through `task.fn()`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.events import emit_event
from prefect.exceptions import TerminationSignal
from prefect.logging import get_run_logger

from sweetrl.config.settings import Settings
from sweetrl.stages.registration import register_policy
from sweetrl.tracking.registry import Registration
from tasks import ingestion, workspace
from tasks.outages import stop_asking
from tasks.pipeline import StageFailed, StageResult, execute_stage, policy_of
from tasks.promotion import GateResult, judge, take_over


def _worth_another_try(task: Any, run: Any, state: Any) -> bool:
    """Prefect's retry condition: not when the stage itself has said what is wrong."""
    result = state.result(raise_on_failure=False)
    return not (isinstance(result, StageFailed) and result.told)


@task(name="run_stage", task_run_name="{stage}", cache_policy=NO_CACHE)
def run_stage(stage: str, root: Path, env: dict[str, str]) -> StageResult:
    """Bring one stage of dvc.yaml up to date in a subprocess."""
    try:
        return execute_stage(root, stage, env, get_run_logger().info)
    except TerminationSignal:  # Prefect's own: while a flow runs, SIGTERM is caught by it
        stop_asking()
        raise


def run_stage_task(stage: str) -> Any:
    """Return the `run_stage` task with the retries and tags of the stage's policy."""
    policy = policy_of(stage)
    return run_stage.with_options(
        retries=policy.retries,
        retry_delay_seconds=policy.retry_seconds,
        retry_condition_fn=_worth_another_try,
        tags={f"stage:{stage}", *policy.tags},
    )


@task(name="register_model", cache_policy=NO_CACHE)
def register_model(settings: Settings, root: Path, parent_run: str | None, home: Path) -> Registration:
    """Register models/policy as the challenger, unless it is registered already."""
    return register_policy(settings, root, parent_run, home)


@task(name="gate", cache_policy=NO_CACHE)
def gate(settings: Settings, root: Path, version: str) -> GateResult:
    """Let a version stand against the champion; the alias stays where it is."""
    return judge(settings, root, version, get_run_logger().info)


@task(name="promote_model", cache_policy=NO_CACHE)
def promote_model(settings: Settings, root: Path, result: GateResult) -> GateResult:
    """Make the version that has won the champion."""
    return take_over(settings, root, result)


@task(name="push_data", cache_policy=NO_CACHE, retries=2, retry_delay_seconds=[10, 60])
def push_data(root: Path, branch: str | None) -> list[str]:
    """Push data to DVC's remote, then the branch to git's, where there are remotes."""
    return workspace.push(root, branch)


@task(name="notify", cache_policy=NO_CACHE)
def notify(event: str, model: str, version: str, payload: dict[str, Any]) -> None:
    """Emit the Prefect event sweetrl.model.<event>, which deployments and automations can be triggered by."""
    emit_event(
        event=f"sweetrl.model.{event}",
        resource={"prefect.resource.id": f"sweetrl.model.{model}", "prefect.resource.name": model},
        payload={"version": version, **payload},
    )
    get_run_logger().info("%s version %s: %s", model, version, event)


@task(name="ingest_files", cache_policy=NO_CACHE)
def ingest_files(home: Path, source: str, kind: str, again: bool, push: bool) -> ingestion.Ingested:
    """Make what is new in a source the next batch, where others can get it."""
    return ingestion.ingest(home, source, kind, again, push, get_run_logger().info)


@task(name="announce_data", cache_policy=NO_CACHE)
def announce_data(done: ingestion.Ingested) -> None:
    """Emit the Prefect event sweetrl.data.arrived, which the deployment `nightly` is triggered by."""
    kind = ingestion.kind_of(done.waiting)
    resource = {"prefect.resource.id": f"sweetrl.data.{kind}", "prefect.resource.name": kind}
    emit_event(event="sweetrl.data.arrived", resource=resource, payload={"batch": done.waiting})
    get_run_logger().info("%s waits for a retraining: sweetrl.data.arrived", done.waiting)
