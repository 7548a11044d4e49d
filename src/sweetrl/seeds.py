"""Every seed of the project, derived from what it is for and never from when or where something runs.

All of them are hashes of their arguments: the same on every machine and in every order of running.
"""

from __future__ import annotations

import hashlib

from sweetrl.errors import UserError
from sweetrl.types import Split

TEST_SHARE = 8
MOST = 2**32 - 1  # numpy and transformers take no seed above this, and none below 0


def check_seed(seed: int | None) -> None:
    """UserError where some library takes no such seed: it would fail hours later."""
    if seed is not None and not 0 <= seed <= MOST:
        raise UserError(f"a seed of {seed} is impossible; give one from 0 to {MOST}.")


def dialogue_seed(seed: int, task_id: str, attempt: int, turn: int = -1) -> int:
    """Return the seed (63 bits) of an attempt's agent turn (from 0); turn -1 stands for the dialogue as a whole."""
    return _hash(f"agent\0{seed}\0{task_id}\0{attempt}\0{turn}") >> 1


def simulator_seed(seed: int, turn: int) -> int:
    """Return the user simulator's seed (63 bits) for turn `turn` (from 1) of a dialogue with `seed`."""
    return _hash(f"person:{seed}:{turn}") >> 1


def state_seed(seed: int, purpose: str, task_id: str, attempt: int, turn: int) -> int:
    """Return a seed (63 bits) for one purpose (sampling candidates, drawing pairs, ...) at one state of a dialogue."""
    return _hash(f"{purpose}:{seed}:{task_id}:{attempt}:{turn}") >> 1


def best_of_n_seed(seed: int, task_id: str, turn: int) -> int:
    """Return the seed (63 bits) of the sampling at turn `turn` (from 0) of a task; -1 is the user simulator's.

    It does not depend on critic and N: dialogues that have come to the same state share what is sampled there.
    """
    return _hash(f"best of n\0{seed}\0{task_id}\0{turn}") >> 1


def part_seed(seed: int, what: str, number: int) -> int:
    """Return the seed (31 bits) of part `number` of `what`, an iteration; number 1 is `seed` itself."""
    if number == 1:
        return seed
    return _hash(f"{what}\0{seed}\0{number}", 4) >> 1


def split_of(content: str) -> Split:
    """Return the split that a generated task's content belongs to, whatever the seed; one in TEST_SHARE is test."""
    return "test" if _hash(content, 1) % TEST_SHARE == 0 else "train"


def trace_draw(seed: int, task_id: str, attempt: int) -> float:
    """Return a number in [0, 1) that belongs to an attempt: which dialogues are logged as traces."""
    return _hash(f"trace\0{seed}\0{task_id}\0{attempt}", 7) / 2**56


def _hash(text: str, size: int = 8) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:size], "big")
