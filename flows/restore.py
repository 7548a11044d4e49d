"""Restore: a version is champion again, and its data, parameters, own code and lock file lie in the folder."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from prefect import flow
from prefect.logging import get_run_logger

from flows.console import program, show_all
from sweetrl.cli import options as opt
from sweetrl.config.settings import load_settings
from sweetrl.console.printing import print_facts, print_json, print_table
from sweetrl.errors import UserError
from sweetrl.tracking.registry import CHAMPION, Registry, open_reference
from tasks.journal import promoting
from tasks.origin import pull, share
from tasks.steps import announce, settled
from tasks.training import Waiting
from tasks.workspace import commit_records, git, git_remote, head, only_run, push, put_back, records_in_git


@dataclass(frozen=True)
class Restored:
    """Which version was champion (None: none), which one is it now, and what was done in the folder."""

    before: str | None
    champion: str
    workspace: str


@flow(name="restore", validate_parameters=False)
@settled
def restore(version: str = "", reason: str = "", root: str = ".") -> Restored:
    """Make `version` (a number or an alias) the champion, and the folder what it was made from; `reason` is kept.

    The folder comes first: if its data cannot be had, nothing has changed. What git holds of it is committed, and the
    alias moves after that. Where all of that is so already, nothing changes: whoever died in the middle does it again.
    Others' commits come in before and this one goes out behind; a remote that cannot be had or refuses it is the error
    `Waiting`, once the version is champion.
    """
    folder, say = Path(root).resolve(), get_run_logger().info
    registry = Registry(load_settings(folder / "params.yaml").tracking, folder)
    if not version:
        raise UserError(f"{registry.name}: which version? `sweetrl restore` lists those that were champion.")
    chosen = registry.get(str(version))
    number, unshared = str(chosen.version), ""
    remote, branch = git_remote(folder), git(folder, "branch", "--show-current", check=False).stdout.strip()
    with promoting(folder, say):
        try:
            tip = pull(folder, remote, branch)
        except UserError as error:  # a version is most needed when something else does not work, either
            tip, unshared = "", str(error)
        with only_run(folder):
            before = registry.aliases().get(CHAMPION)
            done, code = put_back(
                folder,
                lambda where: records_in_git(folder, chosen.tags, where) or registry.download(chosen, "lineage", where),
            )
            if head(folder):
                commit_records(folder, f"Restore version {number} of {registry.name}", code)
                done += ", and committed"
            if (champion := registry.aliases().get(CHAMPION)) != before:
                raise UserError(
                    f"{registry.name}: version {champion} has become champion meanwhile; run this once more."
                )
            registry.promote(number, reason or f"restored in the place of version {before}")
        try:
            if tip:  # so that nobody sees a commit without its data
                push(folder)
            if not share(folder, remote, branch, head(folder), tip):
                unshared = f"others have pushed {branch} at this moment"
        except UserError as error:
            unshared = str(error)
    announce("restored", "model", registry.name, {"version": number, "before": before or ""})
    done += f"; {branch} is pushed to {remote}" if tip and not unshared else ""
    say(f"champion is version {number} (was {before}); {done}")
    restored = Restored(before, number, done)
    if unshared:
        why = f"version {number} is champion, and others do not have its {branch}: {unshared.rstrip('.')}"
        raise Waiting(f"{why}; mend that and run the same command again.", restored)
    return restored


@program
def main(version: opt.Version = "", reason: opt.Reason = "", as_json: opt.Json = False) -> None:
    """Make a version the champion again, forward or back, with its data; without one, list who was champion."""
    if version:
        show_all(lambda: restore(version, reason), partial(show_restored, as_json=as_json))
        return
    registry, _ = open_reference("", load_settings().tracking)
    history = registry.history()
    if as_json:
        print_json([asdict(entry) for entry in history])
    else:
        rows = [(entry.version, entry.time, entry.reason) for entry in history]
        print_table(f"champions of {registry.name}", ("version", "since", "why"), rows)


def show_restored(done: Restored, as_json: bool) -> None:
    """Print who is champion now, and what was done in the folder."""
    facts = [("champion", f"version {done.champion} (was {done.before})"), ("folder", done.workspace)]
    print_facts("restore", facts, asdict(done) if as_json else None)


if __name__ == "__main__":
    main()
