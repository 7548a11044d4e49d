"""Candidates, preference pairs and token log-ratios of a ranking, found by dialogue: rows of Parquet side by side."""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from sweetrl.errors import UserError
from sweetrl.sweet.preferences import (
    CANDIDATES,
    PREFERENCES,
    TOKEN_RATIOS,
    read_candidates,
    read_preferences,
    read_token_ratios,
)
from sweetrl.types import Preference, RankedState, TokenRatios

_LOCK = threading.Lock()  # a Parquet file that two threads read at once ends the process


class _Rows:
    """A file whose rows of one dialogue are together: where they are is kept in memory. None where there is no file."""

    def __init__(self, path: Path, read: Callable[[Path], Any]) -> None:
        self._table: Any = read(path) if path.exists() else None
        self._places = _places(path) if path.exists() else {}

    def count(self, task: str, attempt: int) -> int:
        return self._places.get((task, attempt), (0, 0))[1]

    def of(self, task: str, attempt: int) -> list[Any]:
        """Return the rows of a dialogue, in order."""
        first, count = self._places.get((task, attempt), (0, 0))
        with _LOCK:
            return [self._table.item(number) for number in range(first, first + count)]


class Ranked:
    """The ranking in a folder; thread-safe."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._states = _Rows(folder / CANDIDATES, read_candidates)
        self._pairs = _Rows(folder / PREFERENCES, read_preferences)
        self._ratios = _Rows(folder / TOKEN_RATIOS, read_token_ratios)

    def states(self, task: str, attempt: int) -> list[RankedState]:
        """Return the ranked turns of a dialogue, in order; none where it was not ranked."""
        return self._states.of(task, attempt)

    def ratios(self, state: RankedState) -> TokenRatios | None:
        """Return what the advantages of a ranked turn are made of; None where that is not stored.

        A file that is of other candidates is a UserError.
        """
        for ratios in self._ratios.of(state.task_id, state.attempt):
            if ratios.turn == state.turn:
                if [len(reply) for reply in ratios.replies] != [len(reply.token_ids) for reply in state.candidates]:
                    path = self.folder / TOKEN_RATIOS
                    raise UserError(f"{path}: this is of other candidates; run the stage `rank` again.")
                found: TokenRatios = ratios
                return found
        return None

    def pairs(self, task: str, attempt: int) -> list[Preference]:
        """Return the preference pairs of a dialogue."""
        return self._pairs.of(task, attempt)

    def count_pairs(self, task: str, attempt: int) -> int:
        """Return how many pairs were made of a dialogue."""
        return self._pairs.count(task, attempt)


def _places(path: Path) -> dict[tuple[str, int], tuple[int, int]]:
    """By dialogue its first row and how many it has; where its rows are apart, the first of them only."""
    import pyarrow.parquet as pq

    found: dict[tuple[str, int], tuple[int, int]] = {}
    table = pq.read_table(path, columns=["task_id", "attempt"])
    keys = list(zip(table["task_id"].to_pylist(), np.asarray(table["attempt"]).tolist(), strict=True))
    start = 0
    for key, rows in groupby(keys):
        count = len(list(rows))
        found.setdefault(key, (start, count))
        start += count
    return found
