"""Ingest: new dialogues or task files become the next batch, and an event starts retrainings (`sweetrl ingest`).

What is taken, put aside and remembered is in tasks/ingestion.py. The event goes out as long as a batch waits that no
retraining has taken, so that one which was lost with a killed process goes out with the next run.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from prefect import flow
from prefect.logging import get_run_logger

from flows.console import program
from sweetrl.cli import options as opt
from sweetrl.config.settings import load_settings
from sweetrl.console.printing import print_json
from sweetrl.ingest.batches import kind_of
from tasks import ingestion
from tasks.ingestion import Ingested, in_a_line, settings_for
from tasks.steps import announce as send
from tasks.steps import step


@flow(name="ingest", validate_parameters=False)
def ingest(
    root: str = ".", source: str = "", kind: str = "", again: bool = False, push: bool = True, announce: bool = True
) -> Ingested:
    """Take what is new in `source` (default: `ingest.source`); without `announce` no retraining is started by it.

    By its schedule it runs in projects that have no source, too, and then says so.
    """
    home, say = Path(root).resolve(), get_run_logger().info
    settings = load_settings(home / "params.yaml")
    if not source and not settings.ingest.source:
        say("ingest.source is empty in params.yaml: there is nowhere to look for new files")
        return Ingested(None)
    done: Ingested = step("ingest_files", ingestion.ingest)(home, source, kind, again, push, say)
    if done.waiting and announce:
        send("arrived", "data", settings.tracking.model, {"batch": done.waiting, "kind": kind_of(done.waiting)})
    return done


@program
def main(
    source: opt.Source = "",
    kind: opt.Kind = None,
    again: opt.Again = False,
    no_push: opt.NoPush = False,
    no_event: opt.NoEvent = False,
    as_json: opt.Json = False,
) -> None:
    """Make new dialogues or task files the next batch, and tell the retrainings."""
    settings_for(Path.cwd(), source, kind or "")  # mistakes are reported before Prefect starts
    done = ingest(".", source, kind or "", again, not no_push, not no_event)
    if as_json:
        print_json(asdict(done))
        return
    print(in_a_line(done.made) if done.made is not None else "nothing is new")
    for item in done.pushed:
        print(f"pushed:  {item}")
    if done.waiting:
        print(f"waiting: {done.waiting} (`python -m flows.retrain` takes it)")


if __name__ == "__main__":
    main()
