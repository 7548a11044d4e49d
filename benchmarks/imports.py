"""How long a start takes: median seconds of fresh processes that import sweetrl, or do nothing.

    python benchmarks/imports.py [ROUNDS]

`import sweetrl` loads neither torch nor transformers, and a domain is enough to list tasks, talk and score.
"""

import sys

from fresh_processes import measure

ROWS = {
    "bare interpreter": ["-c", ""],
    "import sweetrl": ["-c", "import sweetrl"],
    'sweetrl.domain("backend")': ["-c", 'import sweetrl; sweetrl.domain("backend")'],
}

if __name__ == "__main__":
    measure(ROWS, int((sys.argv[1:] or ["9"])[0]))
