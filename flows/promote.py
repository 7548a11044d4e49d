"""Promote: let the challenger stand against the champion again, or make a version champion by a user's decision."""

from __future__ import annotations

import sys
from pathlib import Path

from prefect import flow
from prefect.logging import get_run_logger

from flows.console import command_line, parser
from sweetrl.config.settings import load_settings
from sweetrl.errors import UserError
from sweetrl.tracking.registry import CHALLENGER, CHAMPION, Registry, split_reference
from tasks.journal import promoting
from tasks.promotion import GateResult
from tasks.steps import gate, notify, promote_model
from tasks.workspace import only_run


@flow(name="promote", validate_parameters=False)
def promote(reference: str = f"@{CHALLENGER}", reason: str = "", root: str = ".") -> GateResult:
    """Run the gate for `reference`; with a `reason` the version becomes champion without it, and the reason is kept."""
    folder = Path(root).resolve()
    settings = load_settings(folder / "params.yaml")
    name, alias = split_reference(reference, settings.tracking.model)
    if name != settings.tracking.model:
        raise UserError(
            f"{reference}: the gate decides about {settings.tracking.model} (tracking.model in params.yaml)."
        )
    registry, say = Registry(settings.tracking, folder), get_run_logger().info
    version = str(registry.get(alias).version)
    if reason:
        with promoting(folder, say):
            before = registry.aliases().get(CHAMPION)
            if before == version:
                return GateResult(version, False, version, before, f"version {version} is the champion already.")
            registry.promote(version, f"by hand: {reason}")
        result = GateResult(version, True, version, before, f"promoted by hand: {reason}")
    else:
        with promoting(folder, say), only_run(folder):
            result = gate(settings, folder, version)
            result = promote_model(settings, folder, result) if result.won else result
    if result.promoted:
        notify("promoted", name, version, {"reason": result.reason, "before": result.before or ""})
    return result


def main() -> int:
    """Decide about the version named on the command line."""
    arguments = parser("promote", "Let a version stand against the champion; make it champion if it wins.")
    arguments.add_argument(
        "reference", nargs="?", default=f"@{CHALLENGER}", help="@ALIAS, MODEL@ALIAS or MODEL/VERSION"
    )
    arguments.add_argument(
        "--by-hand", metavar="REASON", default="", help="promote without the gate; the reason is kept"
    )
    given = arguments.parse_args()

    def run() -> None:
        result = promote(given.reference, given.by_hand)
        print(f"version {result.version}: {result.reason}")
        print(f"champion: version {result.champion}")

    return command_line(run)


if __name__ == "__main__":
    sys.exit(main())
