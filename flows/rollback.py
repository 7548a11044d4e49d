"""Roll back: the champion before the current one is champion again; its data, parameters and lock file come back."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from prefect import flow
from prefect.logging import get_run_logger
from typer import Option

from flows.console import program
from sweetrl.config.settings import load_settings
from sweetrl.errors import UserError
from sweetrl.tracking.registry import CHAMPION, Registry
from tasks.journal import promoting
from tasks.steps import announce
from tasks.workspace import commit_records, head, only_run, restore


@dataclass(frozen=True)
class Rollback:
    """Which version was left, which is champion now, and what was done in the folder."""

    left: str
    champion: str
    workspace: str


@flow(name="rollback", validate_parameters=False)
def rollback(root: str = ".", data: bool = True) -> Rollback:
    """Step back to the champion before; with `data`, dvc.lock, params.yaml, own code and data are its own again.

    The folder comes first: if its data cannot be had, nothing has changed. What git holds of it is committed, and the
    alias moves last, so that a rollback that died is made again by the next one.
    """
    folder, say = Path(root).resolve(), get_run_logger().info
    registry = Registry(load_settings(folder / "params.yaml").tracking, folder)
    with promoting(folder, say), only_run(folder):
        left, to = registry.aliases().get(CHAMPION), registry.champion_before().version
        done = "data and lock file left as they are"
        if data:
            version = registry.get(to)
            done, code = restore(folder, lambda where: registry.download(version, "lineage", where))
            if head(folder):
                commit_records(folder, f"Roll back to version {to} of {registry.name}", code)
                done += ", and committed"
        champion = registry.aliases().get(CHAMPION)
        if champion != left:
            raise UserError(f"{registry.name}: version {champion} has become champion meanwhile; roll back once more.")
        registry.step_back()
    announce("rolled-back", "model", registry.name, {"version": to, "left": left or ""})
    say(f"champion is version {to} again (was {left}); {done}")
    return Rollback(str(left), to, done)


@program
def main(
    alias_only: Annotated[bool, Option("--alias-only", help="Leave dvc.lock, params.yaml and the data alone.")] = False,
) -> None:
    """Make the champion before the current one champion again, with its data."""
    done = rollback(data=not alias_only)
    print(f"champion: version {done.champion} (was {done.left})\nfolder:   {done.workspace}")


if __name__ == "__main__":
    main()
