"""Log-probs of reply tokens, and of nothing else: the head is applied to the positions that predict them, in chunks."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from sweetrl.errors import UserError
from sweetrl.learning.batches import Row, collate

if TYPE_CHECKING:
    from torch import Tensor, nn

CHUNK_ELEMENTS = 2**26  # logits in memory at once: 256 MiB in float32


def backbone(model: nn.Module) -> tuple[Any, Any]:
    """Return (the transformer without its head, the head) of a causal language model, with or without an adapter."""
    whole: Any = model
    base = whole.get_base_model() if hasattr(model, "get_base_model") else whole
    for name in ("final_logit_softcapping", "logit_scale", "logits_scaling"):
        if getattr(base.config, name, None):
            raise UserError(
                f"{base.config.model_type}: models that change their logits after the head ({name}) are not supported; "
                "take a Llama- or Qwen-family model."
            )
    return getattr(base, base.base_model_prefix), base.get_output_embeddings()


def token_logprobs(head: nn.Module, hidden: Tensor, target: Tensor) -> Tensor:
    """log softmax(head(hidden))[target] for hidden [N, width] and target [N], in at least float32, chunk by chunk.

    With gradients the chunks are recomputed in the backward pass, so that their logits are not kept.
    """
    import torch
    from torch.utils.checkpoint import checkpoint

    def part(hidden: Tensor, target: Tensor) -> Tensor:
        logits = head(hidden)
        if logits.dtype in (torch.float16, torch.bfloat16):
            logits = logits.float()
        return logits.gather(1, target[:, None]).squeeze(1) - logits.logsumexp(1)

    weight: Any = head.weight
    size = max(1, CHUNK_ELEMENTS // int(weight.shape[0]))
    if hidden.shape[0] <= size:
        return part(hidden, target)
    pieces = []
    for start in range(0, hidden.shape[0], size):
        piece = hidden[start : start + size], target[start : start + size]
        pieces.append(checkpoint(part, *piece, use_reentrant=False) if torch.is_grad_enabled() else part(*piece))
    return torch.cat(pieces)


def reply_logprobs(model: nn.Module, rows: dict[str, Tensor]) -> Tensor:
    """Log-probs [N] of the reply tokens of a collated batch (sweetrl.learning.batches.collate)."""
    transformer, head = backbone(model)
    hidden = transformer(input_ids=rows["input_ids"], use_cache=False).last_hidden_state
    return token_logprobs(head, hidden.flatten(0, 1).index_select(0, rows["position"]), rows["target"])


def reference_logprobs(model: nn.Module, rows: Sequence[Row], batch_tokens: int, pad_id: int = 0) -> list[Tensor]:
    """log pi_ref of every row's reply tokens, once and for all: the adapter switched off, no gradient.

    Rows go by length in batches of at most `batch_tokens` padded tokens. Returns CPU tensors [reply tokens], in order.
    """
    import torch

    device = next(model.parameters()).device
    was_training = model.training
    model.eval()
    off = model.disable_adapter() if hasattr(model, "disable_adapter") else nullcontext()  # type: ignore[operator]
    result: list[Tensor] = [torch.empty(0)] * len(rows)
    try:
        with off, torch.no_grad():
            for indices in length_batches(rows, batch_tokens):
                batch = {name: value.to(device) for name, value in collate([rows[i] for i in indices], pad_id).items()}
                values = reply_logprobs(model, batch).cpu()
                pieces = values.split([rows[i].reply_tokens for i in indices])
                for index, piece in zip(indices, pieces, strict=True):
                    result[index] = piece.clone()
    finally:
        model.train(was_training)
    return result


def length_batches(rows: Sequence[Row], batch_tokens: int) -> list[list[int]]:
    """Indices of `rows` by rising length, in batches of at most `batch_tokens` padded tokens (or of one row)."""
    result: list[list[int]] = []
    for index in sorted(range(len(rows)), key=lambda i: len(rows[i].token_ids)):
        # Rows come by rising length, so the new one is the longest of its batch.
        if result and (len(result[-1]) + 1) * len(rows[index].token_ids) <= batch_tokens:
            result[-1].append(index)
        else:
            result.append([index])
    return result
