"""Restore: a version is champion again, and its data, parameters, own code and lock file lie in the folder."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from prefect import flow
from prefect.logging import get_run_logger

from flows.console import program
from sweetrl.cli import options as opt
from sweetrl.config.settings import load_settings
from sweetrl.console.printing import print_facts, print_json, print_table
from sweetrl.errors import UserError
from sweetrl.tracking.registry import CHAMPION, Registry, open_reference
from tasks.journal import promoting
from tasks.steps import announce
from tasks.workspace import commit_records, head, only_run, put_back, records_in_git


@dataclass(frozen=True)
class Restored:
    """Which version was champion (None: none), which one is it now, and what was done in the folder."""

    before: str | None
    champion: str
    workspace: str


@flow(name="restore", validate_parameters=False)
def restore(version: str = "", reason: str = "", root: str = ".") -> Restored:
    """Make `version` (a number or an alias) the champion, and the folder what it was made from; `reason` is kept.

    The folder comes first: if its data cannot be had, nothing has changed. What git holds of it is committed, and the
    alias moves last. Where all of that is so already, nothing changes: whoever died in the middle does it again.
    """
    folder, say = Path(root).resolve(), get_run_logger().info
    registry = Registry(load_settings(folder / "params.yaml").tracking, folder)
    if not version:
        raise UserError(f"{registry.name}: which version? `sweetrl restore` lists those that were champion.")
    chosen = registry.get(str(version))
    number = str(chosen.version)
    with promoting(folder, say), only_run(folder):
        before = registry.aliases().get(CHAMPION)
        done, code = put_back(
            folder,
            lambda where: records_in_git(folder, chosen.tags, where) or registry.download(chosen, "lineage", where),
        )
        if head(folder):
            commit_records(folder, f"Restore version {number} of {registry.name}", code)
            done += ", and committed"
        if (champion := registry.aliases().get(CHAMPION)) != before:
            raise UserError(f"{registry.name}: version {champion} has become champion meanwhile; run this once more.")
        registry.promote(number, reason or f"restored in the place of version {before}")
    announce("restored", "model", registry.name, {"version": number, "before": before or ""})
    say(f"champion is version {number} (was {before}); {done}")
    return Restored(before, number, done)


@program
def main(version: opt.Version = "", reason: opt.Reason = "", as_json: opt.Json = False) -> None:
    """Make a version the champion again, forward or back, with its data; without one, list who was champion."""
    if version:
        done = restore(version, reason)
        facts = [("champion", f"version {done.champion} (was {done.before})"), ("folder", done.workspace)]
        print_facts("restore", facts, asdict(done) if as_json else None)
        return
    registry, _ = open_reference("", load_settings().tracking)
    history = registry.history()
    if as_json:
        print_json([asdict(entry) for entry in history])
    else:
        rows = [(entry.version, entry.time, entry.reason) for entry in history]
        print_table(f"champions of {registry.name}", ("version", "since", "why"), rows)


if __name__ == "__main__":
    main()
