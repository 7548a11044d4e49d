"""The seed of everything random in a dialogue, derived from what the dialogue is and not from when it runs."""

from __future__ import annotations

import hashlib


def dialogue_seed(seed: int, task_id: str, attempt: int, turn: int = -1) -> int:
    """Return the seed (63 bits) of agent turn `turn` (from 0) of an attempt at a task; -1 is the dialogue as a whole.

    The same on every machine and in every order of running, because it is a hash of the arguments.
    """
    text = f"agent\0{seed}\0{task_id}\0{attempt}\0{turn}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
