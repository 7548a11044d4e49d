"""How long a start takes: median seconds of fresh processes that import sweetrl, and what peers take to be imported.

    python benchmarks/imports.py [--processes 9]

The rounds are interleaved, so that other load meets all rows alike; before them each row runs once, which fills the
disk's cache.
`import sweetrl` loads neither torch nor transformers, and a domain is enough to list tasks, talk and score.
"""

from __future__ import annotations

import importlib.util
import statistics

from fresh_processes import Options, rounds

ROWS = {
    "bare interpreter": "",
    "import sweetrl": "import sweetrl",
    'sweetrl.domain("backend")': 'import sweetrl; sweetrl.domain("backend")',
    "import torch": "import torch",
    "import transformers": "import transformers",
    "import mlflow": "import mlflow",
}


def main() -> None:
    processes = Options(__doc__, processes=9).read()
    rows = {name: ["-c", code] for name, code in ROWS.items() if installed(code)}
    taken = {name: [wall for wall, _ in seconds] for name, seconds in rounds(rows, processes).items()}
    print("| | seconds, median | least | most |\n|---|---|---|---|")
    for name, seconds in taken.items():
        print(f"| {name} | {statistics.median(seconds):.2f} | {min(seconds):.2f} | {max(seconds):.2f} |")


def installed(code: str) -> bool:
    """Whether the module that a row imports is there at all."""
    words = code.replace(";", " ").split()
    return not words or importlib.util.find_spec(words[1]) is not None


if __name__ == "__main__":
    main()
