"""A pipeline run that has nothing to do: known from DVC's state and the registry's records, and nothing is started."""

from __future__ import annotations

import time
from pathlib import Path

from sweetrl.config.settings import load_settings
from sweetrl.io import read_json
from sweetrl.paths import EVALUATION, POLICY
from sweetrl.stages.registration import known_registration
from sweetrl.stages.scratch import remove_recorded
from sweetrl.text import without_login
from sweetrl.tracking.store import tracking_enabled, tracking_uri
from tasks.pipeline import Selection, left, skipped, stage_states
from tasks.training import Outcome, Steps


def at_rest(root: Path, selection: Selection | None = None) -> Outcome | None:
    """Return the outcome of a run (of the stages in `selection`) that would change nothing; None where it would.

    That is so where DVC finds every stage's command, parameters, inputs and outputs as dvc.lock has them, and where the
    policy is registered, with the evaluation that lies here, and has stood before the gate.
    """
    started = time.monotonic()
    settings = load_settings(root / "params.yaml")
    states = stage_states(root)
    chosen = (selection or Selection()).of(list(states))
    if any(states[stage] for stage in chosen):
        return None
    stages = tuple(skipped(root, stage) if stage in chosen else left(root, stage) for stage in states)
    remove_recorded(root)
    if stale := tuple(stage for stage, changed in states.items() if changed):
        tracking, seconds = without_login(tracking_uri(settings.tracking, root)), time.monotonic() - started
        return Outcome(stages, tracking=tracking, seconds=seconds, stale=stale)
    registration = None
    if tracking_enabled() and (root / POLICY).exists() and (root / EVALUATION).exists():
        registration = known_registration(settings, root)
        if registration is None or not Steps().settled(registration):
            return None
    return Outcome(
        stages=stages,
        registration=registration,
        tracking=without_login(tracking_uri(settings.tracking, root)),
        seconds=time.monotonic() - started,
        evaluation=read_json(root / EVALUATION) if (root / EVALUATION).exists() else {},
    )
