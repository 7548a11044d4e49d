"""Advantages of candidate replies (Eq. 3): a dialogue is computed once, and only the replies on top of it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from sweetrl.learning.batches import Row
from sweetrl.learning.logprobs import backbone, token_logprobs

if TYPE_CHECKING:
    from torch import Tensor

Branches = Sequence[Sequence[tuple[int, ...]]]  # for each turn of a dialogue its candidate replies, as token ids


def branch_logprobs(model: Any, trunk: Row, branches: Branches, pad_id: int = 0) -> list[list[Tensor]]:
    """Log-probs of every candidate reply at every turn of a dialogue, [reply tokens] each.

    `branches[t]` are candidates in the place of the reply at `trunk.spans[t]`. One pass over the trunk, then one over
    the candidates of each turn on the trunk's keys and values up to there.
    """
    import torch
    from transformers import DynamicCache

    transformer, head = backbone(model)
    device = next(model.parameters()).device
    starts = [start for start, _ in trunk.spans[: len(branches)]]
    result: list[list[Tensor]] = []
    with torch.no_grad():
        shared = DynamicCache()
        trunk_ids = torch.tensor([trunk.token_ids[: max(starts)]], device=device)
        trunk_hidden = transformer(input_ids=trunk_ids, past_key_values=shared, use_cache=True).last_hidden_state[0]
        for start, replies in zip(starts, branches, strict=True):
            lengths = [len(reply) for reply in replies]
            if not lengths:
                result.append([])
                continue
            # The trunk predicts each reply's first token; the reply's tokens but the last predict the others.
            before = trunk_hidden[start - 1].expand(len(replies), 1, -1)
            if max(lengths) > 1:
                fed = torch.full((len(replies), max(lengths) - 1), pad_id, device=device)
                for row, reply in enumerate(replies):
                    fed[row, : len(reply) - 1] = torch.tensor(reply[:-1], dtype=torch.long)
                hidden = transformer(
                    input_ids=fed, past_key_values=_expanded(shared, start, len(replies)), use_cache=True
                ).last_hidden_state
                before = torch.cat([before, hidden], dim=1)
            predicting = torch.cat([before[row, :length] for row, length in enumerate(lengths)])
            target = torch.tensor([token for reply in replies for token in reply], device=device)
            result.append(list(token_logprobs(head, predicting, target).cpu().split(lengths)))
    return result


def _expanded(shared: Any, length: int, rows: int) -> Any:
    """Return a cache of `rows` rows that all start as the first `length` tokens of `shared`; nothing is copied yet."""
    from transformers import DynamicCache

    cache = DynamicCache()
    for index, layer in enumerate(shared.layers):
        keys, values = (part[:, :, :length].expand(rows, -1, -1, -1) for part in (layer.keys, layer.values))
        cache.update(keys, values, index)
    return cache


def branch_advantages(
    model: Any, trunk: Row, branches: Branches, reference_trunk: Row | None = None, mean: bool = True, pad_id: int = 0
) -> list[list[float]]:
    """A(o_t, a, c) of every candidate: mean (or sum) over its tokens of log pi_theta - log pi_ref          (Eq. 3).

    `model` is the critic; its reference is itself with the adapter off. `reference_trunk` is the dialogue without c,
    for the official code's unconditioned reference; by default both are given the same context.
    """
    off = model.disable_adapter() if hasattr(model, "disable_adapter") else nullcontext()
    ours = branch_logprobs(model, trunk, branches, pad_id)
    with off:
        reference = branch_logprobs(model, reference_trunk or trunk, branches, pad_id)
    result = []
    for mine, theirs in zip(ours, reference, strict=True):
        ratios = [a.double() - b.double() for a, b in zip(mine, theirs, strict=True)]
        result.append([(ratio.mean() if mean else ratio.sum()).item() for ratio in ratios])
    return result
