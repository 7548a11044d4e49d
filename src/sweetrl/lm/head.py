"""Log-probs of reply tokens, and of nothing else: the head is applied to the positions that predict them, in chunks.

Critics with a head of their own in place of the log-ratio give a number for each turn, from the reply's hidden states:

regression-head   A(o_t, a_t, c) = w . (1/L) sum_l h_l + b, trained by Eq. 2 like the log-ratio
value-head        V(o_t, a_t, c) = w . h_L + b, trained to tell successful attempts: sigmoid(V) is the chance of success
h_l is the last layer's state at the reply's l-th token. Rows are computed flat: a tree keeps only the states that
predict replies. The head is called `score`, lies on the base model, and is saved beside the adapter by peft.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import cache, partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np

from sweetrl.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor, nn

HEAD = "score"
COMPUTES_IN = "computes_in"  # attribute of a model whose layers compute in another dtype than their weights have
POOLING = {"regression-head": "mean", "value-head": "last"}
CHUNK_ROWS = 256  # hidden states whose logits are in memory at once: large enough for the product, small for caches
CHUNK_LOGITS = 2**27  # a GPU's chunks have so many


def chunk_rows(device: str, vocabulary: int) -> int:
    """Return how many hidden states a kind of device takes at once."""
    return max(CHUNK_ROWS, CHUNK_LOGITS // vocabulary) if device == "cuda" else CHUNK_ROWS


def base_of(model: nn.Module) -> Any:
    """Return the transformers model under an adapter, or the model itself."""
    adapted: Any = model
    return adapted.get_base_model() if hasattr(adapted, "get_base_model") else adapted


def without_adapter(model: Any) -> AbstractContextManager[Any]:
    """Return a context in which a model is its reference: its adapter is off, or the weights are its base's."""
    return model.disable_adapter() if hasattr(model, "disable_adapter") else nullcontext()


def compute_dtype(model: nn.Module) -> Any:
    """Return the dtype that a model's layers compute in: that of its weights, unless it says another."""
    return getattr(base_of(model), COMPUTES_IN, None) or next(model.parameters()).dtype


def transformer_of(model: nn.Module) -> Any:
    """Return the transformer of a causal language model, without its head (of a vision model, its text part)."""
    return _body_of(base_of(model)).get_decoder()


def _body_of(base: Any) -> Any:
    """What the model itself puts before its head; some types name an attribute for it that they do not have."""
    from transformers import PreTrainedModel

    parts = (part for part in base.children() if isinstance(part, PreTrainedModel))
    body = getattr(base, base.base_model_prefix, None) or next(parts, None)
    if body is None:
        raise UserError(f"{base.config.model_type}: it is not to be seen what the model has before its head.")
    return body


def backbone(model: nn.Module) -> tuple[Any, Any]:
    """Return (the transformer, what makes logits [N, vocabulary] of its states [N, width]) of a causal language model.

    That is the head, or where a short row shows that the model does more (soft caps, multipliers) its own forward.
    """
    base = base_of(model)
    if base not in _OWN:
        _OWN[base] = _compared(base)
    output = _OWN[base]
    head = base.get_output_embeddings() if output is None else partial(_own_logits, base, output)
    return transformer_of(model), head


# By model: None where its head alone makes its logits, else what its layers return.
_OWN: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()


def _compared(base: Any) -> Any:
    """None if the head makes the model's own logits of a short row's states, or the type of what carries the states."""
    import torch

    outputs: list[Any] = []  # of the layers, and of what the model may have around them
    weight = base.get_input_embeddings().weight
    ids = torch.arange(8, device=weight.device)[None] + weight.shape[0] // 2
    parts = {_body_of(base), transformer_of(base)}
    hooks = [part.register_forward_hook(lambda module, given, output: outputs.append(output)) for part in parts]
    was_training = base.training
    base.eval()
    try:
        with torch.no_grad():
            logits = base(input_ids=ids, use_cache=False).logits[0].float()
            states = outputs[-1].last_hidden_state[0]
            for kind in (None, type(outputs[-1])):
                head = partial(_own_logits, base, kind) if kind else base.get_output_embeddings()
                remade = head(states).float()
                if remade.shape == logits.shape and (remade - logits).abs().mean() <= 1e-4 * logits.abs().mean():
                    return kind
        problem = "they are others"
    except Exception as error:  # whatever a foreign model makes of this
        problem = f"{type(error).__name__}: {str(error)[:200]}"
    finally:
        for hook in hooks:
            hook.remove()
        base.train(was_training)
    raise UserError(
        f"{base.config.model_type}: the model's logits cannot be made of what its layers return ({problem}); take "
        "another model, as of the Llama or Qwen families."
    )


