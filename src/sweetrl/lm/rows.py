"""Rows of token ids on the disk, read one at a time: more of them than fit in memory.

225,000 dialogues of 2,000 tokens are 1.8 GB on the disk and would be 16 GB as tuples of Python's numbers.
"""

from __future__ import annotations

import os
import tempfile
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, starmap
from operator import eq
from typing import Any, BinaryIO, TypeVar, cast

import numpy as np

from sweetrl.paths import SCRATCH

T = TypeVar("T")


@dataclass(frozen=True)
class Row:
    """Token ids and the (start, end) of every agent reply in them, end exclusive, in order.

    `starts` says where the sequences begin that the model reads: one, where each prompt of a dialogue goes on from the
    reply before, and another wherever the template has written an earlier message in another way.
    """

    token_ids: tuple[int, ...]
    spans: tuple[tuple[int, int], ...]
    starts: tuple[int, ...] = (0,)

    @classmethod
    def of_turns(cls, turns: Iterable[tuple[tuple[int, ...], tuple[int, ...]]]) -> Row:
        """Lay out a dialogue given as (prompt, reply) of each turn, as token ids."""
        ids, starts, spans = list[int](), [0], list[tuple[int, int]]()
        for prompt, reply in turns:
            if tuple(ids[starts[-1] :]) == prompt[: len(ids) - starts[-1]]:
                ids += prompt[len(ids) - starts[-1] :]
            else:
                starts.append(len(ids))
                ids += prompt
            spans.append((len(ids), len(ids) + len(reply)))
            ids += reply
        return cls(tuple(ids), tuple(spans), tuple(starts))

    @property
    def sequences(self) -> list[Row]:
        """The sequences that the model reads, each with its own replies."""
        if len(self.starts) == 1:
            return [self]
        result = []
        for start, stop in pairwise((*self.starts, len(self.token_ids))):
            own = tuple((begin - start, end - start) for begin, end in self.spans if start <= begin < stop)
            result.append(Row(self.token_ids[start:stop], own))
        return result

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence."""
        return max(stop - start for start, stop in pairwise((*self.starts, len(self.token_ids))))

    def prompt(self, turn: int) -> tuple[int, ...]:
        """What stands before reply number `turn` (from 0) in its sequence."""
        start = self.spans[turn][0]
        return self.token_ids[self.starts[bisect_right(self.starts, start) - 1] : start]

    @property
    def reply_tokens(self) -> int:
        """Tokens inside the spans."""
        return sum(end - start for start, end in self.spans)

    def last(self) -> Row:
        """The sequence up to the end of the last reply, with that reply alone."""
        first, (start, end) = self.starts[-1], self.spans[-1]
        return Row(self.token_ids[first:end], ((start - first, end - first),))


class Listed(Sequence[T]):
    """A sequence whose items `item` makes, each time anew. Compares as a tuple does."""

    def item(self, index: int) -> T:
        """Return item number `index`, which is there."""
        raise NotImplementedError

    def __getitem__(self, index: Any) -> Any:
        """Return an item, or a list of those of a slice."""
        places = range(len(self))[index]
        return [self.item(place) for place in places] if isinstance(places, range) else self.item(places)

    def __iter__(self) -> Iterator[T]:
        return map(self.item, range(len(self)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(starmap(eq, zip(self, other, strict=True)))

    __hash__ = None  # type: ignore[assignment]


class IndexPairs(Listed[tuple[int, int]]):
    """Pairs of indices, in 8 bytes each."""

    def __init__(self, pairs: Iterable[tuple[int, int]] = ()) -> None:
        self._numbers = array("i")
        for pair in pairs:
            self._numbers.extend(pair)

    def __len__(self) -> int:
        return len(self._numbers) // 2

    def item(self, index: int) -> tuple[int, int]:
        """Return pair number `index`."""
        return self._numbers[2 * index], self._numbers[2 * index + 1]


class RowFile(Listed[Row]):
    """Rows in a file of their own, 4 bytes a token; the file goes with the last object that reads it.

    A row of which at least half stands at the beginning of one before it takes only what is new: the replies to one
    prompt, the attempts at one task. In memory a row takes about 60 bytes.
    """

    def __init__(self, rows: Iterable[Row] = ()) -> None:
        self._file = unnamed_file()
        # The first `shared` tokens of a row begin at token `head` of the file, the others at `tail`.
        self._head, self._shared, self._tail = array("q"), array("i"), array("q")
        self._spans, self._ends = array("i"), array("q")
        self._starts = dict[int, tuple[int, ...]]()  # of the rows that have several sequences
        self.lengths = array("i")
        """How many tokens each row has."""
        self.longest = array("i")
        """How many tokens the longest sequence of each row has."""
        self.reply_tokens = array("i")
        """How many tokens of each row are in its spans."""
        self._like, self._like_at = np.zeros(0, dtype=np.int32), 0
        for row in rows:
            self.append(row)

    def append(self, row: Row) -> None:
        """Add a row at the end."""
        ids = np.array(row.token_ids, dtype=np.int32)
        shared = common_prefix(ids, self._like)
        end = self._file.seek(0, os.SEEK_END) // ids.itemsize
        if 2 * shared < len(ids):
            shared, self._like, self._like_at = 0, ids, end
        self._file.write(ids[shared:].tobytes())
        self._file.flush()
        self._head.append(self._like_at)
        self._shared.append(shared)
        self._tail.append(end)
        for span in row.spans:
            self._spans.extend(span)
        self._ends.append(len(self._spans))
        if len(row.starts) > 1:
            self._starts[len(self)] = row.starts
        self.lengths.append(len(ids))
        self.longest.append(row.longest)
        self.reply_tokens.append(row.reply_tokens)

    def __len__(self) -> int:
        return len(self.lengths)

    def item(self, index: int) -> Row:
        """Read row number `index`."""
        shared = self._shared[index]
        ids = self._read(self._head[index], shared) + self._read(self._tail[index], self.lengths[index] - shared)
        spans = self._spans[self._ends[index - 1] if index else 0 : self._ends[index]]
        return Row(tuple(ids), tuple(zip(spans[::2], spans[1::2], strict=True)), self._starts.get(index, (0,)))

    def choose(self, places: Iterable[int]) -> RowFile:
        """Return the rows at `places`, in the same file; what is appended to one of the two the other does not have."""
        chosen = RowFile.__new__(RowFile)
        chosen._file, chosen._like, chosen._like_at = self._file, self._like, self._like_at
        places = array("q", places)
        chosen._starts = {new: self._starts[old] for new, old in enumerate(places) if old in self._starts}
        for name in ("_head", "_shared", "_tail", "lengths", "longest", "reply_tokens"):
            column = getattr(self, name)
            setattr(chosen, name, array(column.typecode, (column[place] for place in places)))
        chosen._spans, chosen._ends = array("i"), array("q")
        for place in places:
            chosen._spans += self._spans[self._ends[place - 1] if place else 0 : self._ends[place]]
            chosen._ends.append(len(chosen._spans))
        return chosen

    def _read(self, first: int, count: int) -> list[int]:
        ids = array("i")
        ids.frombytes(os.pread(self._file.fileno(), count * ids.itemsize, first * ids.itemsize))
        return ids.tolist()


def common_prefix(first: np.ndarray[Any, Any], second: np.ndarray[Any, Any]) -> int:
    """Return how many leading numbers of two arrays are equal (of tuples: sweetrl.engines.cache.common_prefix)."""
    length = min(len(first), len(second))
    differs = first[:length] != second[:length]
    return int(differs.argmax()) if differs.any() else length


def choose(rows: Sequence[Row], places: Sequence[int]) -> Sequence[Row]:
    """Return the rows at `places`."""
    return rows.choose(places) if isinstance(rows, RowFile) else tuple(rows[place] for place in places)


def lengths_of(rows: Sequence[Row]) -> Sequence[int]:
    """Return how many tokens each row has; those in files are not read."""
    return rows.lengths if isinstance(rows, RowFile) else [len(row.token_ids) for row in rows]


def longest_of(rows: Sequence[Row]) -> Sequence[int]:
    """Return how many tokens the longest sequence of each row has; rows in files are not read."""
    return rows.longest if isinstance(rows, RowFile) else [row.longest for row in rows]


def sequences_of(rows: Sequence[Row]) -> Sequence[int]:
    """Return how many sequences each row has; rows in files are not read."""
    if isinstance(rows, RowFile):
        return [len(rows._starts.get(index, (0,))) for index in range(len(rows))]
    return [len(row.starts) for row in rows]


def reply_tokens_of(rows: Sequence[Row]) -> Sequence[int]:
    """Return how many reply tokens each row has; those in files are not read."""
    return rows.reply_tokens if isinstance(rows, RowFile) else [row.reply_tokens for row in rows]


def unnamed_file() -> BinaryIO:
    """Open a file that goes with its last reader, however the process ends; in a project beside its unfinished work.

    (The system's folder for temporary files is in memory on some machines.)
    """
    folder = SCRATCH if SCRATCH.is_dir() else None
    return cast("BinaryIO", tempfile.TemporaryFile(prefix="sweetrl-", dir=folder))
