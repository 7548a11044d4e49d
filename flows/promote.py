"""Promote: let the challenger stand before the gate again, or make a version champion by a user's decision."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from prefect import flow
from typer import Argument, Option

from flows.console import program, show_all
from sweetrl.config.settings import load_settings
from sweetrl.errors import UserError
from sweetrl.tracking.registry import CHALLENGER, CHAMPION, Registry, split_reference
from tasks.journal import promoting
from tasks.promotion import GateResult
from tasks.steps import announce, prefect_steps, settled
from tasks.training import unless_harmful
from tasks.workspace import only_run


@flow(name="promote", validate_parameters=False)
@settled
def promote(reference: str = f"@{CHALLENGER}", reason: str = "", root: str = ".") -> GateResult:
    """Run the gate for `reference`; with a `reason` the version is accepted without it, and the reason is kept.

    A version that is worse than its base is the error `Harm`.
    """
    folder, steps = Path(root).resolve(), prefect_steps()
    settings = load_settings(folder / "params.yaml")
    name, alias = split_reference(reference, settings.tracking.model)
    if name != settings.tracking.model:
        raise UserError(f"{reference}: the gate decides about {settings.tracking.model} alone (tracking.model).")
    registry = Registry(settings.tracking, folder)
    version = str(registry.get(alias).version)
    with promoting(folder, steps.say):
        if reason:
            before = registry.aliases().get(CHAMPION)
            if before == version:
                return GateResult(version, False, version, before, f"version {version} is the champion already.")
            registry.promote(version, f"accepted: {reason}")
            result = GateResult(version, True, version, before, f"accepted: {reason}")
        else:
            with only_run(folder):
                result = steps.gate(settings, folder, version)
                result = steps.promote(settings, folder, result) if result.won else result
    if result.promoted:
        payload = {"version": version, "reason": result.reason, "before": result.before or ""}
        announce("promoted", "model", name, payload)
    return unless_harmful(result, result.decision.harm if result.decision is not None else "")


@program
def main(
    reference: Annotated[str, Argument(help="@ALIAS, MODEL@ALIAS or MODEL/VERSION")] = f"@{CHALLENGER}",
    accept: Annotated[
        str,
        Option(
            metavar="REASON", help="Make it champion, whatever the gate says, and leave the folder (`sweetrl restore`)."
        ),
    ] = "",
) -> None:
    """Let a version stand against the champion; make it champion if it wins."""
    show_all(lambda: promote(reference, accept), show_result)


def show_result(result: GateResult) -> None:
    """Print what was decided, and who is champion now."""
    champion = f"version {result.champion}" if result.champion else "none yet"
    print(f"version {result.version}: {result.reason}\nchampion: {champion}")


if __name__ == "__main__":
    main()
