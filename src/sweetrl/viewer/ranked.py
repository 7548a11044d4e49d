"""Candidates, preference pairs and token log-ratios of a ranking, found by dialogue: rows of Parquet side by side."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np

from sweetrl.errors import UserError
from sweetrl.learning.preferences import (
    CANDIDATES,
    PREFERENCES,
    TOKEN_RATIOS,
    read_candidates,
    read_preferences,
    read_token_ratios,
)
from sweetrl.types import Preference, RankedState, TokenRatios

Rows = tuple[int, int]  # the first row of a dialogue, and how many it has


class Ranked:
    """The ranking in a folder. The rows of a dialogue are together in its files; where they are is kept in memory.

    Thread-safe: a Parquet file that two threads read at once ends the process.
    """

    def __init__(self, folder: Path) -> None:
        self._lock = threading.Lock()
        self._states = read_candidates(folder / CANDIDATES)
        self._places = _places(folder / CANDIDATES)
        pairs = folder / PREFERENCES
        self._pairs = read_preferences(pairs) if pairs.exists() else None
        self._pair_places = _places(pairs) if pairs.exists() else {}
        self._ratio_file = ratios = folder / TOKEN_RATIOS
        self._ratios = read_token_ratios(ratios) if ratios.exists() else None
        self._ratio_places = _places(ratios) if self._ratios is not None else {}

    def states(self, task: str, attempt: int) -> list[RankedState]:
        """Return the ranked turns of a dialogue, in order; none where it was not ranked."""
        first, count = self._places.get((task, attempt), (0, 0))
        with self._lock:
            return [self._states.item(first + number) for number in range(count)]

    def ratios(self, state: RankedState) -> TokenRatios | None:
        """Return what the advantages of a ranked turn are made of; None where that is not stored.

        A file that is of other candidates is a UserError.
        """
        if self._ratios is None:
            return None
        first, count = self._ratio_places.get((state.task_id, state.attempt), (0, 0))
        for place in range(first, first + count):
            with self._lock:
                one = self._ratios.item(place)
            if one.turn == state.turn:
                if [len(reply) for reply in one.replies] != [len(reply.token_ids) for reply in state.candidates]:
                    raise UserError(f"{self._ratio_file}: this is of other candidates; run the stage `rank` again.")
                return one
        return None

    def pairs(self, task: str, attempt: int) -> list[Preference]:
        """Return the preference pairs of a dialogue."""
        first, count = self._pair_places.get((task, attempt), (0, 0))
        if self._pairs is None:
            return []
        with self._lock:
            return [self._pairs.item(first + number) for number in range(count)]

    def count_pairs(self, task: str, attempt: int) -> int:
        """Return how many pairs were made of a dialogue."""
        return self._pair_places.get((task, attempt), (0, 0))[1]


def _places(path: Path) -> dict[tuple[str, int], Rows]:
    """Where the rows of each dialogue are; a dialogue whose rows are apart has the first of them only."""
    import pyarrow.parquet as pq

    found: dict[tuple[str, int], Rows] = {}
    last, start, number = None, 0, 0
    for batch in pq.ParquetFile(path).iter_batches(columns=["task_id", "attempt"], batch_size=65_536):
        tasks, attempts = batch["task_id"].to_pylist(), np.asarray(batch["attempt"]).tolist()
        for key in zip(tasks, attempts, strict=True):
            if key != last:
                if last is not None:
                    found.setdefault(last, (start, number - start))
                last, start = key, number
            number += 1
    if last is not None:
        found.setdefault(last, (start, number - start))
    return found
