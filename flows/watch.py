"""Watch: measure the champion again, say whether it has got worse, and emit an event that can start a retraining."""

from __future__ import annotations

import sys
from pathlib import Path

from prefect import flow
from prefect.logging import get_run_logger

from flows.console import command_line, parser
from sweetrl.config.settings import load_settings
from sweetrl.gate.drift import Look
from sweetrl.tracking.registry import CHAMPION, Registry
from tasks.steps import notify
from tasks.watch import watch as look_at
from tasks.workspace import only_run


@flow(name="watch", validate_parameters=False)
def watch(root: str = ".") -> Look:
    """Look at the champion of the project at `root`; the event `sweetrl.model.drifted` says that it has got worse."""
    folder = Path(root).resolve()
    settings = load_settings(folder / "params.yaml")
    with only_run(folder):
        found = look_at(settings, folder, get_run_logger().info)
    get_run_logger().info(found.sentence)
    if found.drifted:
        champion = Registry(settings.tracking, folder).aliases().get(CHAMPION, "")
        notify("drifted", settings.tracking.model, champion, {"reason": found.sentence})
    return found


def main() -> int:
    """Look at the champion of the project in the current folder."""
    parser("watch", "Measure the champion again, and say whether it has got worse and when to retrain.").parse_args()

    def run() -> None:
        print(watch().sentence)

    return command_line(run)


if __name__ == "__main__":
    sys.exit(main())
