"""Online rounds: the pipeline (round one), then the rounds after it, and what they have changed.

`python -m flows.rounds` (what `make rounds` calls). The graph is DVC's in both parts: dvc.yaml, then rounds/dvc.yaml.
"""

from __future__ import annotations

import sys
from pathlib import Path

from prefect import flow
from prefect.logging import get_run_logger

from flows.arguments import parser
from flows.console import command_line
from flows.train import train
from sweetrl.errors import UserError
from sweetrl.settings import load_settings
from tasks.pipeline import FILES, StageResult
from tasks.steps import run_stage_task
from tasks.training import describe
from tasks.workspace import only_run


@flow(name="rounds", validate_parameters=False)
def rounds(root: str = ".") -> tuple[StageResult, ...]:
    """Bring round one up to date and register it, make the rounds after it, and evaluate the last."""
    folder = Path(root).resolve()
    wanted(folder)
    train(str(folder))
    results = []
    with only_run(folder):
        for stage in FILES:
            results.append(run_stage_task(stage)(stage, folder, {}))
            get_run_logger().info(describe(results[-1]))
    return tuple(results)


def wanted(root: Path) -> int:
    """Return how many rounds params.yaml asks for; one is a UserError."""
    found = load_settings(root / "params.yaml").rounds
    if found == 1:
        raise UserError("params.yaml: `rounds` is 1, which is what `make run` does; set 2 or more for `make rounds`.")
    return found


def main() -> int:
    """Make the rounds of the project in the current folder."""
    parser("rounds", "Train in rounds: collect and train again with the policy so far.").parse_args()

    def run() -> None:
        wanted(Path.cwd())  # said before Prefect starts
        for result in rounds(str(Path.cwd())):
            print(f"{result.stage}: {result.summary}")

    return command_line(run)


if __name__ == "__main__":
    sys.exit(main())
