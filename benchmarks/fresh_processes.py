"""How long fresh interpreters take, in interleaved rounds: what imports.py and nothing_to_do.py share.

A row is a name and the arguments that an interpreter is started with. In each round every row runs once, so that other
load meets all of them alike; before the rounds each row runs once, which fills the disk's cache.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence

Taken = dict[str, list[tuple[float, float]]]  # (seconds, processor seconds) of each round, by row


class Options(argparse.ArgumentParser):
    """The option --processes; `description` is the script's docstring."""

    def __init__(self, description: str | None, processes: int) -> None:
        super().__init__(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
        self.add_argument("--processes", type=int, default=processes, help="fresh processes for each row")

    def read(self) -> int:
        """Return how many processes the command line asks for."""
        processes: int = self.parse_args().processes
        if processes < 1:
            self.error("--processes must be at least 1")
        return processes


def rounds(rows: Mapping[str, Sequence[str]], count: int) -> Taken:
    """Run every row `count` times, in turn."""
    for arguments in rows.values():
        seconds_of(arguments)
    taken: Taken = {name: [] for name in rows}
    for _ in range(count):
        for name, arguments in rows.items():
            taken[name].append(seconds_of(arguments))
    return taken


def seconds_of(arguments: Sequence[str]) -> tuple[float, float]:
    """Wall-clock and processor seconds of one fresh interpreter and what it starts."""
    started, before = time.perf_counter(), os.times()
    subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
    after = os.times()
    spent = after.children_user + after.children_system - before.children_user - before.children_system
    return time.perf_counter() - started, spent


def print_ratios(taken: Taken, least: str) -> None:
    """Print medians as a table, with the ratio of processor seconds to those of the row `least`."""
    medians = {
        name: [statistics.median(column) for column in zip(*times, strict=True)] for name, times in taken.items()
    }
    print(f"| | seconds, median | processor seconds | times `{least}` |\n|---|---|---|---|")
    for name, (wall, processor) in medians.items():
        print(f"| `{name}` | {wall:.2f} | {processor:.2f} | {processor / medians[least][1]:.1f} |")
