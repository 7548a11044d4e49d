"""`python -m sweetrl.reproduce PART ...` in a profile's folder: what its dvc.yaml runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from sweetrl.console.logs import show_progress
from sweetrl.errors import UserError
from sweetrl.reproduce import report, workers
from sweetrl.reproduce import run as parts
from sweetrl.reproduce.tuning import tune
from sweetrl.stages.launch import STARTER, end_with_starter

USAGE = (
    "name a part: all [WORKERS] [NAME ...], base, warm-start, seed-data SEED, base-large, variant NAME SEED, "
    "measure NAME SEED, best-of-n NAME SEED, tune NAME SEED, report"
)


def run(arguments: Sequence[str]) -> None:
    """Run one part; UserError for a command line that names none."""
    alone = {"base": parts.base, "warm-start": parts.warm_start, "base-large": parts.base_large, "report": report.write}
    of_variants = {"variant": parts.train_variant, "measure": parts.measure, "best-of-n": parts.best_of_n, "tune": tune}
    match list(arguments):
        case ["all", count, *names] if count.isdigit() and int(count):
            workers.run_all(parts.Profile(), int(count), names=names)
        case ["all", *names] if not any(name.isdigit() for name in names):
            workers.run_all(profile := parts.Profile(), workers.default_workers(profile), names=names)
        case [part] if part in alone:
            alone[part](parts.Profile())
        case ["seed-data", seed] if seed.isdigit():
            parts.seed_data(parts.Profile(), int(seed))
        case [part, name, seed] if part in of_variants and seed.isdigit():
            of_variants[part](parts.Profile(), name, int(seed))
        case _:
            raise UserError(f"reproduce: `{' '.join(arguments)}` is no part; {USAGE}.")


def main() -> None:
    """The command line; a UserError is one sentence and status 1."""
    show_progress()
    if STARTER in os.environ:  # DVC ends with `all`, and a part with DVC
        end_with_starter()
    try:
        run(sys.argv[1:])
    except UserError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        print("stopped: what is finished is kept, run the same command to go on", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
