"""Train: every stage of dvc.yaml that has something to do, then registration and the promotion gate.

`python -m flows.run` (what `make run` and `sweetrl run` call) comes here only if there is something to do.
"""

from __future__ import annotations

from pathlib import Path

from prefect import flow

from flows.spread import run_stage
from tasks.pipeline import Selection
from tasks.steps import announce, prefect_steps, settled
from tasks.training import Outcome, run_pipeline, unless_harmful
from tasks.workspace import only_run


@flow(name="train", validate_parameters=False)
@settled
def train(root: str = ".", begin: str = "", until: str = "") -> Outcome:
    """Bring the project at `root` up to date; with names of stages only those from `begin` to `until`.

    The new version being worse than its base is the error `Harm`, once all is done.
    """
    folder = Path(root).resolve()
    with only_run(folder):
        outcome = run_pipeline(folder, prefect_steps(run_stage), selection=Selection(begin, until))
    announce_outcome(outcome)
    return unless_harmful(outcome, outcome.harm)


def announce_outcome(outcome: Outcome) -> None:
    """Tell the world about a new champion, or why the new version is none."""
    registration, gate = outcome.registration, outcome.gate
    if registration is not None and gate is not None and gate.promoted:
        payload = {"version": gate.version, "reason": gate.reason, "before": gate.before or ""}
        announce("promoted", "model", registration.model, payload)
    elif registration is not None and gate is not None and gate.decision is not None and not gate.won:
        payload = {"version": gate.version, "reason": gate.reason, "harm": outcome.harm}
        announce("refused", "model", registration.model, payload)
