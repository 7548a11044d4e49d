"""Commands that start a flow. The flow takes this process over: the package stays free of Prefect and DVC."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from sweetrl.errors import EXTRAS, UserError
from sweetrl.options import Json

PARAMETERS = Path("params.yaml")
PIPELINE = Path("dvc.yaml")
FLOWS = Path("flows")


class Kinds(StrEnum):
    """What new files hold."""

    dialogues = "dialogues"
    tasks = "tasks"


def start_flow(name: str, words: Sequence[str] = ()) -> None:
    """Go on as `python -m flows.<name>` with these words; UserError outside of a project's root. Ctrl-C reaches it."""
    from importlib.util import find_spec

    for package in EXTRAS["pipeline"]:  # said here: the flow's own imports would end in a traceback
        if find_spec(package) is None:
            raise ModuleNotFoundError(f"No module named {package!r}", name=package)
    if not all(path.exists() for path in (PIPELINE, PARAMETERS, FLOWS)):
        raise UserError(
            f"{Path.cwd()}: there is no {PIPELINE} with {PARAMETERS} and {FLOWS}/ here; run from the project's root."
        )
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", f"flows.{name}", *words])


def ingest(
    source: Annotated[
        str, typer.Argument(help="s3://BUCKET/PREFIX or a folder; default: `ingest.source` of params.yaml.")
    ] = "",
    kind: Annotated[Kinds | None, typer.Option(help="What the files hold; default: as params.yaml says.")] = None,
    again: Annotated[
        bool, typer.Option("--again", help="Look once more at the files in which something was bad.")
    ] = False,
    no_push: Annotated[bool, typer.Option("--no-push", help="Keep the batch on this machine alone.")] = False,
    no_event: Annotated[bool, typer.Option("--no-event", help="Start no retraining.")] = False,
    as_json: Json = False,
) -> None:
    """Make new dialogues or task files the next batch: found, validated, versioned; then retrainings are told."""
    words = [*([source] if source else []), *([f"--kind={kind}"] if kind else [])]
    flags = (("--again", again), ("--no-push", no_push), ("--no-event", no_event), ("--json", as_json))
    start_flow("ingest", [*words, *(name for name, wanted in flags if wanted)])
