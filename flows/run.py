"""Run the pipeline of the current folder, as far as there is something to do: what `make run` and `sweetrl run` call.

Whether there is anything is found out before Prefect and MLflow are imported, which takes longer than the look itself.
What the command line says is checked before that.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from flows.console import program, show_outcome, show_plan
from sweetrl.cli import options as opt
from sweetrl.config.overrides import differences, parse_changes, profile_changes, with_changes
from sweetrl.config.settings import parse_settings
from sweetrl.config.yaml_files import read_yaml
from sweetrl.console.logs import QUIET
from sweetrl.console.printing import note
from sweetrl.stages.parameters import own_sources
from tasks.pipeline import Selection
from tasks.training import Outcome, at_rest, check_stage, plan
from tasks.workspace import change_parameters, only_run


def run_here(root: Path, selection: Selection | None = None) -> Outcome:
    """Run what there is to do, as the flow `train`; where that is nothing, say so without it."""
    selection = selection or Selection()
    note("looking at what has changed (DVC) ...")
    with only_run(root):
        outcome = at_rest(root, selection)
    if outcome is not None:
        return outcome
    note("loading Prefect and MLflow ...")
    from flows.train import train

    return train(str(root), begin=selection.begin or "", until=selection.until or "")


@program
def main(
    dry_run: opt.DryRun = False,
    changes: opt.SetFirst = None,
    profile: opt.Profile = None,
    begin: opt.Begin = None,
    until: opt.Until = None,
    as_json: opt.Json = False,
    quiet: opt.Quiet = False,
) -> None:
    """Run the pipeline: every stage that has something to do; 1 where a stage failed."""
    root, selection = Path.cwd(), Selection(begin, until)
    if quiet:
        os.environ[QUIET] = "1"
        logging.disable(logging.WARNING)
    for option, stage in (("--from", begin), ("--until", until)):
        check_stage(root, option, stage)
    before = read_yaml(root / "params.yaml") or {}
    values = profile_changes(profile, root) if profile else {}
    tree = with_changes(before, values, f"--profile {profile}")
    values |= parse_changes(changes or ())
    tree = with_changes(tree, values)
    own_sources(parse_settings(tree, "params.yaml"))  # wrong options are said before hours of work, not behind them
    if dry_run:
        show_plan(plan(root, selection, tree if values else None), as_json)
        return
    if values:
        with only_run(root):
            change_parameters(root, values)
        for key, old, new in differences(before, tree):
            note(f"params.yaml: {key}: {old} -> {new}")
    show_outcome(run_here(root, selection), root / "reports/report.html", as_json)


if __name__ == "__main__":
    main()
