"""Advantages of candidate replies (Eq. 3): the dialogue and all candidates of all its turns are one tree."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sweetrl.learning.batches import Row
from sweetrl.learning.passes import Layout
from sweetrl.learning.reference import row_logprobs

if TYPE_CHECKING:
    from torch import Tensor

Branches = Sequence[Sequence[tuple[int, ...]]]  # for each turn of a dialogue its candidate replies, as token ids


@dataclass(frozen=True)
class TokenSet:
    """Which tokens of a candidate are scored: its own, with `header` tokens before it, without the last if it is `end`.

    The default is the paper's; the official code scores the assistant's header and leaves the end of the turn out.
    """

    header: int = 0
    end: int | None = None


REPLY = TokenSet()


def branch_rows(trunk: Row, branches: Branches, scored: TokenSet = REPLY) -> list[Row]:
    """Every candidate of every turn as a row: the trunk up to that turn and the candidate in the reply's place."""
    return [
        Row(
            trunk.token_ids[:start] + reply,
            ((start - scored.header, start + len(reply) - (scored.end is not None and reply[-1] == scored.end)),),
        )
        for (start, _), replies in zip(trunk.spans, branches, strict=False)
        for reply in replies
    ]


def branch_logprobs(
    model: Any, trunk: Row, branches: Branches, layout: Layout, scored: TokenSet = REPLY
) -> list[list[Tensor]]:
    """Log-probs of every candidate reply at every turn of a dialogue, [scored tokens] each.

    `branches[t]` are candidates in the place of the reply at `trunk.spans[t]`.
    """
    found = iter(row_logprobs(model, branch_rows(trunk, branches, scored), layout))
    return [[next(found) for _ in replies] for replies in branches]


def branch_ratios(
    model: Any, trunk: Row, branches: Branches, layout: Layout, reference_trunk: Row | None = None
) -> list[list[Tensor]]:
    """log pi_theta - log pi_ref of every token of every candidate, [its tokens] in float64: Eq. 3 before its mean.

    Arguments as for `branch_advantages`.
    """
    ours = branch_logprobs(model, trunk, branches, layout)
    with _reference(model):
        reference = branch_logprobs(model, reference_trunk or trunk, branches, layout)
    return [
        [mine.double() - theirs.double() for mine, theirs in zip(*both, strict=True)]
        for both in zip(ours, reference, strict=True)
    ]


def reduced(ratios: Sequence[Sequence[Tensor]], mean: bool = True) -> list[list[float]]:
    """The advantage of every candidate from the log-ratios of its tokens: their mean, or their sum."""
    return [[(one.mean() if mean else one.sum()).item() for one in turn] for turn in ratios]


def branch_advantages(
    model: Any,
    trunk: Row,
    branches: Branches,
    layout: Layout,
    reference_trunk: Row | None = None,
    mean: bool = True,
    scored: TokenSet = REPLY,
) -> list[list[float]]:
    """A(o_t, a, c) of every candidate: mean (or sum) over its tokens of log pi_theta - log pi_ref          (Eq. 3).

    `model` is the critic; its reference is itself with the adapter off. `reference_trunk` is the dialogue without c,
    for the official code's unconditioned reference; by default both are given the same context. `scored` says which
    tokens the critic's side is taken over; the reference's are always the reply's own, so that other token sets give
    mean(log pi_theta) - mean(log pi_ref).
    """
    if scored == REPLY:
        return reduced(branch_ratios(model, trunk, branches, layout, reference_trunk), mean)
    ours = branch_logprobs(model, trunk, branches, layout, scored)
    with _reference(model):
        reference = branch_logprobs(model, reference_trunk or trunk, branches, layout)
    result = []
    for mine, theirs in zip(ours, reference, strict=True):
        both = [(a.double(), b.double()) for a, b in zip(mine, theirs, strict=True)]
        result.append([(a.mean() - b.mean() if mean else a.sum() - b.sum()).item() for a, b in both])
    return result


def _reference(model: Any) -> AbstractContextManager[Any]:
    """While this holds, the model is the reference: itself without its adapter, or as it is if it has none."""
    off: AbstractContextManager[Any] = model.disable_adapter() if hasattr(model, "disable_adapter") else nullcontext()
    return off


def branch_values(model: Any, trunk: Row, branches: Branches, layout: Layout, pooling: str) -> list[list[float]]:
    """What a critic with a head gives every candidate (sweetrl.learning.heads), by turn; `layout` is flat."""
    import torch

    from sweetrl.learning.batches import collate
    from sweetrl.learning.heads import turn_values
    from sweetrl.learning.trees.forward import to_device

    rows = branch_rows(trunk, branches)
    device = next(model.parameters()).device
    values = [0.0] * len(rows)
    with torch.no_grad():
        for indices in layout.cut_rows(rows):
            batch = to_device(collate([rows[index] for index in indices], layout.pad_id), device)
            for index, value in zip(indices, turn_values(model, batch, pooling).tolist(), strict=True):
                values[index] = value
    found = iter(values)
    return [[next(found) for _ in replies] for replies in branches]
