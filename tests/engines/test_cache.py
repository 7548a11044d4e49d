"""Kept rows are found by their longest shared prefix, and merged, dropped and grown rows keep their columns."""

from __future__ import annotations

import pytest
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


@given(tokens, tokens)
def test_common_prefix(one: tuple[int, ...], other: tuple[int, ...]) -> None:
    expected = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    assert common_prefix(one, other) == expected


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


def test_a_forgotten_buffer_is_handed_over_once() -> None:
    kept = PrefixCache(10**6)
    store = filled([(1, 2)]).store
    kept.add(store, [0], [(1, 2)], [2])
    kept.turn_over()
    assert kept.spare() is None  # still in use
    kept.turn_over()
    spare = kept.spare()
    assert spare is store
    assert kept.spare() is None
    cache = RowCache(SHAPE, 1, 1, torch.zeros(1), spare=spare)
    assert cache.store.data_ptr() == store.data_ptr()
    assert RowCache(SHAPE, 9, 9, torch.zeros(1), spare=spare).store.data_ptr() != store.data_ptr()


def step(cache: RowCache, token: int) -> None:
    cache.extend()
    cache.start = cache.stop - 1
    for layer in range(2):
        written = torch.full((cache.rows, 1, 1, 1), token + 1.0)
        keys, values = cache.write(layer, written, written)
    assert keys.shape == values.shape == (cache.rows, 1, cache.width, 1)


@pytest.mark.parametrize("in_place", [False, True])
def test_rows_survive_growing_dropping_and_merging(in_place: bool) -> None:
    rows = [(1, 2, 1, 0), (2,), (0, 1), (1, 1, 1)]
    cache = filled(rows)
    for _ in range(100):
        step(cache, 2)
    expected = [[*row, *[2] * 100] for row in rows]
    assert held(cache) == expected
    assert cache.drop([1, 3], [101, 103]) == [3, 1, 2, 0]
    assert cache.width == 103
    assert held(cache) == [expected[3], expected[1]]
    # The dropped rows stay readable behind the used ones.
    behind = cache.store[0, 0, 2:, 0, cache.stop - 104 : cache.stop, 0].tolist()
    assert behind[1] == [token + 1.0 for token in expected[0]]
    assert behind[0][2:] == [token + 1.0 for token in expected[2]]
    step(cache, 0)
    cache.append(filled([(1, 1)]), in_place)
    expected = [[*expected[3], 0], [*expected[1], 0], [1, 1]]
    # Left of a merged row stands what was there before; a mask hides it.
    assert [row[-len(want) :] for row, want in zip(held(cache), expected, strict=True)] == expected
    wider = filled([(1,) * 200])
    wider.append(cache, in_place)
    assert [row[-len(want) :] for row, want in zip(held(wider), [[1] * 200, *expected], strict=True)] == [
        [1] * 200,
        *expected,
    ]
    step(wider, 1)
    assert held(wider)[3][-3:] == [1, 1, 1]


def test_rows_are_spread_to_copies() -> None:
    cache = filled([(1, 2), (2,)])
    cache.spread([0, 0, 1])
    step(cache, 0)
    assert held(cache) == [[1, 2, 0], [1, 2, 0], [2, 0]]


def test_columns_marked_as_old_are_not_overwritten() -> None:
    cache = filled([(1, 2), (2, 1)])
    cache.start, cache.fresh = 0, torch.tensor([[True, True], [False, True]])[:, None, :, None]
    for layer in range(2):
        cache.write(layer, torch.full((2, 1, 2, 1), 7.0), torch.full((2, 1, 2, 1), 7.0))
    assert held(cache) == [[6, 6], [2, 6]]
