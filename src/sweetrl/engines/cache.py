"""The key-value cache of a batch of dialogues, packed so that every row ends at the same column.

Row r of length n occupies the columns [width - n, width) of one preallocated tensor; a decoding step writes one column
in place. transformers sees it as a Cache; a row is a contiguous run, so the ordinary left-padding mask describes it.
Rows can be dropped, merged with others, kept for later and put in front of longer prompts.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

# Columns added when a buffer is full: few copies, little that is reserved for nothing.
GROWTH = 32


@dataclass(frozen=True)
class CacheShape:
    """What one token's keys (and, alike, values) look like; `sliding` marks the layers with an attention window."""

    layers: int
    heads: int
    size: int
    sliding: tuple[bool, ...]

    @property
    def numbers(self) -> int:
        """How many numbers one token takes, keys and values together."""
        return 2 * self.layers * self.heads * self.size


class RowCache:
    """Keys and values of a batch: `store` [layers, 2, rows, heads, columns, size], `width` columns of it in use."""

    def __init__(self, shape: CacheShape, rows: int, width: int, like: torch.Tensor, room: int = GROWTH) -> None:
        self.shape = shape
        self.width = width
        self.store = like.new_zeros((shape.layers, 2, rows, shape.heads, width + room, shape.size))
        self.start = 0  # the column at which the running forward pass writes
        self.fresh: torch.Tensor | None = None  # [rows, 1, written columns, 1]: False where older columns must survive

    def write(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Write one layer's new keys and values [rows, heads, new, size]; return those of all columns up to there."""
        import torch

        stop = self.start + keys.shape[2]
        store = self.store[layer]
        if self.fresh is None:
            store[0, :, :, self.start : stop] = keys
            store[1, :, :, self.start : stop] = values
        else:
            for index, new in enumerate((keys, values)):
                old = store[index, :, :, self.start : stop]
                old.copy_(torch.where(self.fresh, new, old))
        return store[0, :, :, :stop], store[1, :, :, :stop]

    def extend(self) -> None:
        """Take one more column into use, growing the buffer where it is full."""
        import torch

        if self.width == self.store.shape[4]:
            room = self.store.new_zeros((*self.store.shape[:4], max(GROWTH, self.width // 8), self.shape.size))
            self.store = torch.cat([self.store, room], dim=4)
        self.width += 1

    def select(self, rows: Sequence[int], first: int, stop: int, room: int = 0) -> torch.Tensor:
        """Copy the columns [first, stop) of `rows` into a new store with `room` empty columns after them."""
        import torch

        index = torch.as_tensor(rows, device=self.store.device)
        part = self.store[:, :, :, :, first:stop]
        if not room:
            return part.index_select(2, index)
        shape = (*self.store.shape[:2], len(rows), self.shape.heads, stop - first + room, self.shape.size)
        new = self.store.new_zeros(shape)
        new[:, :, :, :, : stop - first] = part.index_select(2, index)
        return new

    def keep(self, rows: Sequence[int], lengths: Sequence[int]) -> None:
        """Drop all rows but `rows` (a row may be named several times), and columns that no row of `lengths` needs."""
        first = self.width - max(lengths)
        self.store = self.select(rows, first, self.width, GROWTH)
        self.width -= first

    def append(self, other: RowCache) -> None:
        """Put the rows of `other` after the own ones; the narrower of the two moves to the right."""
        width = max(self.width, other.width)
        rows = self.store.shape[2]
        merged = RowCache(self.shape, rows + other.store.shape[2], width, self.store)
        merged.store[:, :, :rows, :, width - self.width : width] = self.store[:, :, :, :, : self.width]
        merged.store[:, :, rows:, :, width - other.width : width] = other.store[:, :, :, :, : other.width]
        self.store, self.width = merged.store, width

    def for_model(self) -> Any:
        """Return the transformers Cache through which a model reads and writes these rows."""
        from transformers.cache_utils import Cache

        return Cache(layers=[_layer(self, index) for index in range(self.shape.layers)])


_LAYER: list[type] = []


def _layer(rows: RowCache, index: int) -> Any:
    """Make the view of one layer; its class is made on first use because importing transformers takes seconds."""
    if not _LAYER:
        from transformers.cache_utils import CacheLayerMixin

        class RowLayer(CacheLayerMixin):
            """One layer of a RowCache. Sliding-window layers keep all columns; the mask alone makes the window."""

            def __init__(self, rows: RowCache, index: int) -> None:
                super().__init__()
                self.rows, self.index = rows, index
                self.is_sliding = rows.shape.sliding[index]
                self.is_initialized = True

            def lazy_initialization(self, key_states: Any, value_states: Any) -> None: ...

            def update(self, key_states: Any, value_states: Any, *args: Any, **kwargs: Any) -> Any:
                return self.rows.write(self.index, key_states, value_states)

            def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
                return self.rows.start + query_length, 0

            def get_seq_length(self) -> int:
                return self.rows.start

            def get_max_length(self) -> int:
                return -1

        _LAYER.append(RowLayer)
    return _LAYER[0](rows, index)


@dataclass(order=True)
class _Kept:
    """One row that was kept: its tokens, and where its columns lie in a store."""

    tokens: tuple[int, ...]
    store: Any = field(compare=False)
    row: int = field(compare=False)
    stop: int = field(compare=False)


class PrefixCache:
    """Rows of earlier calls, found again by the longest prefix that a prompt shares with their tokens.

    At most `limit` numbers are kept; of more rows the earlier ones stay.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._size = 0
        self._new: list[_Kept] = []
        self._rows: list[_Kept] = []

    def add(
        self, cache: RowCache, rows: Sequence[int], tokens: Sequence[tuple[int, ...]], stops: Sequence[int]
    ) -> None:
        """Keep `rows` of `cache`; row i holds exactly `tokens[i]` and ends before column `stops[i]`."""
        if not rows:
            return
        first = min(stop - len(ids) for stop, ids in zip(stops, tokens, strict=True))
        size = cache.shape.numbers * len(rows) * (max(stops) - first)
        if self._size + size > self.limit:
            return
        self._size += size
        store = cache.select(rows, first, max(stops))
        self._new.extend(
            _Kept(ids, store, row, stop - first) for row, (ids, stop) in enumerate(zip(tokens, stops, strict=True))
        )

    def turn_over(self) -> None:
        """From now on find the rows added since the last turn-over, and forget those before."""
        self._rows, self._new, self._size = sorted(self._new), [], 0

    def longest(self, prompt: tuple[int, ...]) -> tuple[int, _Kept | None]:
        """Return the length of the longest kept prefix of `prompt`, short of its last token, and its row."""
        # In lexicographic order the longest common prefix is with one of the two neighbours.
        at = bisect_left(self._rows, prompt, key=lambda kept: kept.tokens)
        best: tuple[int, _Kept | None] = (0, None)
        for kept in self._rows[max(at - 1, 0) : at + 1]:
            shared = min(common_prefix(prompt, kept.tokens), len(prompt) - 1)
            if shared > best[0]:
                best = (shared, kept)
        return best


def common_prefix(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    """Return how many leading elements are equal."""
    low, high = 0, min(len(one), len(other))
    if one[:high] == other[:high]:
        return high
    while low < high:  # a bisection over slices compares in C, a loop over elements in Python
        middle = (low + high + 1) // 2
        if one[:middle] == other[:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def place(cache: RowCache, row: int, stop: int, kept: _Kept, length: int) -> None:
    """Copy the first `length` tokens of a kept row so that they end before column `stop` of `row`."""
    begin = kept.stop - len(kept.tokens)
    cache.store[:, :, row, :, stop - length : stop] = kept.store[:, :, kept.row, :, begin : begin + length]
