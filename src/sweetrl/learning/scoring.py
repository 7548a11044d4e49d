"""Advantages of candidate replies (Eq. 3): the dialogue and all candidates of all its turns are one tree."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from sweetrl.learning.batches import Row
from sweetrl.learning.passes import Layout
from sweetrl.learning.reference import row_logprobs

if TYPE_CHECKING:
    from torch import Tensor

Branches = Sequence[Sequence[tuple[int, ...]]]  # for each turn of a dialogue its candidate replies, as token ids


def branch_rows(trunk: Row, branches: Branches) -> list[Row]:
    """Every candidate of every turn as a row: the trunk up to that turn and the candidate in the reply's place."""
    return [
        Row(trunk.token_ids[:start] + reply, ((start, start + len(reply)),))
        for (start, _), replies in zip(trunk.spans, branches, strict=False)
        for reply in replies
    ]


def branch_logprobs(model: Any, trunk: Row, branches: Branches, layout: Layout) -> list[list[Tensor]]:
    """Log-probs of every candidate reply at every turn of a dialogue, [reply tokens] each.

    `branches[t]` are candidates in the place of the reply at `trunk.spans[t]`.
    """
    found = iter(row_logprobs(model, branch_rows(trunk, branches), layout))
    return [[next(found) for _ in replies] for replies in branches]


def branch_advantages(
    model: Any,
    trunk: Row,
    branches: Branches,
    layout: Layout,
    reference_trunk: Row | None = None,
    mean: bool = True,
) -> list[list[float]]:
    """A(o_t, a, c) of every candidate: mean (or sum) over its tokens of log pi_theta - log pi_ref          (Eq. 3).

    `model` is the critic; its reference is itself with the adapter off. `reference_trunk` is the dialogue without c,
    for the official code's unconditioned reference; by default both are given the same context.
    """
    off = model.disable_adapter() if hasattr(model, "disable_adapter") else nullcontext()
    ours = branch_logprobs(model, trunk, branches, layout)
    with off:
        reference = branch_logprobs(model, reference_trunk or trunk, branches, layout)
    result = []
    for mine, theirs in zip(ours, reference, strict=True):
        ratios = [a.double() - b.double() for a, b in zip(mine, theirs, strict=True)]
        result.append([(ratio.mean() if mean else ratio.sum()).item() for ratio in ratios])
    return result
