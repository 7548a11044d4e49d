"""Log-probs of the rows' reply tokens from one pass over their forest; and whether a model's attention can do that."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sweetrl.lm.data import Row, collate, turn_columns
from sweetrl.lm.forest import Forest, build_forest
from sweetrl.lm.head import backbone, base_of, flat_logprobs, slot_logprobs
from sweetrl.lm.tree_attention import Backend, TreeAttention, choose_backend, install

if TYPE_CHECKING:
    from torch import Tensor, nn

logger = logging.getLogger("sweetrl")

PROBE = (  # a small forest: a trunk, branches at two of its turns, one of them branching again, and a row of its own
    Row((1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12), ((3, 5), (9, 12))),
    Row((1, 2, 3, 13, 14, 15), ((3, 6),)),
    Row((1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 17), ((9, 11),)),
    Row((1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 18, 19), ((9, 12),)),
    Row((20, 21, 22), ((1, 3),)),
)
SMALL_VOCABULARY = 64


def probe_rows(vocabulary: int) -> tuple[Row, ...]:
    """Return PROBE in tokens from the middle of a vocabulary of that size; in a very small one as it is.

    The first and the last are often special tokens. What a model makes of a row of those is chaos: in half precision
    rounding alone decides it, in trees and in rows alike.
    """
    first = vocabulary // 2 if vocabulary >= SMALL_VOCABULARY else 0
    return tuple(Row(tuple(token + first for token in row.token_ids), row.spans) for row in PROBE)


def collate_trees(rows: Sequence[Row], backend: Backend, merge: bool = True) -> dict[str, Any]:
    """Make the tensors of one pass over the forest of `rows`: like batches.collate, with `tree` in place of padding.

    input_ids, position_ids [1, S]; predicting [M]; slot, choice [U]; reply [N]; and the columns of turn_columns.
    """
    import torch
    from torch.nn.functional import pad

    forest: Forest = build_forest(rows, merge)
    tree = TreeAttention(forest, backend)
    extra = tree.padded - len(forest.token_ids)
    columns = {"predicting": forest.predicting, "slot": forest.slot, "choice": forest.target, "reply": forest.reply}
    made = {name: torch.from_numpy(values) for name, values in columns.items()}
    made["input_ids"] = pad(torch.from_numpy(forest.token_ids), (0, extra))[None]
    made["position_ids"] = pad(torch.from_numpy(forest.position), (0, extra))[None]
    return made | turn_columns(rows) | {"tree": tree}


def forest_logprobs(model: nn.Module, rows: dict[str, Any]) -> Tensor:
    """Log-probs [N] of the reply tokens, row after row, from one pass over a collated forest."""
    transformer, head = backbone(model)
    tree, input_ids = rows["tree"], rows["input_ids"]
    if tree.backend == "dense":
        mask, more = tree.mask(input_ids.device, next(model.parameters()).dtype), {}
    else:
        install(model)
        # A finished 4-D mask keeps transformers from making its own S x S one; the tree's attention never looks at it.
        mask, more = input_ids.new_zeros(1, 1, 1, 1), {"tree": tree}
    hidden = transformer(
        input_ids=input_ids, position_ids=rows["position_ids"], attention_mask=mask, use_cache=False, **more
    ).last_hidden_state[0]
    predictions = slot_logprobs(head, hidden.index_select(0, rows["predicting"]), rows["slot"], rows["choice"])
    return predictions.index_select(0, rows["reply"])


def usable_backend(model: nn.Module) -> tuple[Backend | None, str]:
    """Return the backend for `model` on its device, or None and the reason why trees cannot be used.

    What a model says of itself is not relied on: a small forest is computed and compared with its rows.
    """
    import torch

    config = base_of(model).config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"]) - {"full_attention"}
    if kinds:
        return None, f"{config.model_type} has layers of kind {', '.join(sorted(kinds))}"
    device = next(model.parameters()).device
    backends: list[Backend] = list(dict.fromkeys([choose_backend(device), "blocks", "dense"]))
    if not getattr(base_of(model), "_supports_attention_backend", False):
        backends = ["dense"]
    reason = ""
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            for backend in backends:
                try:
                    error = _probe(model, backend, device)
                except Exception as problem:  # whatever a foreign model does with arguments that it does not know
                    reason = f"{config.model_type}: {type(problem).__name__}: {str(problem).splitlines()[0][:200]}"
                    continue
                if error <= (1e-4 if next(model.parameters()).dtype in (torch.float32, torch.float64) else 0.1):
                    return backend, ""
                reason = f"{config.model_type} gives other log-probs in a tree than in a row ({error:.1e} relative)"
    finally:
        model.train(was_training)
    return None, reason


def _probe(model: Any, backend: Backend, device: Any) -> float:
    """Largest difference between the log-probs of a small forest and those of its rows, relative to their spread."""
    import torch

    rows = probe_rows(base_of(model).config.get_text_config().vocab_size)
    ours = forest_logprobs(model, to_device(collate_trees(rows, backend), device))
    theirs = torch.cat([flat_logprobs(model, to_device(collate([row]), device)) for row in rows])
    spread = (theirs - theirs.mean()).abs().max().clamp(min=1e-9)
    return float((ours - theirs).abs().max() / spread)


def choose_layout(model: nn.Module, layout: str) -> Backend | None:
    """The backend for the setting `layout`, None for flat batches; says why trees are not used where they cannot be."""
    if layout != "trees":
        return None
    backend, reason = usable_backend(model)
    if backend is None:
        logger.warning("flat batches instead of trees: %s", reason)
    return backend


def to_device(batch: dict[str, Any], device: Any) -> dict[str, Any]:
    """Move the tensors of a batch."""
    return {name: value.to(device) if hasattr(value, "to") else value for name, value in batch.items()}
