"""`sweetrl gate`: what the promotion gate could see."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sweetrl.options import Json

PARAMETERS = Path("params.yaml")


def gate(
    difference: Annotated[
        float | None, typer.Option(help="A difference of mean reward; default: gate.smallest_difference.")
    ] = None,
    tasks: Annotated[int | None, typer.Option(help="How many test tasks; default: as params.yaml says.", min=2)] = None,
    discordance: Annotated[
        float | None,
        typer.Option(help="Mean squared difference on a task; default: as seen so far, else gate.discordance."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Say which difference the promotion gate can see with the test tasks at hand, and how many a smaller one needs."""
    from dataclasses import asdict

    from sweetrl.printing import print_facts
    from sweetrl.settings import Settings, load_settings
    from sweetrl.tracking.gate_plan import plan

    settings = load_settings(PARAMETERS) if PARAMETERS.exists() else Settings()
    found = plan(settings, Path(), difference, tasks, discordance)
    print_facts("the next comparison at the gate", list(found.rows()), asdict(found) if as_json else None)
