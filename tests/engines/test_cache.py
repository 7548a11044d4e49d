"""What is kept of earlier calls has a limit; that it is found and changes nothing is in test_transformers.py."""

from __future__ import annotations

import torch

from sweetrl.engines.cache import CacheShape, PrefixCache, RowCache

SHAPE = CacheShape(layers=2, heads=1, size=1, sliding=(False, False))


def filled(rows: list[tuple[int, ...]]) -> RowCache:
    """A cache whose numbers are the tokens themselves (plus one, so that 0 is empty)."""
    width = max(len(row) for row in rows)
    cache = RowCache(SHAPE, len(rows), width, torch.zeros(1))
    for index, row in enumerate(rows):
        cache.store[:, :, index, :, width - len(row) : width] = torch.tensor(row)[:, None] + 1.0
    return cache


def test_nothing_is_kept_beyond_the_limit() -> None:
    rows = [(1, 2, 1), (2, 2, 2)]
    first, second = filled(rows).store, filled(rows).store
    kept = PrefixCache(first.numel())
    kept.add(first, [0], rows[:1], [3])
    kept.add(second, [1], rows[1:], [3])
    kept.add(first, [1], [(2, 1)], [3])  # nothing more to hold
    kept.turn_over()
    assert kept.longest((1, 2, 1, 0))[0] == 3
    assert kept.longest((2, 2, 2, 0))[0] == 1
