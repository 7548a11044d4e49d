"""Retrain on a new batch, beside whatever goes on in the main checkout; merge only what the gate promotes.

A scheduled run needs a new input: the batch begins behind the last one (`collect.first`), and is written down in the
params.yaml of its own branch `retrain/<time>`. The branch keeps dvc.lock, so that every retraining can be restored.
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prefect import flow
from prefect.logging import get_run_logger

from flows.arguments import parameter_changes, parser
from flows.console import command_line, show_outcome
from flows.train import announce, prefect_steps
from sweetrl.settings import Settings, load_settings
from sweetrl.tracking.store import connect, tracking_uri
from tasks.steps import push_data
from tasks.training import Outcome, run_pipeline
from tasks.workspace import change_parameters, commit_records, git, merge, worktree


@dataclass(frozen=True)
class Retraining:
    """What a retraining did: its branch, its pipeline run, what was pushed, and how the branch was taken over."""

    branch: str
    outcome: Outcome
    pushed: tuple[str, ...] = ()
    merged: str = ""


@flow(name="retrain", validate_parameters=False)
def retrain(
    root: str = ".", changes: dict[str, Any] | None = None, batch: str = "", merge_promoted: bool = True
) -> Retraining:
    """Train on the next batch in a worktree of its own; `changes` sets more parameters, `batch` names the branch."""
    home = Path(root).resolve()
    settings = load_settings(home / "params.yaml")
    branch = f"retrain/{batch or time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}"
    connect(settings.tracking, home)  # the experiment's artifacts belong to the main checkout
    # The worktree's stages, and this process, record in the main checkout's store.
    os.environ["MLFLOW_TRACKING_URI"] = tracking_uri(settings.tracking, home)
    with worktree(home, branch) as tree:
        change_parameters(tree.root, next_batch(home, settings) | (changes or {}))
        steps = prefect_steps(before_register=lambda folder: record(folder, branch))
        outcome = run_pipeline(tree.root, steps, home)
        pushed = push_data(tree.root, branch)
    announce(outcome)
    promoted = outcome.gate is not None and outcome.gate.promoted
    merged = merge(home, branch) if promoted and merge_promoted else ""
    if not promoted:
        get_run_logger().info("not promoted: branch %s keeps the run, nothing is merged", branch)
    return Retraining(branch, outcome, tuple(pushed), merged)


def next_batch(home: Path, settings: Settings) -> dict[str, Any]:
    """Return the parameter that makes the batch new: it begins behind the last one that any branch has collected."""
    begun = [settings.collect.first]
    branches = git(home, "for-each-ref", "--format=%(refname:short)", "refs/heads/retrain").stdout.split()
    for branch in branches:
        shown = git(home, "show", f"{branch}:params.yaml", check=False)
        if not shown.returncode:
            begun.append(_first(shown.stdout))
    return {"collect.first": max(begun) + settings.collect.tasks}


def _first(text: str) -> int:
    import yaml

    found = yaml.safe_load(text) or {}
    return int((found.get("collect") or {}).get("first", 0))


def record(folder: Path, branch: str) -> str:
    """Commit dvc.lock and params.yaml on the branch, before the version is registered with that commit."""
    return commit_records(folder, f"Retrain on the batch of {branch.partition('/')[2]}")


def main() -> int:
    """Retrain the project in the current folder."""
    arguments = parser("retrain", "Train on the next batch in a git worktree of its own; merge it if it is promoted.")
    arguments.add_argument("changes", nargs="*", metavar="KEY=VALUE", help="more parameters to set for this run")
    arguments.add_argument("--no-merge", action="store_true", help="leave a promoted branch for people to merge")
    given = arguments.parse_args()

    def run() -> None:
        root = Path.cwd()
        done = retrain(str(root), parameter_changes(given.changes), merge_promoted=not given.no_merge)
        show_outcome(done.outcome)
        print(f"branch:  {done.branch}" + (f" ({done.merged})" if done.merged else ""))
        for item in done.pushed:
            print(f"pushed:  {item}")

    return command_line(run)


if __name__ == "__main__":
    sys.exit(main())