def _own_logits(base: Any, output: Any, hidden: Tensor) -> Tensor:
    """What the model's own forward makes of the states [N, width] of its layers: logits [N, vocabulary]."""
    import torch

    ids = torch.zeros_like(hidden[None, :, 0], dtype=torch.long)
    computed = _Computed(base, _body_of(base), output(last_hidden_state=hidden[None]))
    logits: Tensor = type(base).forward(computed, input_ids=ids).logits[0]
    return logits


class _Computed:
    """A model whose layers, the part `body`, have been computed: called, they give `states`; all else is as it is."""

    def __init__(self, module: Any, body: Any, states: Any) -> None:
        self._module, self._body, self._states = module, body, states

    def __call__(self, *given: Any, **more: Any) -> Any:
        return self._states

    def __getattr__(self, name: str) -> Any:
        part = getattr(self._module, name)
        return _Computed(part, part, self._states) if part is self._body else part


def token_logprobs(head: Any, hidden: Tensor, target: Tensor) -> Tensor:
    """log softmax(head(hidden))[target] for hidden [N, width] and target [N], in at least float32, chunk by chunk."""
    import torch

    slot = np.arange(len(target))
    return slot_logprobs(head, hidden, torch.from_numpy(slot).to(target.device), target, slot)


def slot_logprobs(head: Any, hidden: Tensor, slot: Tensor, target: Tensor, on_host: Any = None) -> Tensor:
    """log softmax(head(hidden[slot]))[target], [U], for hidden [M, width] and rising slot [U] and target [U].

    The logits of a hidden state are computed once, however many targets it has, and only a chunk of them is ever in
    memory. A plain head that is not trained takes part in no recomputation: its softmax is averaged over the rows of
    its weight while the logits are there, which is all that the gradient of `hidden` needs. Other heads compute their
    chunks once more in the backward pass. `on_host` is `slot` as a NumPy array, so that nobody waits for the device.
    """
    import torch
    from torch.utils.checkpoint import checkpoint

    size = chunk_rows(hidden.device.type, getattr(head, "out_features", CHUNK_LOGITS))
    bounds = np.arange(0, hidden.shape[0] + size, size)
    cuts = np.searchsorted(slot.cpu().numpy() if on_host is None else on_host, bounds).tolist()
    pieces = []
    for number, (begin, end) in enumerate(pairwise(cuts)):
        first = number * size
        piece = hidden[first : first + size], slot[begin:end] - first, target[begin:end]
        if not torch.is_grad_enabled():
            pieces.append(_picked(head(piece[0]), piece[1], piece[2])[0])
        elif _frozen_linear(head):
            pieces.append(_fused().apply(piece[0], head.weight, getattr(head, "bias", None), piece[1], piece[2]))
        else:
            pieces.append(checkpoint(_recomputed, head, *piece, use_reentrant=False))
    return torch.cat(pieces)


def vocabulary_kl(head: Any, hidden: Tensor, teacher: Tensor) -> Tensor:
    """KL( softmax(head(hidden)) || softmax(head(teacher)) ) over the whole vocabulary, [N], in at least float32.

    `hidden`, `teacher` [N, width] are states of one model; only the first have a gradient. A chunk of logits is in
    memory at a time, and made once more in the backward pass.
    """
    import torch
    from torch.utils.checkpoint import checkpoint

    size = chunk_rows(hidden.device.type, getattr(head, "out_features", CHUNK_LOGITS))
    chunks = zip(hidden.split(size), teacher.split(size), strict=True)
    return torch.cat([checkpoint(_divergence, head, *chunk, use_reentrant=False) for chunk in chunks])


