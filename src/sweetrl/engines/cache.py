"""The key-value cache of a batch of dialogues, packed so that every row ends at the same column.

Row r of length n occupies the columns [stop - n, stop) of one preallocated tensor; a decoding step writes one column in
place. transformers sees it as a Cache; a row is a contiguous run, so the ordinary left-padding mask describes it.
Rows can be dropped, merged with others, kept for later and put in front of longer prompts. Moving memory is what costs
time here, and fresh memory most of all: ended rows are swapped to the end, and buffers are used again.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from math import prod
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


class RowCache:
    """Keys and values of a batch in `store` [layers, 2, rows, heads, columns, size].

    Of it the first `rows` rows and the columns [left, stop) are in use. `spare` is an old store whose memory may be
    used again. What stands left of a row is masked; it must be finite and has no other meaning.
    """

    def __init__(
        self,
        shape: CacheShape,
        rows: int,
        width: int,
        like: torch.Tensor,
        room: int = GROWTH,
        spare: torch.Tensor | None = None,
    ) -> None:
        self.shape = shape
        self.rows, self.left, self.stop = rows, 0, width
        needed = (shape.layers, 2, rows, shape.heads, width + room, shape.size)
        if spare is not None and spare.numel() >= prod(needed):
            self.store = spare.view(-1)[: prod(needed)].view(needed)
        else:
            self.store = like.new_zeros(needed)
        self.start = 0  # the column at which the running forward pass writes
        self.fresh: torch.Tensor | None = None  # [rows, 1, written columns, 1]: False where older columns must survive

    @property
    def width(self) -> int:
        """How many columns are in use."""
        return self.stop - self.left

    def write(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Write one layer's new keys and values [rows, heads, new, size]; return those of all columns up to there."""
        import torch

        stop = self.start + keys.shape[2]
        store = self.store[layer, :, : self.rows]
        if self.fresh is None:
            store[0, :, :, self.start : stop] = keys
            store[1, :, :, self.start : stop] = values
        else:
            for index, new in enumerate((keys, values)):
                old = store[index, :, :, self.start : stop]
                old.copy_(torch.where(self.fresh, new, old))
        return store[0, :, :, self.left : stop], store[1, :, :, self.left : stop]

    def extend(self) -> None:
        """Take one more column into use, in a larger buffer where this one is full."""
        if self.stop == self.store.shape[4]:
            self._move(RowCache(self.shape, self.rows, self.width, self.store, GROWTH + self.width // 8))
        self.stop += 1

    def drop(self, alive: Sequence[int], lengths: Sequence[int]) -> list[int]:
        """Keep the rows `alive` only, whose lengths are `lengths`; return which old row each row is now.

        The rest of the returned list is where the dropped rows went, behind the used ones: they stay readable there.
        """
        order = list(range(self.rows))
        count = len(alive)
        holes = sorted(set(range(count)) - set(alive))
        for hole, mover in zip(holes, [row for row in alive if row >= count], strict=True):
            ended, alive_row = (self.store[:, :, row, :, self.left : self.stop] for row in (hole, mover))
            held = ended.clone()
            ended.copy_(alive_row)
            alive_row.copy_(held)
            order[hole], order[mover] = mover, hole
        self.rows = count
        self.left = self.stop - max(lengths)
        return order

    def spread(self, rows: Sequence[int]) -> None:
        """Let the rows be copies of `rows`, which names old ones, some of them several times."""
        import torch

        wider = RowCache(self.shape, len(rows), self.width, self.store)
        index = torch.as_tensor(rows, device=self.store.device)
        used = self.store[:, :, :, :, self.left : self.stop]
        torch.index_select(used, 2, index, out=wider.store[:, :, :, :, : self.width])
        self.store, self.rows, self.left, self.stop = wider.store, wider.rows, 0, wider.stop

    def append(self, other: RowCache, in_place: bool) -> None:
        """Put the rows of `other` after the own ones, in the place of dropped rows where that is allowed and fits."""
        rows = self.rows + other.rows
        if not in_place or rows > self.store.shape[2] or other.width > self.stop:
            self._move(RowCache(self.shape, rows, max(self.width, other.width), self.store))
        own = self.store[:, :, self.rows : rows, :, : self.stop]
        own[:, :, :, :, self.stop - other.width :] = other.store[:, :, : other.rows, :, other.left : other.stop]
        self.rows, self.left = rows, min(self.left, self.stop - other.width)

    def _move(self, new: RowCache) -> None:
        """Continue in the buffer of `new`, with the used rows and columns."""
        used = self.store[:, :, : self.rows, :, self.left : self.stop]
        new.store[:, :, : self.rows, :, new.stop - self.width : new.stop] = used
        self.store, self.left, self.stop = new.store, new.stop - self.width, new.stop


def cache_view(cache: Any) -> Any:
    """Return the transformers Cache through which a model reads and writes the rows of `cache`."""
    from transformers.cache_utils import Cache

    return Cache(layers=[_layer_class()(cache, index) for index in range(cache.shape.layers)])


@cache
def _layer_class() -> Any:
    """The view of one layer; the class is made on first use because importing transformers takes seconds."""
    from transformers.cache_utils import CacheLayerMixin

    class RowLayer(CacheLayerMixin):
        """One layer of a cache. Sliding-window layers keep all columns; the mask alone makes the window."""

        def __init__(self, cache: Any, index: int) -> None:
            super().__init__()
            self.cache, self.index = cache, index
            self.is_sliding = cache.shape.sliding[index]
            self.is_initialized = True

        def lazy_initialization(self, key_states: Any, value_states: Any) -> None: ...

        def update(self, key_states: Any, value_states: Any, *args: Any, **kwargs: Any) -> Any:
            return self.cache.write(self.index, key_states, value_states)

        def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
            return self.cache.start - self.cache.left + query_length, 0

        def get_seq_length(self) -> int:
            return self.cache.start - self.cache.left

        def get_max_length(self) -> int:
            return -1

    return RowLayer


@dataclass(order=True)
class _Kept:
    """One row that was kept: its tokens, and where its columns lie in a store."""

    tokens: tuple[int, ...]
    store: Any = field(compare=False)
    row: int = field(compare=False)
    stop: int = field(compare=False)


class PrefixCache:
    """Rows of earlier calls, found again by the longest prefix that a prompt shares with their tokens.

    The rows stay where they were computed, in the buffers of the last call; at most `limit` numbers are held.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._new: list[_Kept] = []
        self._rows: list[_Kept] = []
        self._held: dict[int, int] = {}
        self._spare: torch.Tensor | None = None

    def add(
        self, store: torch.Tensor, rows: Sequence[int], tokens: Sequence[tuple[int, ...]], stops: Sequence[int]
    ) -> None:
        """Keep `rows` of `store`; row i holds just `tokens[i]`, ends before column `stops[i]` and changes no more."""
        held = self._held | {id(store): store.numel()}
        if sum(held.values()) > self.limit:
            return
        self._held = held
        self._new.extend(_Kept(ids, store, row, stop) for row, ids, stop in zip(rows, tokens, stops, strict=True))

    def turn_over(self) -> None:
        """From now on find the rows added since the last turn-over, and forget those before."""
        stores = {id(kept.store): kept.store for kept in self._rows}
        self._spare = max(stores.values(), key=lambda store: store.numel(), default=self._spare)
        self._rows, self._new, self._held = sorted(self._new), [], {}

    def spare(self) -> torch.Tensor | None:
        """Hand over a buffer that nothing refers to any more, if there is one."""
        spare, self._spare = self._spare, None
        return spare

    def longest(self, prompt: tuple[int, ...]) -> tuple[int, _Kept | None]:
        """Return the length of the longest kept prefix of `prompt`, short of its last token, and its row."""
        return nearest(self._rows, prompt)


def nearest(rows: Sequence[Any], prompt: tuple[int, ...]) -> tuple[int, Any]:
    """Return the length of the longest prefix of `prompt`, short of its last token, in `rows`, and which one has it.

    Rows have `tokens` and are in their order; where none begins like the prompt, it is 0 and None.
    """
    # In lexicographic order the longest common prefix is with one of the two neighbours.
    at = bisect_left(rows, prompt, key=lambda row: row.tokens)
    best: tuple[int, Any] = (0, None)
    for row in rows[max(at - 1, 0) : at + 1]:
        shared = min(common_prefix(prompt, row.tokens), len(prompt) - 1)
        if shared > best[0]:
            best = (shared, row)
    return best


def common_prefix(first: tuple[int, ...], second: tuple[int, ...]) -> int:
    """Return how many leading elements are equal."""
    low, high = 0, min(len(first), len(second))
    if first[:high] == second[:high]:
        return high
    while low < high:  # a bisection over slices compares in C, a loop over elements in Python
        middle = (low + high + 1) // 2
        if first[:middle] == second[:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def place(cache: RowCache, row: int, stop: int, kept: _Kept, length: int) -> None:
    """Copy the first `length` tokens of a kept row so that they end before column `stop` of `row`."""
    begin = kept.stop - len(kept.tokens)
    cache.store[:, :, row, :, stop - length : stop] = kept.store[:, :, kept.row, :, begin : begin + length]
