"""Kept rows are found by their longest shared prefix, and merged, dropped and grown rows keep their columns."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from sweetrl.engines.cache import CacheShape, PrefixCache, RowCache, common_prefix, place

SHAPE = CacheShape(layers=2, heads=1, size=1, sliding=(False, False))
tokens = st.lists(st.integers(0, 2), max_size=8).map(tuple)


def filled(rows: list[tuple[int, ...]]) -> RowCache:
    """A cache whose numbers are the tokens themselves (plus one, so that 0 is empty)."""
    width = max(len(row) for row in rows)
    cache = RowCache(SHAPE, len(rows), width, torch.zeros(1))
    for index, row in enumerate(rows):
        if row:
            cache.store[:, :, index, :, width - len(row) : width] = torch.tensor(row)[:, None] + 1.0
    return cache


def held(cache: RowCache) -> list[list[int]]:
    values = cache.store[-1, 1, : cache.rows, 0, cache.left : cache.stop, 0].tolist()
    return [[int(value) - 1 for value in row if value] for row in values]


@given(st.lists(tokens.filter(bool), min_size=1, max_size=6), tokens.filter(bool))
def test_the_longest_kept_prefix_is_found_and_placed(rows: list[tuple[int, ...]], prompt: tuple[int, ...]) -> None:
    kept = PrefixCache(10**6)
    kept.add(filled(rows).store, range(len(rows)), rows, [max(len(row) for row in rows)] * len(rows))
    assert kept.longest(prompt) == (0, None)  # not before the turn-over
    kept.turn_over()
    length, row = kept.longest(prompt)
    assert length == min(max(common_prefix(prompt, row) for row in rows), len(prompt) - 1)
    if row is not None:
        cache = RowCache(SHAPE, 1, len(prompt), torch.zeros(1))
        place(cache, 0, length, row, length)
        assert held(cache) == [list(prompt[:length])]
    kept.turn_over()
    assert kept.longest(prompt) == (0, None)


def test_nothing_is_kept_beyond_the_limit() -> None:
    rows = [(1, 2, 1), (2, 2, 2)]
    one, other = filled(rows).store, filled(rows).store
    kept = PrefixCache(one.numel())
    kept.add(one, [0], rows[:1], [3])
    kept.add(other, [1], rows[1:], [3])
    kept.add(one, [1], [(2, 1)], [3])  # nothing more to hold
    kept.turn_over()
    assert kept.longest((1, 2, 1, 0))[0] == 3
    assert kept.longest((2, 2, 2, 0))[0] == 1
