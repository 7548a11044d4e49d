"""Dialogues as MLflow traces: a sample of them, turn by turn, to be read in MLflow's own pages."""

from __future__ import annotations

import heapq
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sweetrl.colbench.store import TrajectoryStore
from sweetrl.seeds import trace_draw
from sweetrl.settings import Settings
from sweetrl.tracking.runs import RunLog
from sweetrl.tracking.store import Store
from sweetrl.types import Trajectory

logger = logging.getLogger(__name__)

PEOPLE = ("", "human")  # users of imported dialogues, and those at a terminal
LONGEST_NAME = 200  # characters of a task's id; imported ones are as long as somebody has made them


def log_dialogues(log: RunLog, stores: Mapping[str, TrajectoryStore], settings: Settings) -> int:
    """Log `tracking.traces` dialogues of each of the `stores` (by policy) to the run; return how many were logged.

    Which ones follows from seed, task and attempt: both policies of an evaluation are traced on the same tasks.
    Dialogues with people are left out unless `tracking.traces_of_people` says that they may be shown.
    """
    tracking = settings.tracking
    if not tracking.traces or not log.enabled:
        return 0
    chosen = {
        policy: sorted(place for _, place in heapq.nsmallest(tracking.traces, _draws(store, settings.seed)))
        for policy, store in stores.items()
    }
    shown = [
        (policy, one)
        for policy, places in chosen.items()
        for one in stores[policy].pick(places)
        if one.simulator not in PEOPLE or tracking.traces_of_people
    ]
    if shown:
        log.use(lambda store, run_id: _log_all(store, run_id, shown))
    return len(shown)


def _draws(store: TrajectoryStore, seed: int) -> Iterator[tuple[float, int]]:
    for place, one in enumerate(store.outlines()):
        yield trace_draw(seed, one.task.id, one.attempt), place


def _log_all(store: Store, run_id: str, shown: Sequence[tuple[str, Trajectory]]) -> None:
    import mlflow

    logging.getLogger("mlflow.tracing").setLevel(logging.WARNING)  # it tells at the end of each program that it flushes
    try:
        for policy, one in shown:
            _log(store, run_id, policy, one)
        mlflow.flush_trace_async_logging()
    except Exception as error:  # traces are for reading: without them the run is recorded all the same
        logger.warning("MLflow: %s; dialogues of this run are not traced.", str(error).strip().split("\n")[0])


def _log(store: Store, run_id: str, policy: str, one: Trajectory) -> None:
    """Write one dialogue as one trace: a span for each agent turn, verdict and cause on the root."""
    client = store.client
    task = _plain(one.task.id)[:LONGEST_NAME]
    attributes: dict[str, Any] = {
        "sweetrl.policy": one.policy or policy,
        "sweetrl.simulator": one.simulator,
        "sweetrl.attempt": one.attempt,
        "sweetrl.outcome": one.outcome,
        **{f"sweetrl.{key}": _plain(value) for key, value in one.extra.items()},
    }
    if one.reward is not None:
        attributes["sweetrl.reward"] = one.reward
    # The moments are those of logging: dialogues are not timed, so that equal runs give equal files.
    now = time.time_ns()
    root: Any = client.start_trace(
        name=f"{policy} {task}",
        span_type="AGENT",
        inputs={"request": _plain(one.task.problem_description)},
        attributes=attributes,
        tags={"sweetrl.task": task, "sweetrl.policy": policy, "sweetrl.outcome": one.outcome},
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
            inputs={"user": _plain(one.messages[turn.message_index - 1].content)},
            attributes={"sweetrl.tokens": len(turn.token_ids), "sweetrl.finish_reason": turn.finish_reason},
            start_time_ns=now + number,
        )
        client.end_span(root.trace_id, span.span_id, outputs={"agent": _plain(turn.raw)}, end_time_ns=now + number + 1)
    client.end_trace(
        root.trace_id,
        outputs={"answer": _plain(one.answer or ""), "error": _plain(one.error)},
        status="ERROR" if one.outcome == "lost" else "OK",
        end_time_ns=now + len(one.turns) + 2,
    )


def _plain(text: str) -> str:
    """Text that is only shown: MLflow's pages read Markdown, whose pictures they load from wherever a dialogue says.

    A zero-width space takes a picture's mark apart. NUL characters are replaced: PostgreSQL takes them nowhere.
    """
    return text.replace("\0", "\ufffd").replace("![", "!\u200b[")
