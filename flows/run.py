"""Run the pipeline of the current folder, as far as there is something to do: what `make run` and `sweetrl run` call.

Whether there is anything is found out before Prefect and MLflow are imported, which takes longer than the look itself.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from flows.console import command_line, show_outcome
from tasks.at_rest import at_rest
from tasks.training import Outcome
from tasks.workspace import only_run


def run_here(root: Path, flow: Callable[[str], Outcome] | None = None) -> Outcome:
    """Run what there is to do, as the flow `train` (or `flow`); where that is nothing, say so without it."""
    with only_run(root):
        found = at_rest(root)
    if found is not None:
        return found
    if flow is None:
        from flows.train import train

        flow = train
    return flow(str(root))


def main(flow: Callable[[str], Outcome] | None = None) -> int:
    """Run the pipeline of the current folder and print what came of it; 1 where a stage failed."""
    root = Path.cwd()
    return command_line(lambda: show_outcome(run_here(root, flow), root / "reports/report.html"))


if __name__ == "__main__":
    sys.exit(main())
