"""The steps of a flow as Prefect tasks. DVC owns caching, so Prefect's is off everywhere."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, cast

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.events import emit_event
from prefect.exceptions import TerminationSignal
from prefect.logging import get_run_logger
from prefect.states import Failed

from sweetrl.config.settings import Settings
from sweetrl.stages.registration import register_policy
from sweetrl.tracking.registry import ANNOUNCED, Registration, Registry, utc_now
from tasks.outages import stop_asking
from tasks.pipeline import StageFailed, StageResult, execute_stage, policy_of
from tasks.promotion import judge, take_over
from tasks.training import Steps, Unsettled
from tasks.workspace import push

Given = ParamSpec("Given")
Result = TypeVar("Result")


def step(name: str, action: Callable[..., Any], **options: Any) -> Any:
    """Return `action` as a Prefect task."""
    return task(name=name, cache_policy=NO_CACHE, **options)(action)


def run_stage(stage: str, root: Path, env: dict[str, str]) -> StageResult:
    """Bring one stage of dvc.yaml up to date in a subprocess, with the retries of its policy."""

    def run() -> StageResult:
        try:
            return execute_stage(root, stage, env, get_run_logger().info)
        except TerminationSignal:  # Prefect's own: while a flow runs, SIGTERM is caught by it
            stop_asking()
            raise

    retry = {"retries": policy_of(stage).retries, "retry_delay_seconds": 30, "retry_condition_fn": _worth_another_try}
    result: StageResult = step("run_stage", run, task_run_name=stage, **retry)()
    return result


def _worth_another_try(task: Any, run: Any, state: Any) -> bool:
    """Prefect's retry condition: not when the stage itself has reported what is wrong."""
    result = state.result(raise_on_failure=False)
    return not (isinstance(result, StageFailed) and result.explained)


def prefect_steps(run: Callable[[str, Path, dict[str, str]], StageResult] = run_stage) -> Steps:
    """Return the steps of a pipeline run as Prefect tasks of the flow that is running."""
    say = get_run_logger().info
    gate = step("gate", judge)
    return Steps(
        run=run,
        register=register,
        gate=lambda settings, root, version: gate(settings, root, version, say),
        promote=step("promote_model", take_over),
        push=step("push_data", push, retries=2, retry_delay_seconds=[10, 60]),
        say=say,
    )


def register(settings: Settings, root: Path, run: str | None, home: Path) -> Registration:
    """Register the policy, and send the event `registered` unless the version says that it was sent: none gets lost."""
    done: Registration = step("register_model", register_policy)(settings, root, run, home)
    if ANNOUNCED not in done.tags:
        announce("registered", "model", done.model, {"version": done.version})
        Registry(settings.tracking, root).tag(done.version, {ANNOUNCED: utc_now()})
    return done


def settled(function: Callable[Given, Result]) -> Callable[Given, Result]:
    """Return a flow's `function` that ends the flow in the failed state `Harm` or `Waiting` where it raises these."""

    @wraps(function)
    def run(*given: Given.args, **named: Given.kwargs) -> Result:
        try:
            return function(*given, **named)
        except Unsettled as error:
            state: Any = Failed(name=type(error).__name__, message=str(error), data=error)
            return cast(Result, state)

    return run


def announce(event: str, kind: str, name: str, payload: dict[str, Any]) -> None:
    """Emit the Prefect event sweetrl.<kind>.<event> about `name`, which deployments and automations can wait for."""
    resource = {"prefect.resource.id": f"sweetrl.{kind}.{name}", "prefect.resource.name": name}
    emit_event(event=f"sweetrl.{kind}.{event}", resource=resource, payload=payload)
    get_run_logger().info("sweetrl.%s.%s: %s %s", kind, event, name, payload)
