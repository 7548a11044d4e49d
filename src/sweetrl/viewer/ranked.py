"""Candidates, preference pairs and token log-ratios of a ranking, looked up by dialogue in Parquet files."""

from __future__ import annotations

import threading
from itertools import groupby
from pathlib import Path
from typing import Any, Generic, TypeVar

from sweetrl.sweet.preferences import CANDIDATES, PREFERENCES, TOKEN_RATIOS
from sweetrl.sweet.tables import Table
from sweetrl.types import Preference, RankedState, TokenRatios

_LOCK = threading.Lock()  # a Parquet file that two threads read at once ends the process

Row = TypeVar("Row")


class Rows(Generic[Row]):
    """A file whose rows of one dialogue are together: where they are is kept in memory. None where there is no file."""

    def __init__(self, path: Path, kind: type[Row]) -> None:
        import pyarrow.parquet as pq

        self._table: Any = None
        self._places: dict[tuple[str, int], tuple[int, int]] = {}  # by dialogue its first row, and how many it has
        if not path.exists():
            return
        self._table = Table(path, kind)
        keys = pq.read_table(path, columns=["task_id", "attempt"])
        start = 0
        for key, rows in groupby(zip(keys["task_id"].to_pylist(), keys["attempt"].to_pylist(), strict=True)):
            count = len(list(rows))
            self._places.setdefault(key, (start, count))
            start += count

    def count(self, task: str, attempt: int) -> int:
        """Return how many rows a dialogue has."""
        return self._places.get((task, attempt), (0, 0))[1]

    def of(self, task: str, attempt: int) -> list[Row]:
        """Return the rows of a dialogue, in order."""
        first, count = self._places.get((task, attempt), (0, 0))
        with _LOCK:
            return [self._table.item(number) for number in range(first, first + count)]


def ranked_files(folder: Path) -> list[Path]:
    """Return those of a ranking's tables that are there."""
    return [path for name in (CANDIDATES, PREFERENCES, TOKEN_RATIOS) if (path := folder / name).exists()]


class Ranked:
    """The ranking in a folder, by dialogue: its ranked turns and the pairs made of them; thread-safe."""

    def __init__(self, folder: Path) -> None:
        self.states = Rows(folder / CANDIDATES, RankedState)
        self.pairs = Rows(folder / PREFERENCES, Preference)
        self._ratios = Rows(folder / TOKEN_RATIOS, TokenRatios)

    def ratios(self, state: RankedState) -> TokenRatios | None:
        """Return what a ranked turn's advantages are made of, None where it is not stored."""
        stored = self._ratios.of(state.task_id, state.attempt)
        return next((ratios for ratios in stored if ratios.turn == state.turn), None)
