"""`python -m sweetrl.reproduce PART ...` in a profile's folder: what its dvc.yaml runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from sweetrl.errors import UserError
from sweetrl.logs import show_progress
from sweetrl.reproduce import workers

USAGE = (
    "name a part: all [WORKERS], base, warm-start, seed-data SEED, base-large, variant NAME SEED, measure NAME SEED, "
    "best-of-n NAME SEED, tune NAME SEED, report"
)


def run(arguments: Sequence[str]) -> None:
    """Run one part; UserError for a command line that names none."""
    from sweetrl.reproduce import report
    from sweetrl.reproduce.run import Profile, base, base_large, best_of_n, measure, seed_data, variant, warm_start
    from sweetrl.reproduce.tuning import tune

    match list(arguments):
        case ["all"]:
            workers.run_all(Profile(), workers.default_workers(Profile()))
        case ["all", count] if count.isdigit() and int(count):
            workers.run_all(Profile(), int(count))
        case ["base"]:
            base(Profile())
        case ["warm-start"]:
            warm_start(Profile())
        case ["seed-data", seed] if seed.isdigit():
            seed_data(Profile(), int(seed))
        case ["base-large"]:
            base_large(Profile())
        case ["variant", name, seed] if seed.isdigit():
            variant(Profile(), name, int(seed))
        case ["measure", name, seed] if seed.isdigit():
            measure(Profile(), name, int(seed))
        case ["tune", name, seed] if seed.isdigit():
            tune(Profile(), name, int(seed))
        case ["best-of-n", name, seed] if seed.isdigit():
            best_of_n(Profile(), name, int(seed))
        case ["report"]:
            report.write(Profile())
        case _:
            raise UserError(f"reproduce: `{' '.join(arguments)}` is no part; {USAGE}.")


def main() -> None:
    """The command line; a UserError is one sentence and status 1."""
    show_progress()
    if workers.STARTER in os.environ:  # DVC ends with `all`, and a part with DVC
        workers.end_with_parent()
    try:
        run(sys.argv[1:])
    except UserError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        print("stopped: what is finished is kept, run the same command to go on", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
