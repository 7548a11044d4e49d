"""What a person who is called at night has to know of a project: from the journals, the registry and the disk.

Nothing is written. What does not answer is named, and the rest is there all the same.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, TypeVar, get_args

from sweetrl.cli.check import GIB, Check
from sweetrl.cli.doctor import services
from sweetrl.config.settings import Settings
from sweetrl.errors import UserError
from sweetrl.tracking.registry import CHALLENGER, GATE, Promotion, answering, open_reference
from sweetrl.tracking.store import embedded_database, tracking_enabled
from tasks.journal import DONE, Record, recorded
from tasks.outages import outage
from tasks.retraining import CONTINUE, WITHDRAW
from tasks.training import Harm, Waiting

State = Literal["promoted", "refused", "harm", "waiting", "failed", "killed", "running", "withdrawn"]
STATES: tuple[State, ...] = get_args(State)
LITTLE_SPACE = 5 * GIB
Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Attempt:
    """What became of a retraining: since when it is in its state, why, and which version it has registered."""

    branch: str
    state: State
    since: str
    reason: str = ""
    version: str = ""


@dataclass(frozen=True)
class Night:
    """How the last run of the deployment `nightly` ended, as Prefect's server has it."""

    state: str
    ended: str
    message: str
    failed: bool


@dataclass(frozen=True)
class ProjectStatus:
    """A project as it stands: retrainings of this checkout, oldest first, the champion, servers and disk.

    `winner` is a version that has won in a run without a journal, and is not champion yet. Of champion and winner
    nothing is known where MLflow does not answer.
    """

    model: str
    retrainings: tuple[Attempt, ...]
    champion: Promotion | None
    winner: str
    servers: tuple[Check, ...]
    night: Night | None
    disk_free: int

    @property
    def last(self) -> Attempt | None:
        """The retraining that began last."""
        return self.retrainings[-1] if self.retrainings else None

    @property
    def last_success(self) -> Attempt | None:
        """The last retraining that came to its end, whether its version has won or not."""
        return next((each for each in reversed(self.retrainings) if each.state in ("promoted", "refused")), None)

    @property
    def harmful(self) -> Attempt | None:
        """The last retraining, where its version is worse than its base and has not been accepted."""
        accepted = self.champion is not None and self.last is not None and self.champion.version == self.last.version
        return self.last if self.last is not None and self.last.state == "harm" and not accepted else None

    def in_state(self, *states: State) -> list[Attempt]:
        """Return the retrainings in these states."""
        return [each for each in self.retrainings if each.state in states]

    def to_do(self) -> list[tuple[int, str]]:
        """Return what a person has to do now, the most urgent first: the exit status that it stands for, a sentence."""
        rows = [
            (Waiting.status, f"{each.reason.rstrip('.')}; then {CONTINUE}, or {WITHDRAW}")
            for each in self.in_state("waiting")
        ]
        if self.harmful is not None:
            version = f"{self.model}/{self.harmful.version}"
            accept = f"`python -m flows.promote {version} --accept REASON` takes it all the same"
            rows.append((Harm.status, f"find out why {version} is worse than its base; {accept}"))
        for each in self.in_state("failed", "killed"):
            rows.append((1, f"mend what ended {each.branch}, then {CONTINUE}, or {WITHDRAW}"))
        since = self.last.since if self.last is not None else ""
        if not rows and self.night is not None and self.night.failed and self.night.ended > since:
            rows.append((1, f"mend what ended the last `nightly` ({self.night.state}): {self.night.message}"))
        if self.winner:
            rows.append((1, f"`python -m flows.promote {self.model}/{self.winner}`: it has won and is not champion"))
        rows += [(1, f"{check.name}: {check.advice}") for check in self.servers if check.status == "fail"]
        if self.disk_free < LITTLE_SPACE:
            rows.append((1, "make room on the disk (`sweetrl prune --dry-run`)"))
        return rows


