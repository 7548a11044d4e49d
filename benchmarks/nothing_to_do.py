"""How long `sweetrl run` takes to say that there is nothing to do, and `sweetrl lineage` what a version comes from.

    cd PROJECT && python benchmarks/nothing_to_do.py [--processes 5] [--json OUT]

PROJECT must be up to date: where a stage has something to do, the script says so and starts nothing. In the same
interleaved rounds are the import without which nobody can ask (`dvc.repo`) and those that are avoided (mlflow,
prefect). Processor seconds say more than seconds on a busy machine; the last column is their ratio to that of
`import dvc.repo`. Each row runs once before, which fills the disk's cache.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=5, help="fresh processes for each row")
    parser.add_argument("--json", type=Path, help="write the numbers here")
    options = parser.parse_args()
    if options.processes < 1:
        parser.error("--processes must be at least 1")
    from tasks.at_rest import at_rest

    if at_rest(Path.cwd()) is None:
        parser.error(f"{Path.cwd()}: there is something to do here; `sweetrl run` first")
    for arguments in ROWS.values():
        seconds_of(arguments)
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in ROWS}
    for _ in range(options.processes):
        for name, arguments in ROWS.items():
            taken[name].append(seconds_of(arguments))
    medians = {name: [statistics.median(column) for column in zip(*rows, strict=True)] for name, rows in taken.items()}
    print(f"| | seconds, median | processor seconds | times `{LEAST}` |\n|---|---|---|---|")
    for name, (wall, processor) in medians.items():
        print(f"| {name} | {wall:.2f} | {processor:.2f} | {processor / medians[LEAST][1]:.1f} |")
    if options.json is not None:
        options.json.write_text(json.dumps({"median": medians, "seconds": taken}, indent=2) + "\n", encoding="utf-8")


def seconds_of(arguments: list[str]) -> tuple[float, float]:
    """Wall-clock and processor seconds of one fresh interpreter and what it starts."""
    started, before = time.perf_counter(), os.times()
    subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
    after = os.times()
    spent = after.children_user + after.children_system - before.children_user - before.children_system
    return time.perf_counter() - started, spent


if __name__ == "__main__":
    main()
