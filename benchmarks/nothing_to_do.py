"""How long `sweetrl run` takes to say that there is nothing to do, and `sweetrl lineage` what a version comes from.

    cd PROJECT && python benchmarks/nothing_to_do.py [--processes 5]

PROJECT must be up to date: where a stage has something to do, the script says so and starts nothing. In the same
interleaved rounds are the import without which nobody can ask (`dvc.repo`) and those that a run with nothing to do
avoids (mlflow, prefect; `sweetrl lineage` needs the first). Processor seconds say more than seconds on a busy machine;
the last column is their ratio to that of `import dvc.repo`. Each row runs once before, which fills the disk's cache.
"""

from __future__ import annotations

import sys
from pathlib import Path

from fresh_processes import Options, print_ratios, rounds

sys.path.insert(0, str(Path.cwd()))  # flows/ and tasks/ belong to the project, not to the package

LEAST = "import dvc.repo"
ROWS = {
    LEAST: ["-c", LEAST],
    "sweetrl run, nothing to do": ["-m", "flows.run"],
    "sweetrl lineage": ["-m", "sweetrl.cli", "lineage"],
    "import mlflow": ["-c", "import mlflow"],
    "import prefect": ["-c", "import prefect"],
}


def main() -> None:
    parser = Options(__doc__, processes=5)
    processes = parser.read()
    from tasks.training import at_rest

    if at_rest(Path.cwd()) is None:
        parser.error(f"{Path.cwd()}: there is something to do here; `sweetrl run` first")
    print_ratios(rounds(ROWS, processes), LEAST)


if __name__ == "__main__":
    main()
