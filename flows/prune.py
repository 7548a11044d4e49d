"""Prune: what is old and rests on no version that stays goes: versions, runs, branches, data, flow runs.

tasks/pruning.py says what stays; `sweetrl prune` calls it, and the deployment `prune` does each week.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from prefect import flow
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import (
    DeploymentFilter,
    DeploymentFilterTags,
    FlowRunFilter,
    FlowRunFilterEndTime,
)
from prefect.client.schemas.objects import FlowRun
from prefect.logging import get_run_logger

from flows.console import program
from flows.deploy import origin
from sweetrl.cli import options as opt
from sweetrl.console.printing import print_json, print_table
from tasks.pruning import Item, Plan, in_mib
from tasks.pruning import prune as prune_project

PAGE = 200  # what Prefect's server hands out at once


@flow(name="prune", validate_parameters=False)
def prune(root: str = ".", keep: int = 5, days: float = 14, remote: bool = False, dry_run: bool = False) -> Plan:
    """Remove what the last `keep` champions and whatever else is in use do not need, if it is older than `days`.

    With `remote`, the remotes of git and DVC are pruned, too; with `dry_run` nothing is.
    """
    folder, say = Path(root).resolve(), get_run_logger().info
    plan = prune_project(folder, keep, days, remote, dry_run, say)
    with get_client(sync_client=True) as client:
        old = flow_runs(client, folder, days)
        for run in () if dry_run else old:
            client.delete_flow_run(run.id)
    if old and not dry_run:
        say(f"{len(old)} flow runs removed")
    return replace(plan, items=(*plan.items, *(Item("flow run", str(run.id), 0, list) for run in old)))


def flow_runs(client: SyncPrefectClient, root: Path, days: float) -> list[FlowRun]:
    """Return this project's flow runs that ended before `days`: at a server those of its deployments, else all."""
    ended = FlowRunFilter(end_time=FlowRunFilterEndTime(before_=datetime.now(UTC) - timedelta(days=days)))
    shared = bool(os.environ.get("PREFECT_API_URL"))
    own = DeploymentFilter(tags=DeploymentFilterTags(all_=[f"from:{origin(root)}"])) if shared else None
    runs: list[FlowRun] = []
    while page := client.read_flow_runs(flow_run_filter=ended, deployment_filter=own, limit=PAGE, offset=len(runs)):
        runs += page
    return runs


@program
def main(
    keep: opt.Keep = 5,
    days: opt.Days = 14,
    remote: opt.Remote = False,
    dry_run: opt.PruneDryRun = False,
    as_json: opt.Json = False,
) -> None:
    """Remove old versions, runs, branches, data and scratch folders that nothing in use rests on."""
    plan = prune(".", keep, days, remote, dry_run)
    if as_json:
        items = [{"kind": item.kind, "name": item.name, "bytes": item.size, "count": item.count} for item in plan.items]
        print_json({"removed": not dry_run, "bytes": plan.size, "items": items, "stays": dict(plan.stays)})
        return
    counts, sizes = Counter[str](), Counter[str]()
    for item in plan.items:
        counts[item.kind] += item.count
        sizes[item.kind] += item.size
    rows = [(kind, f"{count:,}", in_mib(sizes[kind])) for kind, count in counts.items()]
    if rows:
        print_table("would go" if dry_run else "removed", ("what", "how many", "size"), rows)
    else:
        print("there is nothing to prune")
    print_table("stays", ("what", "why"), plan.stays)


if __name__ == "__main__":
    main()
