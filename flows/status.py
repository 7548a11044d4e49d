"""Status: what somebody who is called at night has to know, as a table, and for Prometheus."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict
from datetime import datetime
from pathlib import Path

from flows.console import program
from sweetrl.cli import options as opt
from sweetrl.cli.check import GIB
from sweetrl.config.settings import load_settings
from sweetrl.console.printing import print_json, print_table
from sweetrl.io import write_text
from tasks.status import STATES, ProjectStatus, project_status, seconds_since


@program
def main(prometheus: opt.Prometheus = None, as_json: opt.Json = False) -> int:
    """Say how the project stands: retrainings, champion, winners that wait, servers, disk, and what to do now."""
    for name, value in (("MAX_RETRIES", "1"), ("TIMEOUT", "5")):  # who is called at night does not wait
        os.environ.setdefault(f"MLFLOW_HTTP_REQUEST_{name}", value)
    status = project_status(load_settings(), Path.cwd())
    to_do = status.to_do()
    if prometheus is not None:
        write_text(prometheus, metrics(status), shared=True)
        return 0
    if as_json:
        print_json(asdict(status) | {"to_do": [sentence for _, sentence in to_do]})
    else:
        # Winners that wait stand first, and harm, unless another retraining has come behind it.
        red = [*status.in_state("waiting"), *([status.harmful] if status.harmful else [])]
        urgent = [(each.state, f"{each.branch}, {_ago(each.since)}: {each.reason}") for each in red]
        rows = [*urgent, *_rows(status), *(("what to do", sentence) for _, sentence in to_do or [(0, "nothing")])]
        print_table(f"status of {status.model}", (), rows, red=len(urgent))
    return to_do[0][0] if to_do else 0


def _rows(status: ProjectStatus) -> Iterator[tuple[str, str]]:
    success, last, champion = status.last_success, status.last, status.champion
    yield (
        "last success",
        f"{success.branch} ({success.state}), {_ago(success.since)}" if success else "no retraining yet",
    )
    if last is not None:
        why = f": {last.reason}" if last.reason else ""
        yield "last retraining", f"{last.branch} {last.state}, {_ago(last.since)}{why}"
    if status.night is not None:
        yield "last `nightly`", f"{status.night.state}, {_ago(status.night.ended)}: {status.night.message}"
    for each in status.in_state("failed", "killed"):
        if each is not last:
            yield each.state, f"{each.branch}, {_ago(each.since)}: {each.reason}"
    if any(check.status == "fail" and check.name.startswith("mlflow") for check in status.servers):
        yield "champion", "not known: MLflow does not answer"
    else:
        yield "champion", f"version {champion.version}, {_ago(champion.time)}" if champion else "none yet"
    yield "disk", f"{status.disk_free / GIB:.1f} GiB free"
    for check in status.servers:
        yield check.name, ("does not answer: " if check.status == "fail" else "") + check.seen


def _ago(moment: str) -> str:
    hours = seconds_since(moment) / 3600
    if not moment:
        return "since when is not recorded"
    return f"{hours / 24:.0f} days ago" if hours > 48 else f"{hours:.0f} hours ago" if hours > 2 else moment


def metrics(status: ProjectStatus) -> str:
    """Return the status in Prometheus's text format."""
    from prometheus_client import CollectorRegistry, Enum, Gauge, generate_latest

    registry = CollectorRegistry()

    def gauge(name: str, text: str, value: float, **labels: str) -> None:
        names = {"model": status.model} | labels
        metric = gauges.get(name) or Gauge(f"sweetrl_{name}", text, [*names], registry=registry)
        gauges[name] = metric
        metric.labels(**names).set(value)

    gauges: dict[str, Gauge] = {}
    if status.last_success is not None:
        moment = datetime.fromisoformat(status.last_success.since).timestamp()
        gauge("last_success_timestamp_seconds", "When the last retraining came to its end.", moment)
    if status.last is not None:
        state = Enum("sweetrl_retraining", "State of the last retraining.", ["model"], registry=registry, states=STATES)
        state.labels(model=status.model).state(status.last.state)
    if status.champion is not None:
        age = seconds_since(status.champion.time)
        gauge("champion_age_seconds", "Since when the champion is champion.", age, version=status.champion.version)
    unfinished = len(status.in_state("failed", "killed"))
    gauge("waiting_winners", "Versions that have won and wait for a person.", len(status.in_state("waiting")))
    gauge("unfinished_retrainings", "Retrainings that have failed or were killed.", unfinished)
    gauge("things_to_do", "What a person has to do now, as `sweetrl status` says it.", len(status.to_do()))
    gauge("disk_free_bytes", "Free space on the project's disk.", status.disk_free)
    for check in status.servers:
        gauge(
            "server_up",
            "Whether a server answers; one that is embedded does.",
            check.status != "fail",
            server=check.name.split()[0],
        )
    return generate_latest(registry).decode()


if __name__ == "__main__":
    main()
