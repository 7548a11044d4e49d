"""Watch: measure the champion again, say whether it has got worse, and emit an event that can start a retraining."""

from __future__ import annotations

from pathlib import Path

from prefect import flow
from prefect.logging import get_run_logger

from flows.console import program
from sweetrl.config.settings import load_settings
from sweetrl.gate.drift import Look
from tasks import promotion
from tasks.steps import announce
from tasks.workspace import only_run


@flow(name="watch", validate_parameters=False)
def watch(root: str = ".") -> Look:
    """Look at the champion of the project at `root`; the event `sweetrl.model.drifted` says that it has got worse."""
    folder, say = Path(root).resolve(), get_run_logger().info
    settings = load_settings(folder / "params.yaml")
    with only_run(folder):
        seen = promotion.watch(settings, folder, say)
    say(seen.sentence)
    if seen.drifted:
        payload = {"version": promotion.champion(settings, folder) or "", "reason": seen.sentence}
        announce("drifted", "model", settings.tracking.model, payload)
    return seen


@program
def main() -> None:
    """Measure the champion again, and say whether it has got worse and when to retrain."""
    print(watch().sentence)


if __name__ == "__main__":
    main()
