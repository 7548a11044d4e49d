"""Roll back: the champion before the current one is champion again; its data, parameters and lock file come back."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from prefect import flow
from prefect.logging import get_run_logger

from flows.console import command_line, parser
from sweetrl.config.settings import load_settings
from sweetrl.errors import UserError
from sweetrl.io import read_json, write_json
from sweetrl.tracking.registry import CHAMPION, Registry
from tasks.journal import promoting
from tasks.steps import announce
from tasks.workspace import commit_records, head, only_run, restore

INTENT = Path(".scratch/rollback.json")  # who is left and who comes back, while a rollback is at work


@dataclass(frozen=True)
class Rollback:
    """Which version was left, which is champion now, and what was done in the folder."""

    left: str
    champion: str
    workspace: str


@flow(name="rollback", validate_parameters=False)
def rollback(root: str = ".", data: bool = True) -> Rollback:
    """Step back to the champion before; with `data`, dvc.lock, params.yaml and the data are its own again.

    The folder comes first: if its data cannot be had, nothing has changed. dvc.lock and params.yaml are committed, and
    the alias moves last. A rollback that died is finished by the next one, which then goes no further back.
    """
    folder, say = Path(root).resolve(), get_run_logger().info
    settings = load_settings(folder / "params.yaml")
    registry = Registry(settings.tracking, folder)
    with promoting(folder, say), only_run(folder):
        left, to = intention(registry, folder)
        wanted = registry.get(to)
        write_json(folder / INTENT, {"left": left, "to": to})
        done = "data and lock file left as they are"
        try:
            if data:
                done = restore(folder, lambda where: registry.download(wanted, "lineage", where))
                if head(folder):
                    commit_records(folder, f"Roll back to version {to} of {registry.name}")
                    done += ", and committed"
            champion = registry.aliases().get(CHAMPION)
            if champion not in (None, left, to):
                raise UserError(
                    f"{registry.name}: version {champion} has become champion while this folder went back to version "
                    f"{to}; roll back once more, or `python -m flows.promote {registry.name}/{to} --by-hand REASON`."
                )
        except UserError:
            (folder / INTENT).unlink()
            raise
        if champion != to:
            registry.step_back()
        (folder / INTENT).unlink()
    announce("rolled-back", "model", registry.name, {"version": to, "left": left})
    say(f"champion is version {to} again (was {left}); {done}")
    return Rollback(left, to, done)


def intention(registry: Registry, folder: Path) -> tuple[str, str]:
    """Return which version is left for which: as a rollback that died has intended, else the champion before."""
    champion = registry.aliases().get(CHAMPION)
    if (folder / INTENT).exists():
        died = read_json(folder / INTENT)
        there = {str(version.version) for version in registry.versions()}
        if champion in (died["left"], died["to"]) and died["to"] in there:
            return died["left"], died["to"]
    before = registry.champion_before().version
    return str(champion), before


def main() -> int:
    """Roll back the project in the current folder."""
    arguments = parser("rollback", "Make the champion before the current one champion again, with its data.")
    arguments.add_argument("--alias-only", action="store_true", help="leave dvc.lock, params.yaml and the data alone")
    given = arguments.parse_args()

    def run() -> None:
        done = rollback(data=not given.alias_only)
        print(f"champion: version {done.champion} (was {done.left})\nfolder:   {done.workspace}")

    return command_line(run)


if __name__ == "__main__":
    sys.exit(main())
