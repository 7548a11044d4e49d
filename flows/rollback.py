"""Roll back: the champion before the current one is champion again; its data, parameters and lock file come back."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from prefect import flow
from prefect.logging import get_run_logger

from flows.arguments import parser
from flows.console import command_line
from sweetrl.settings import load_settings
from sweetrl.tracking.registry import Registry
from tasks.steps import notify
from tasks.workspace import only_run, restore


@dataclass(frozen=True)
class Rollback:
    """Which version was left, which is champion now, and what was done in the folder."""

    left: str
    champion: str
    workspace: str


@flow(name="rollback", validate_parameters=False)
def rollback(root: str = ".", data: bool = True) -> Rollback:
    """Step back to the champion before; with `data`, dvc.lock, params.yaml and the data are its own again.

    The folder comes first: if its data cannot be had, nothing has changed.
    """
    folder = Path(root).resolve()
    settings = load_settings(folder / "params.yaml")
    registry = Registry(settings.tracking, folder)
    with only_run(folder):
        done = "data and lock file left as they are"
        if data:
            wanted = registry.get(registry.champion_before().version)
            done = restore(folder, lambda where: registry.download(wanted, "lineage", where))
        left, back = registry.step_back()
    notify("rolled-back", registry.name, back.version, {"left": left.version})
    get_run_logger().info("champion is version %s again (was %s); %s", back.version, left.version, done)
    return Rollback(left.version, back.version, done)


def main() -> int:
    """Roll back the project in the current folder."""
    arguments = parser("rollback", "Make the champion before the current one champion again, with its data.")
    arguments.add_argument("--alias-only", action="store_true", help="leave dvc.lock, params.yaml and the data alone")
    given = arguments.parse_args()

    def run() -> None:
        done = rollback(data=not given.alias_only)
        print(f"champion: version {done.champion} (was {done.left})")
        print(f"folder:   {done.workspace}")

    return command_line(run)


if __name__ == "__main__":
    sys.exit(main())
