"""Critics with a head of their own in place of the log-ratio: a number for each turn, from the reply's hidden states.

regression-head   A(o_t, a_t, c) = w . (1/L) sum_l h_l + b, trained by Eq. 2 like the log-ratio
value-head        V(o_t, a_t, c) = w . h_L + b, trained to tell successful attempts: sigmoid(V) is the chance of success
h_l is the last layer's state at the reply's l-th token. Rows are computed flat: a tree keeps only the states that
predict replies. The head is called `score`, lies on the base model, and is saved beside the adapter by peft.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sweetrl.lm.head import backbone, base_of

if TYPE_CHECKING:
    from torch import Tensor, nn

HEAD = "score"
POOLING = {"regression-head": "mean", "value-head": "last"}


def add_head(model: Any) -> None:
    """Put a head of zeros on a base model: every turn starts at 0, whatever the seed."""
    import torch

    weight = model.get_input_embeddings().weight
    head = torch.nn.Linear(weight.shape[1], 1, device=weight.device)  # float32, as peft keeps what it trains
    torch.nn.init.zeros_(head.weight)
    torch.nn.init.zeros_(head.bias)
    setattr(model, HEAD, head)


def turn_values(model: nn.Module, rows: dict[str, Any], pooling: str) -> Tensor:
    """The head's value of every turn of a flat batch (learning.batches.collate), [T]."""
    import torch

    transformer, _ = backbone(model)
    hidden = transformer(input_ids=rows["input_ids"], use_cache=False).last_hidden_state.flatten(0, 1)
    turn, turns = rows["turn"], len(rows["turn_row"])
    own = hidden.index_select(0, rows["position"] + 1)  # the state at the token itself, not the one that predicts it
    lengths = torch.bincount(turn, minlength=turns)
    if pooling == "last":
        pooled = own.index_select(0, lengths.cumsum(0) - 1)
    else:
        pooled = own.new_zeros(turns, own.shape[1]).index_add(0, turn, own) / lengths[:, None]
    head = getattr(base_of(model), HEAD)
    return head(pooled.to(next(head.parameters()).dtype)).squeeze(-1)
