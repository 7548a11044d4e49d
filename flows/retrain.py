"""Retrain on a new batch, beside whatever goes on in the main checkout; merge only what the gate promotes.

A scheduled run needs a new input: the batch begins behind the last one (`collect.first`), and is written down in the
params.yaml of its own branch `retrain/<time>-<id>`. The branch keeps dvc.lock, so that all of them can be restored.
What an earlier run has left unfinished is finished first, and then no new batch is taken (tasks/retraining.py).
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from prefect import flow
from typer import Argument, Option

from flows.console import program, show_all, show_outcome
from flows.spread import run_stage
from flows.train import announce_outcome
from sweetrl.config.overrides import parse_changes
from sweetrl.config.settings import load_settings
from sweetrl.errors import UserError
from tasks import retraining
from tasks.retraining import Retraining
from tasks.steps import announce, prefect_steps, settled
from tasks.training import Waiting, unless_harmful


@flow(name="retrain", validate_parameters=False)
@settled
def retrain(
    root: str = ".",
    changes: dict[str, Any] | None = None,
    merge_promoted: bool = True,
    push: bool = True,
    unfinished_only: bool = False,
    past_waiting: bool = False,
) -> list[Retraining]:
    """Train on the next batch, or finish what was left; with `unfinished_only` no new batch is taken.

    `changes` sets more parameters; without `push` nothing leaves this machine. A new version that is worse than its
    base is the error `Harm`, one that has won and waits for a person `Waiting`, once all is done. No batch is taken
    while a version waits, unless `past_waiting` says so.
    """
    home, steps = Path(root).resolve(), replace(prefect_steps(run_stage), announce=announce_outcome)
    if unfinished_only:
        done = retraining.go_on(home, steps)
    else:
        done = retraining.retrain(home, steps, changes, merge_promoted, push, past_waiting)
    unless_harmful(done, "; ".join(filter(None, (retrained.outcome.harm for retrained in done))))
    if waiting := [retrained.left for retrained in done if retrained.left]:
        announce("waiting", "model", load_settings(home / "params.yaml").tracking.model, {"reason": "; ".join(waiting)})
        raise Waiting(f"{'; '.join(waiting)}; `--past-waiting` takes the next batch before.", done)
    return done


@program
def main(
    changes: Annotated[
        list[str] | None, Argument(metavar="KEY=VALUE", help="More parameters to set for this run.")
    ] = None,
    no_merge: Annotated[bool, Option("--no-merge", help="Leave a promoted branch for people to merge.")] = False,
    no_push: Annotated[bool, Option("--no-push", help="Take the batch, and keep everything, here alone.")] = False,
    go_on: Annotated[bool, Option("--continue", help="Only finish what earlier runs have left unfinished.")] = False,
    past: Annotated[bool, Option("--past-waiting", help="Take the next batch though a winner waits.")] = False,
    give_up: Annotated[bool, Option("--withdraw", help="Give up what earlier runs have left unfinished.")] = False,
) -> None:
    """Train on the next batch in a git worktree of its own; merge it if it is promoted."""
    values = parse_changes(changes or ())
    if bool(values) + go_on + give_up > 1:
        raise UserError("KEY=VALUE is for a new batch, --continue and --withdraw for what was left: give one of them.")
    if give_up:
        for sentence in retraining.withdraw(Path.cwd()):
            print(sentence)
        return
    show_all(
        lambda: retrain(".", values, not no_merge, not no_push, go_on, past), partial(show_retrainings, go_on=go_on)
    )


def show_retrainings(done: list[Retraining], go_on: bool) -> None:
    """Print what each retraining did; `go_on` says that no new batch was to be taken."""
    for retrained in done:
        show_outcome(retrained.outcome)
        print(f"branch:  {retrained.branch}" + (f" ({retrained.merged})" if retrained.merged else ""))
        for item in retrained.pushed:
            print(f"pushed:  {item}")
        if retrained.left:
            print(f"left:    {retrained.left}")
    if not done:
        print("nothing was left unfinished" if go_on else "there is no new batch")


if __name__ == "__main__":
    main()
