"""How long `sweetrl run` takes to say that there is nothing to do, beside the import without which nobody can ask.

    cd PROJECT && python benchmarks/nothing_to_do.py [ROUNDS]

PROJECT must be up to date: where a stage has something to do, the script says so and starts nothing. Processor seconds
say more than seconds on a busy machine.
"""

import sys
from pathlib import Path

from fresh_processes import measure

ROWS = {
    "import dvc.repo": ["-c", "import dvc.repo"],
    "sweetrl run, nothing to do": ["-m", "flows.run"],
}

if __name__ == "__main__":
    sys.path.insert(0, str(Path.cwd()))  # flows/ and tasks/ belong to the project, not to the package
    from tasks.training import at_rest

    if at_rest(Path.cwd()) is None:
        sys.exit(f"{Path.cwd()}: there is something to do here; `sweetrl run` first")
    measure(ROWS, int((sys.argv[1:] or ["5"])[0]))
