"""Dialogues as MLflow traces: a sample of them, turn by turn, to be read in MLflow's own pages."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from sweetrl.colbench.store import TrajectoryStore
from sweetrl.seeds import trace_draw
from sweetrl.settings import Settings
from sweetrl.tracking.runs import RunLog
from sweetrl.tracking.store import Store
from sweetrl.types import Trajectory


def log_dialogues(log: RunLog, stores: Mapping[str, TrajectoryStore], settings: Settings) -> int:
    """Log the sampled share `tracking.traces` of the dialogues in `stores` (by policy) to the run; return how many.

    The sample follows from seed, task and attempt: both policies of an evaluation are traced on the same tasks.
    """
    share = settings.tracking.traces
    if share <= 0.0 or not log.enabled:
        return 0
    chosen = {
        policy: [
            place
            for place, one in enumerate(store.outlines())
            if trace_draw(settings.seed, one.task.id, one.attempt) < share
        ]
        for policy, store in stores.items()
    }
    if any(chosen.values()):
        log.use(lambda store, run_id: _log_all(store, run_id, stores, chosen))
    return sum(map(len, chosen.values()))


def _log_all(
    store: Store, run_id: str, stores: Mapping[str, TrajectoryStore], chosen: Mapping[str, Sequence[int]]
) -> None:
    import mlflow

    for policy, places in chosen.items():
        for one in stores[policy].pick(places):
            _log(store, run_id, policy, one)
    mlflow.flush_trace_async_logging()


def _log(store: Store, run_id: str, policy: str, one: Trajectory) -> None:
    """Write one dialogue as one trace: a span for each agent turn, verdict and cause on the root."""
    client = store.client
    attributes: dict[str, Any] = {
        "sweetrl.policy": one.policy or policy,
        "sweetrl.simulator": one.simulator,
        "sweetrl.attempt": one.attempt,
        "sweetrl.outcome": one.outcome,
        **{f"sweetrl.{key}": value for key, value in one.extra.items()},
    }
    if one.reward is not None:
        attributes["sweetrl.reward"] = one.reward
    # The moments are those of logging: dialogues are not timed, so that equal runs give equal files.
    now = time.time_ns()
    root: Any = client.start_trace(
        name=f"{policy} {one.task.id}",
        span_type="AGENT",
        inputs={"request": one.task.problem_description},
        attributes=attributes,
        tags={"sweetrl.task": one.task.id, "sweetrl.policy": policy, "sweetrl.outcome": one.outcome},
        experiment_id=store.experiment_id,
        start_time_ns=now,
        run_id=run_id,
    )
    for number, turn in enumerate(one.turns, start=1):
        span = client.start_span(
            name=f"turn {number}",
            trace_id=root.trace_id,
            parent_id=root.span_id,
            span_type="CHAT_MODEL",
            inputs={"user": one.messages[turn.message_index - 1].content},
            attributes={"sweetrl.tokens": len(turn.token_ids), "sweetrl.finish_reason": turn.finish_reason},
            start_time_ns=now + number,
        )
        client.end_span(root.trace_id, span.span_id, outputs={"agent": turn.raw}, end_time_ns=now + number + 1)
    client.end_trace(
        root.trace_id,
        outputs={"answer": one.answer, "error": one.error},
        status="ERROR" if one.outcome == "lost" else "OK",
        end_time_ns=now + len(one.turns) + 2,
    )
