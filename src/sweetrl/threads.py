"""How torch's threads wait for each other."""

from __future__ import annotations

import os

SPINS = "10000"
"""How often a waiting thread looks again before it sleeps: libgomp's own 300,000 are for a machine of one's own."""


def wait_briefly() -> None:
    """Let OpenMP's threads sleep soon while they wait; call it before torch is imported, which reads it then.

    Where another program has one of the cores, a thread that looks again and again keeps the one it waits for from
    running (benchmarks/busy_machine.py). What the environment says already wins. Results are the same bytes.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPINS)