def project_status(settings: Settings, root: Path) -> ProjectStatus:
    """Look at the project at `root`."""
    name, retrainings, servers = settings.tracking.model, tuple(_attempts(root)), list(services())

    def ask(server: str, question: Callable[[], Answer], otherwise: Answer) -> Answer:
        """Return the answer of a server; one that does not answer fails its check."""
        (place,) = (place for place, check in enumerate(servers) if check.name.startswith(server))
        if servers[place].status == "fail":
            return otherwise
        try:
            return question()
        except UserError as error:
            servers[place] = replace(servers[place], status="fail", advice=str(error))
            return otherwise

    unknown: tuple[Promotion | None, str] = (None, "")
    champion, winner = ask("mlflow", lambda: _versions(settings, root), unknown)
    night = ask("prefect", lambda: last_night(name), None)
    if any(each.version == winner for each in retrainings if each.state in ("waiting", "failed", "killed", "running")):
        winner = ""
    free = shutil.disk_usage(root).free
    return ProjectStatus(name, retrainings, champion, winner, tuple(servers), night, free)


def last_night(model: str) -> Night | None:
    """Ask Prefect's server for the last run of `nightly` that has ended; a server that refuses is a UserError.

    What fails before a batch is taken (params.yaml, a remote that is gone) has no journal.
    """
    if "PREFECT_API_URL" not in os.environ:
        return None
    from prefect.client.orchestration import get_client
    from prefect.client.schemas import filters
    from prefect.client.schemas.objects import TERMINAL_STATES
    from prefect.client.schemas.sorting import FlowRunSort

    ended = filters.FlowRunFilterStateType(any_=list(TERMINAL_STATES))
    nightly = filters.DeploymentFilterName(any_=[f"{model}.nightly"])
    try:
        with get_client(sync_client=True) as client:
            runs = client.read_flow_runs(
                flow_run_filter=filters.FlowRunFilter(state=filters.FlowRunFilterState(type=ended)),
                deployment_filter=filters.DeploymentFilter(name=nightly),
                sort=FlowRunSort.END_TIME_DESC,
                limit=1,
            )
    except Exception as error:
        if (sentence := outage(error)) is None:
            raise
        raise sentence from error
    if not runs or runs[0].state is None:
        return None
    state = runs[0].state
    moment = f"{state.timestamp.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"
    return Night(
        str(state.name), moment, str(state.message or ""), not state.is_completed() and not state.is_cancelled()
    )


def _attempts(root: Path) -> Iterator[Attempt]:
    with contextlib.suppress(UserError):  # in no repository there are no retrainings
        for record, at_work in recorded(root):
            if record.order.get("home") == str(root) and (record.last("taken") or not record.last(DONE)):
                yield _attempt(record, at_work)


def _attempt(record: Record, at_work: bool) -> Attempt:
    end, version, rows = record.last(DONE), record.last("registered").get("version", ""), record.rows
    reason, since, state = str(record.last("decided").get("reason", "")), rows[-1]["time"], rows[-1]["step"]
    if end:
        state = "promoted" if record.last("promoted") else "refused"
        if end.get("harm"):
            state, reason = "harm", end["harm"]
        elif "how" in end:
            state = end["how"]
    elif at_work:
        state = "running"
    elif state in ("waiting", "failed"):
        reason = rows[-1]["why"]
        if state == "waiting":
            reason = f"version {version} has won and waits: {reason}"
            since = next(row["time"] for row in rows if row["step"] == "waiting")
    else:
        state, reason = "killed", f"it ended behind the step `{state}`"
    return Attempt(record.branch, state, since, reason, version)


def _versions(settings: Settings, root: Path) -> tuple[Promotion | None, str]:
    """Return the champion, and a version whose promotion has been decided and has not happened."""
    database = embedded_database(settings.tracking, root)
    if not tracking_enabled() or (database is not None and not database.exists()):
        return None, ""
    registry, _ = open_reference("", settings.tracking, root)
    with answering(registry, "say who is champion"):
        challenger, history = registry.aliases().get(CHALLENGER, ""), registry.history()
        verdict = json.loads(registry.get(challenger).tags.get(GATE, "null") if challenger else "null")
    won = verdict is not None and verdict["promote"] and not verdict["promoted"]
    return (history[-1] if history else None), (challenger if won else "")


def seconds_since(moment: str) -> float:
    """Return how long ago a time of the journals or the registry (UTC) was; 0 where there is none."""
    return time.time() - datetime.fromisoformat(moment).timestamp() if moment else 0.0
