"""How long a start takes: median seconds of fresh processes that import sweetrl, and what peers take to be imported.

    python benchmarks/imports.py [--processes 9] [--json OUT]

The rounds are interleaved, so that other load meets all rows alike; before them each row runs once, which fills the
disk's cache.
`import sweetrl` loads neither torch nor transformers, and a domain is enough to list tasks, talk and score.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROWS = {
    "bare interpreter": "",
    "import sweetrl": "import sweetrl",
    'sweetrl.domain("backend")': 'import sweetrl; sweetrl.domain("backend")',
    "import torch": "import torch",
    "import transformers": "import transformers",
    "import mlflow": "import mlflow",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=9, help="fresh processes for each row")
    parser.add_argument("--json", type=Path, help="write the numbers here")
    options = parser.parse_args()
    if options.processes < 1:
        parser.error("--processes must be at least 1")
    rows = {name: code for name, code in ROWS.items() if installed(code)}
    for code in rows.values():
        seconds_of(code)
    taken: dict[str, list[float]] = {name: [] for name in rows}
    for _ in range(options.processes):
        for name, code in rows.items():
            taken[name].append(seconds_of(code))
    print("| | seconds, median | least | most |\n|---|---|---|---|")
    for name, found in taken.items():
        print(f"| {name} | {statistics.median(found):.2f} | {min(found):.2f} | {max(found):.2f} |")
    if options.json is not None:
        medians = {name: statistics.median(found) for name, found in taken.items()}
        options.json.write_text(json.dumps({"median": medians, "seconds": taken}, indent=2) + "\n", encoding="utf-8")


def installed(code: str) -> bool:
    """Whether the module that a row imports is there at all."""
    words = code.replace(";", " ").split()
    return not words or importlib.util.find_spec(words[1]) is not None


def seconds_of(code: str) -> float:
    """Wall-clock seconds of one fresh interpreter that runs `code`."""
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
