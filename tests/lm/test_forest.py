"""Rows merged by common prefix: what is in a forest, its dense blocks, how it is split."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweetrl.errors import UserError
from sweetrl.lm.data import Row
from sweetrl.lm.forest import Forest, build_forest, fed, forest_tokens, split_rows
from sweetrl.lm.tree_attention import seen_blocks


@st.composite
def row_sets(draw: st.DrawFn) -> list[Row]:
    """Rows over few tokens, so that they begin alike by chance; some continue or repeat others."""
    rows: list[Row] = []
    for _ in range(draw(st.integers(1, 7))):
        ids = draw(st.lists(st.integers(0, 2), min_size=2, max_size=12))
        if rows and draw(st.booleans()):
            ids = list(draw(st.sampled_from(rows)).token_ids) + ids
        cuts = sorted(draw(st.sets(st.integers(1, len(ids)), min_size=2, max_size=4)))
        spans = list(zip(cuts[::2], cuts[1::2], strict=False))
        rows.append(Row(tuple(ids), tuple(spans)))
    return rows


def ancestors(forest: Forest) -> Any:
    """Whether node i (row) sees node j (column)."""
    index = np.arange(len(forest.end))
    return (index[None, :] <= index[:, None]) & (index[:, None] < forest.end[None, :])


@given(row_sets(), st.booleans())
def test_a_forest_holds_every_prefix_once_and_every_row(rows: list[Row], merge: bool) -> None:
    forest = build_forest(rows, merge)
    prefixes = {row.token_ids[: n + 1] for row in rows for n in range(fed(row))}
    expected = len(prefixes) if merge else sum(fed(row) for row in rows)
    assert len(forest.token_ids) == expected
    if merge:
        assert forest_tokens(rows) == expected
    sees = ancestors(forest)
    # What a node sees is its own prefix, in order.
    paths = [tuple(forest.token_ids[np.flatnonzero(line)].tolist()) for line in sees]
    assert set(paths) == prefixes and all(
        len(path) == depth + 1 for path, depth in zip(paths, forest.position, strict=True)
    )
    # Each reply token is predicted from the node of what comes before it.
    nodes, targets = forest.predicting[forest.slot][forest.reply], forest.target[forest.reply]
    predicted = [
        (row.token_ids[:index], row.token_ids[index]) for row in rows for a, b in row.spans for index in range(a, b)
    ]
    assert [(paths[node], target) for node, target in zip(nodes, targets, strict=True)] == predicted
    assert (np.diff(forest.slot) >= 0).all() and (np.diff(forest.predicting) > 0).all()
    if merge:
        assert len(forest.slot) == len(set(predicted))
        assert len(forest.predicting) == len({before for before, _ in predicted})


@given(row_sets(), st.integers(1, 5))
def test_blocks_are_seen_wholly_in_part_or_not_at_all(rows: list[Row], block: int) -> None:
    forest = build_forest(rows)
    count = len(forest.end) // block
    end, sees = forest.end[: count * block], ancestors(forest)[: count * block, : count * block]
    parts = sees.reshape(count, block, count, block)
    partly, wholly = seen_blocks(end, block)
    assert (partly == parts.any(axis=(1, 3))).all()
    # A block is never taken for wholly seen by itself: FlexAttention then masks it node by node.
    assert (wholly == (parts.all(axis=(1, 3)) & ~np.eye(count, dtype=bool))).all()


@given(row_sets(), st.integers(1, 40), st.randoms(use_true_random=False))
def test_splitting_keeps_every_row_and_the_budget(rows: list[Row], limit: int, chance: random.Random) -> None:
    groups = split_rows(rows, limit)
    assert sorted(index for group in groups for index in group) == list(range(len(rows)))
    for group in groups:
        assert len(group) == 1 or forest_tokens([rows[index] for index in group]) <= limit
    mixed = chance.sample(rows, len(rows))
    same = build_forest(mixed)
    assert (same.token_ids == build_forest(rows).token_ids).all() and (same.end == build_forest(rows).end).all()


def test_a_reply_needs_something_before_it() -> None:
    with pytest.raises(UserError, match="nothing would predict"):
        build_forest([Row((1, 2), ((0, 2),))])
