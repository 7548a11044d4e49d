"""How long `sweetrl --help` takes: a fresh process, beside one that imports typer and rich.

    python benchmarks/help.py [--processes 15] [--json OUT]

The rounds are interleaved, so that other load meets all rows alike; before them each row runs once, which fills the
disk's cache. Processor seconds say more than seconds on a busy machine; the last column is their ratio to those of
the first row.
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

LEAST = "import typer, rich"
ROWS = {
    LEAST: ["-c", LEAST],
    "sweetrl --help": ["-m", "sweetrl.cli", "--help"],
    "sweetrl evaluate --help": ["-m", "sweetrl.cli", "evaluate", "--help"],
    "sweetrl --version": ["-m", "sweetrl.cli", "--version"],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=15, help="fresh processes for each row")
    parser.add_argument("--json", type=Path, help="write the numbers here")
    options = parser.parse_args()
    if options.processes < 1:
        parser.error("--processes must be at least 1")
    for arguments in ROWS.values():
        seconds_of(arguments)
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in ROWS}
    for _ in range(options.processes):
        for name, arguments in ROWS.items():
            taken[name].append(seconds_of(arguments))
    medians = {name: [statistics.median(column) for column in zip(*rows, strict=True)] for name, rows in taken.items()}
    print(f"| | seconds, median | processor seconds | times `{LEAST}` |\n|---|---|---|---|")
    for name, (wall, processor) in medians.items():
        print(f"| `{name}` | {wall:.2f} | {processor:.2f} | {processor / medians[LEAST][1]:.2f} |")
    if options.json is not None:
        options.json.write_text(json.dumps({"median": medians, "seconds": taken}, indent=2) + "\n", encoding="utf-8")


def seconds_of(arguments: list[str]) -> tuple[float, float]:
    """Wall-clock and processor seconds of one fresh interpreter."""
    started, before = time.perf_counter(), os.times()
    subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
    after = os.times()
    spent = after.children_user + after.children_system - before.children_user - before.children_system
    return time.perf_counter() - started, spent


if __name__ == "__main__":
    main()
