"""The turn-wise advantage of SWEET-RL as sums over log-probs; pure functions of tensors.

    A(o_t, a_t, c) = (1/L_t) sum_l [ log pi_theta(a_t^l | o_t, a_t^{<l}, c) - log pi_ref(a_t^l | ...) ]     (Eq. 3)

Shapes used in this package: N reply tokens of a batch in one flat vector, T agent turns, R rows (sequences).
`turn` [N] says which turn a token belongs to, `turn_row` [T] which row a turn belongs to. Every turn has a token.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from torch import Tensor

Normalization = Literal["turn", "trajectory", "none"]


def segment_sum(values: Tensor, segment: Tensor, segments: int) -> Tensor:
    """Sum `values` [n] by `segment` [n] into [segments]."""
    return values.new_zeros(segments).index_add(0, segment, values)


def segment_mean(values: Tensor, segment: Tensor, segments: int) -> Tensor:
    """Mean of `values` [n] by `segment` [n] into [segments]; a segment without values gives 0."""
    counts = segment_sum(values.new_ones(values.shape), segment, segments)
    return segment_sum(values, segment, segments) / counts.clamp(min=1.0)


def turn_advantages(logprobs: Tensor, reference: Tensor, turn: Tensor, turns: int) -> Tensor:
    """A(o_t, a_t, c) = (1/L_t) sum_l [log pi_theta(a_t^l | ...) - log pi_ref(a_t^l | ...)]          (Eq. 3), [T].

    `logprobs` and `reference` [N] are natural logs, both given the same context (with c, in the paper).
    """
    return segment_mean(logprobs - reference, turn, turns)


def trajectory_scores(
    logprobs: Tensor,
    reference: Tensor,
    turn: Tensor,
    turn_row: Tensor,
    rows: int,
    normalization: Normalization = "turn",
) -> Tensor:
    """What Eq. 2 compares: for each row the sum of its turns' advantages, [R].

    turn        sum_t (1/L_t) sum_l ratio_tl            the paper
    trajectory  sum_t sum_l ratio_tl / sum_t L_t        the official code
    none        sum_t sum_l ratio_tl                    the ablation that collapses
    """
    turns = turn_row.shape[0]
    if normalization == "turn":
        return segment_sum(turn_advantages(logprobs, reference, turn, turns), turn_row, rows)
    token_row = turn_row[turn]
    ratio = logprobs - reference
    return segment_sum(ratio, token_row, rows) if normalization == "none" else segment_mean(ratio, token_row, rows)
