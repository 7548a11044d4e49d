"""Run the pipeline of the current folder, as far as there is something to do: what `make run` and `sweetrl run` call.

Whether there is anything is found out before Prefect and MLflow are imported, which takes longer than the look itself.
What the command line says is checked before that.
"""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

from flows.console import command_line, parser, show_outcome, show_plan
from sweetrl.config.overrides import differences, parse_changes, profile_changes, with_changes
from sweetrl.config.yaml_files import read_yaml
from sweetrl.console.logs import QUIET
from sweetrl.console.printing import note
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


def main() -> int:
    """Run the pipeline of the current folder and print what came of it; 1 where a stage failed."""
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
    root = Path.cwd()

    def run() -> None:
        if given.quiet:
            os.environ[QUIET] = "1"
            logging.disable(logging.WARNING)
        selection = Selection(given.begin, given.until)
        for option, stage in (("--from", given.begin), ("--until", given.until)):
            check_stage(root, option, stage)
        before = read_yaml(root / "params.yaml") or {}
        changes = profile_changes(given.profile, root) if given.profile else {}
        tree = with_changes(before, changes, f"--profile {given.profile}")
        changes |= parse_changes(given.changes)
        tree = with_changes(tree, changes)
        if given.dry_run:
            show_plan(plan(root, selection, tree if changes else None), given.as_json)
            return
        if changes:
            with only_run(root):
                change_parameters(root, changes)
            for key, old, new in differences(before, tree):
                note(f"params.yaml: {key}: {old} -> {new}")
        show_outcome(run_here(root, selection), root / "reports/report.html", given.as_json)

    return command_line(run)


if __name__ == "__main__":
    sys.exit(main())
