"""How long `sweetrl --help` takes: a fresh process, beside one that imports typer and rich.

    python benchmarks/help.py [--processes 15] [--json OUT]

The rounds are interleaved, so that other load meets all rows alike; before them each row runs once, which fills the
disk's cache. Processor seconds say more than seconds on a busy machine; the last column is their ratio to those of
the first row.
"""

from __future__ import annotations

from fresh_processes import Options, print_ratios, rounds, write_numbers

LEAST = "import typer, rich"
ROWS = {
    LEAST: ["-c", LEAST],
    "sweetrl --help": ["-m", "sweetrl.cli", "--help"],
    "sweetrl evaluate --help": ["-m", "sweetrl.cli", "evaluate", "--help"],
    "sweetrl --version": ["-m", "sweetrl.cli", "--version"],
}


def main() -> None:
    options = Options(__doc__, processes=15).read()
    taken = rounds(ROWS, options.processes)
    write_numbers(options.json, print_ratios(taken, LEAST, digits=2), taken)


if __name__ == "__main__":
    main()
