"""Online iterations: the pipeline (iteration one), then the iterations after it, and what they have changed.

`python -m flows.iterate` (what `make iterations` calls). The graph is DVC's in both parts: dvc.yaml, then
iterations/dvc.yaml.
"""

from __future__ import annotations

from pathlib import Path

from prefect import flow
from prefect.logging import get_run_logger

from flows.console import program
from flows.train import train
from sweetrl.config.settings import load_settings
from sweetrl.errors import UserError
from tasks.pipeline import FILES, StageResult
from tasks.steps import run_stage
from tasks.training import describe
from tasks.workspace import only_run


@flow(name="iterate", validate_parameters=False)
def iterate(root: str = ".") -> tuple[StageResult, ...]:
    """Bring iteration one up to date and register it, make the iterations after it, and evaluate the last."""
    folder = Path(root).resolve()
    check_iterations(folder)
    train(str(folder))
    results = []
    with only_run(folder):
        for stage in FILES:
            results.append(run_stage(stage, folder, {}))
            get_run_logger().info(describe(results[-1]))
    return tuple(results)


def check_iterations(root: Path) -> None:
    """Raise a UserError where params.yaml asks for one iteration."""
    if load_settings(root / "params.yaml").iterations == 1:
        raise UserError("params.yaml: `iterations` is 1, as for `make run`; set 2 or more for `make iterations`.")


@program
def main() -> None:
    """Train in iterations: collect and train again with the current policy."""
    check_iterations(Path.cwd())  # mistakes are reported before Prefect starts
    for result in iterate():
        print(f"{result.stage}: {result.summary}")


if __name__ == "__main__":
    main()