def _divergence(head: Any, hidden: Tensor, teacher: Tensor) -> Tensor:
    logprobs, teacher_logprobs = (_at_least_float(head(states)).log_softmax(1) for states in (hidden, teacher.detach()))
    return (logprobs.exp() * (logprobs - teacher_logprobs)).sum(1)


def _frozen_linear(head: Any) -> bool:
    import torch

    if type(head) is not torch.nn.Linear or head._forward_hooks or head._forward_pre_hooks:
        return False  # sharded modules gather their weights in hooks
    return not head.weight.requires_grad and (head.bias is None or not head.bias.requires_grad)


def _recomputed(head: Any, hidden: Tensor, slot: Tensor, target: Tensor) -> Tensor:
    logits = _at_least_float(head(hidden))
    return logits[slot, target] - logits.logsumexp(1)[slot]


def _at_least_float(logits: Tensor) -> Tensor:
    import torch

    return logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits


def _picked(logits: Tensor, slot: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return (log-probs [U], exp(logits - their maximum) [M, V], its sums [M, 1]); `logits` are overwritten."""
    logits = _at_least_float(logits)
    logits.sub_(logits.amax(1, keepdim=True))
    chosen = logits[slot, target]
    sums = logits.exp_().sum(1, keepdim=True)
    return chosen - sums.log()[slot, 0], logits, sums


@cache
def _fused() -> Any:
    """The autograd function for a frozen linear head (made when first used: its base class is torch's)."""
    import torch

    class FusedHead(torch.autograd.Function):
        """d log p(target) / d hidden = weight[target] - sum_v p(v) weight[v]; the sum is taken going forward."""

        @staticmethod
        def forward(
            context: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, slot: Tensor, target: Tensor
        ) -> Tensor:
            logprobs, exps, sums = _picked(torch.nn.functional.linear(hidden, weight, bias), slot, target)
            if context.needs_input_grad[0]:
                mean = torch.matmul(exps.to(weight.dtype), weight).div_(sums)
                context.save_for_backward(mean, weight, slot, target)
            return logprobs

        @staticmethod
        def backward(context: Any, *grads: Tensor) -> Any:
            mean, weight, slot, target = context.saved_tensors
            grad = grads[0]
            sums = grad.new_zeros(mean.shape[0]).index_add_(0, slot, grad)
            into = -sums[:, None] * mean
            into.index_add_(0, slot, (grad[:, None] * weight[target]).to(into.dtype))
            return into.to(mean.dtype), None, None, None, None

    return FusedHead


def add_head(model: Any) -> None:
    """Put a head of zeros on a base model: every turn starts at 0, whatever the seed."""
    import torch

    weight = model.get_input_embeddings().weight
    head = torch.nn.Linear(weight.shape[1], 1, device=weight.device)  # float32, as peft keeps what it trains
    torch.nn.init.zeros_(head.weight)
    torch.nn.init.zeros_(head.bias)
    setattr(model, HEAD, head)


def turn_values(model: nn.Module, rows: dict[str, Any], pooling: str) -> Tensor:
    """The head's value of every turn of a flat batch (lm.data.collate), [T]."""
    import torch

    hidden = transformer_of(model)(input_ids=rows["input_ids"], use_cache=False).last_hidden_state.flatten(0, 1)
    turn, turns = rows["turn"], len(rows["turn_row"])
    own = hidden.index_select(0, rows["position"] + 1)  # the state at the token itself, not the one that predicts it
    lengths = torch.bincount(turn, minlength=turns)
    if pooling == "last":
        pooled = own.index_select(0, lengths.cumsum(0) - 1)
    else:
        pooled = own.new_zeros(turns, own.shape[1]).index_add(0, turn, own) / lengths[:, None]
    head = getattr(base_of(model), HEAD)
    return head(pooled.to(next(head.parameters()).dtype)).squeeze(-1)
