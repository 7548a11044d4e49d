"""How long fresh interpreters take, in interleaved rounds: what imports.py and nothing_to_do.py share.

A row is a name and the arguments that an interpreter is started with. In each round every row runs once, so that other
load meets all of them alike; before the rounds each row runs once, which fills the disk's cache.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence


def measure(rows: Mapping[str, Sequence[str]], rounds: int) -> None:
    """Run every row so many times, in turn, and print the medians of its seconds as a table."""
    for arguments in rows.values():
        seconds_of(arguments)
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in rows}
    for _ in range(rounds):
        for name, arguments in rows.items():
            taken[name].append(seconds_of(arguments))
    print("| | seconds | processor seconds |\n|---|---|---|")
    for name, times in taken.items():
        wall, processor = (statistics.median(column) for column in zip(*times, strict=True))
        print(f"| `{name}` | {wall:.2f} | {processor:.2f} |")


def seconds_of(arguments: Sequence[str]) -> tuple[float, float]:
    """Wall-clock and processor seconds of one fresh interpreter and what it starts."""
    started, before = time.perf_counter(), os.times()
    subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
    after = os.times()
    spent = after.children_user + after.children_system - before.children_user - before.children_system
    return time.perf_counter() - started, spent
