"""Run the pipeline of the current folder, as far as there is something to do: what `make run` and `sweetrl run` call.

Whether there is anything is found out before Prefect and MLflow are imported, which takes longer than the look itself.
What the command line says is checked before that.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path

from flows.console import command_line, parser, show_outcome, show_plan
from flows.display import Display
from sweetrl.config.overrides import differences, parse_changes, profile_changes, value_of, with_changes
from sweetrl.config.yaml_files import read_yaml
from sweetrl.console.logs import QUIET
from sweetrl.console.printing import note
from tasks.at_rest import at_rest
from tasks.pipeline import Selection
from tasks.plan import check_stage, check_startable, plan
from tasks.training import Outcome
from tasks.workspace import change_parameters, only_run


def run_here(
    root: Path,
    flow: Callable[..., Outcome] | None = None,
    selection: Selection | None = None,
    display: Display | None = None,
) -> Outcome:
    """Run what there is to do, as the flow `train` (or `flow`); where that is nothing, say so without it."""
    selection = selection or Selection()
    if display is not None:
        display.loading("looking at what has changed (DVC)")
    with only_run(root):
        check_startable(root, selection)
        found = at_rest(root, selection)
    if found is not None:
        return found
    if display is not None:
        display.loading("loading Prefect and MLflow")
    if flow is None:
        from flows.train import train

        flow = train
    if display is not None:
        display.attach()
        display.loading("starting the flow")
    chosen = {"begin": selection.begin or "", "until": selection.until or ""}
    return flow(str(root), **chosen)


def main(flow: Callable[..., Outcome] | None = None) -> int:
    """Run the pipeline of the current folder and print what came of it; 1 where a stage failed."""
    given = _arguments()
    root = Path.cwd()

    def run() -> None:
        selection = Selection(given.begin, given.until)
        for option, stage in (("--from", given.begin), ("--until", given.until)):
            check_stage(root, option, stage)
        before = read_yaml(root / "params.yaml") or {}
        changes = profile_changes(given.profile, root) if given.profile else {}
        wanted = with_changes(before, changes, f"--profile {given.profile}")
        changes |= parse_changes(given.changes)
        wanted = with_changes(wanted, changes)
        if given.dry_run:
            show_plan(plan(root, selection, wanted if changes else None), given.as_json)
            return
        if changes:
            with only_run(root):
                change_parameters(root, {key: value_of(wanted, key) for key in changes})
            for key, old, new in differences(before, wanted):
                note(f"params.yaml: {key}: {old} -> {new}")
        with Display(root) as display:
            outcome = run_here(root, flow, selection, display)
        show_outcome(outcome, root / "reports/report.html", given.as_json)

    return command_line(run)


def _arguments() -> argparse.Namespace:
    arguments = parser("run", "Run the pipeline: every stage that has something to do.")
    arguments.add_argument(
        "-n", "--dry-run", action="store_true", help="say which stages would run, and why; change nothing"
    )
    arguments.add_argument(
        "--set",
        action="append",
        default=[],
        dest="changes",
        metavar="KEY=VALUE",
        help="write it into params.yaml first",
    )
    arguments.add_argument("--profile", metavar="NAME", help="write the settings of reproduce/NAME/params.yaml first")
    arguments.add_argument("--from", dest="begin", metavar="STAGE", help="leave the stages before this one as they are")
    arguments.add_argument("--until", metavar="STAGE", help="stop after this stage")
    arguments.add_argument("--json", action="store_true", dest="as_json", help="print the result as JSON to stdout")
    arguments.add_argument("-q", "--quiet", action="store_true", help="print the result and errors only")
    given = arguments.parse_args()
    if given.quiet:
        os.environ[QUIET] = "1"
    return given


if __name__ == "__main__":
    sys.exit(main())
