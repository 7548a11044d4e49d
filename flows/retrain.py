"""Retrain on a new batch, beside whatever goes on in the main checkout; merge only what the gate promotes.

A scheduled run needs a new input: the batch begins behind the last one (`collect.first`), and is written down in the
params.yaml of its own branch `retrain/<time>-<id>`. The branch keeps dvc.lock, so that all of them can be restored.
What an earlier run has left unfinished is finished first, and then no new batch is taken (tasks/retraining.py).
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from prefect import flow

from flows.console import command_line, parser, show_outcome
from flows.spread import run_stage
from flows.train import announce_outcome
from sweetrl.config.overrides import parse_changes
from sweetrl.errors import UserError
from tasks import retraining
from tasks.retraining import Retraining
from tasks.steps import prefect_steps


@flow(name="retrain", validate_parameters=False)
def retrain(
    root: str = ".",
    changes: dict[str, Any] | None = None,
    merge_promoted: bool = True,
    push: bool = True,
    unfinished_only: bool = False,
) -> list[Retraining]:
    """Train on the next batch in a worktree of its own, or finish what was left; return what was done, in order.

    `changes` sets more parameters. Without `push` nothing leaves this machine; with `unfinished_only` no new batch is
    taken.
    """
    home, steps = Path(root).resolve(), prefect_steps(run_stage)
    if unfinished_only:
        done = retraining.go_on(home, steps)
    else:
        done = retraining.retrain(home, steps, changes, merge_promoted, push)
    for retrained in done:
        announce_outcome(retrained.outcome)
        steps.say(f"branch {retrained.branch}: {retrained.left or retrained.merged or 'nothing is merged'}")
    return done


def main() -> int:
    """Retrain the project in the current folder."""
    arguments = parser("retrain", "Train on the next batch in a git worktree of its own; merge it if it is promoted.")
    arguments.add_argument("changes", nargs="*", metavar="KEY=VALUE", help="more parameters to set for this run")
    arguments.add_argument("--no-merge", action="store_true", help="leave a promoted branch for people to merge")
    arguments.add_argument("--no-push", action="store_true", help="take the batch, and keep everything, here alone")
    rest = arguments.add_mutually_exclusive_group()
    rest.add_argument(
        "--continue", action="store_true", dest="go_on", help="only finish what earlier runs have left unfinished"
    )
    rest.add_argument("--withdraw", action="store_true", help="give up what earlier runs have left unfinished")
    given = arguments.parse_args()

    def run() -> None:
        changes = parse_changes(given.changes)
        if changes and (given.go_on or given.withdraw):
            raise UserError("what was left unfinished has its parameters already: leave KEY=VALUE out.")
        if given.withdraw:
            for sentence in retraining.withdraw(Path.cwd()):
                print(sentence)
            return
        done = retrain(".", changes, not given.no_merge, not given.no_push, given.go_on)
        for retrained in done:
            show_outcome(retrained.outcome)
            print(f"branch:  {retrained.branch}" + (f" ({retrained.merged})" if retrained.merged else ""))
            for item in retrained.pushed:
                print(f"pushed:  {item}")
            if retrained.left:
                print(f"left:    {retrained.left}")
        if not done:
            print("nothing was left unfinished" if given.go_on else "there is no new batch")

    return command_line(run)


if __name__ == "__main__":
    sys.exit(main())
