"""Run the pipeline of the current folder, as far as there is something to do: what `make run` and `sweetrl run` call.

Whether there is anything is found out before Prefect and MLflow are imported, which takes longer than the look itself.
What the command line says is checked before that.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

from flows.console import program, show_all, show_outcome, show_plan
from sweetrl.cli import options as opt
from sweetrl.config.overrides import differences, parse_changes, profile_changes, with_changes
from sweetrl.config.settings import load_settings, parse_settings
from sweetrl.config.yaml_files import read_yaml
from sweetrl.console.logs import QUIET, quiet
from sweetrl.console.printing import note
from sweetrl.errors import UserError
from sweetrl.stages.parameters import own_sources
from tasks.pipeline import ALL, Selection, stage_environment
from tasks.training import Outcome, at_rest, check_stage, plan, unless_harmful
from tasks.workspace import change_parameters, only_run

FEW = 256  # dialogues that are sampled as quickly as checked


def run_here(root: Path, selection: Selection = ALL) -> Outcome:
    """Run what there is to do, as the flow `train`; where that is nothing, say so without it. Harm is an error."""
    note("looking at what has changed (DVC) ...")
    with only_run(root):
        outcome = at_rest(root, selection)
    if outcome is not None:
        return unless_harmful(outcome, outcome.harm)
    check_first(root, selection)
    note("loading Prefect and MLflow ...")
    from flows.train import train

    return train(str(root), begin=selection.begin, until=selection.until)


def check_first(root: Path, selection: Selection) -> None:
    """Before dialogues are sampled for long, let `sweetrl check` say what they would come to."""
    how = load_settings(root / "params.yaml").collect
    if how.source == "files" or how.tasks * how.attempts <= FEW:
        return
    if not any(stage.stage == "collect" and stage.would in ("run", "perhaps") for stage in plan(root, selection)):
        return
    command = [sys.executable, "-m", "sweetrl.cli", "check"]
    shown = subprocess.DEVNULL if quiet() else 2  # stdout is for the run's own result
    if subprocess.run(command, cwd=root, env=stage_environment(root), stdout=shown).returncode:
        raise UserError("nothing was run: put right first what `sweetrl check` says.")


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
    """Run the pipeline: every stage that has something to do; 1 where a stage failed, 3 where training did harm."""
    root, selection = Path.cwd(), Selection(begin or "", until or "")
    if quiet:
        os.environ[QUIET] = "1"
        logging.disable(logging.WARNING)
    check_stage(root, "--from", selection.begin)
    check_stage(root, "--until", selection.until)
    before = read_yaml(root / "params.yaml") or {}
    values = profile_changes(profile, root) if profile else {}
    tree = with_changes(before, values, f"--profile {profile}")
    values |= parse_changes(changes or ())
    tree = with_changes(tree, values)
    own_sources(parse_settings(tree, "params.yaml"))  # wrong options are reported before hours of work, not behind them
    if dry_run:
        show_plan(plan(root, selection, tree if values else None), as_json)
        return
    if values:
        with only_run(root):
            change_parameters(root, values)
        for key, old, new in differences(before, tree):
            note(f"params.yaml: {key}: {old} -> {new}")
    report = root / "reports/report.html"
    show_all(lambda: run_here(root, selection), lambda outcome: show_outcome(outcome, report, as_json))


if __name__ == "__main__":
    main()
