"""Decoder layers as compiled graphs, so that a training pass on a GPU does not wait for Python.

A layer's base products, adapters and FlexAttention become one graph, and all layers share it. A graph is made for a
length: sequences are padded to few of them. Passes without gradients (sampling, the reference) and longer ones run
as they are, and so does everything where a layer cannot be made one graph.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any

from sweetrl.lm.head import base_of, transformer_of
from sweetrl.lm.tree_attention import FLEX_BLOCK

if TYPE_CHECKING:
    from torch import Tensor, nn

logger = logging.getLogger("sweetrl")

EIGHTHS = (1, 2, 4, 6, 8)  # of the most tokens of a pass: one graph, and at most four more


def compile_layers(model: nn.Module, tokens: int, backend: str = "inductor") -> tuple[int, ...]:
    """Have layers compiled when they compute with gradients; return the lengths that there are graphs for.

    `tokens` is the most that a pass has; a graph is made when a sequence first has its length.
    """
    import torch
    from torch._dynamo.exc import FailOnRecompileLimitHit, TorchDynamoException
    from transformers.modeling_layers import GradientCheckpointingLayer

    lengths = tuple(sorted({tokens * part // 8 // FLEX_BLOCK * FLEX_BLOCK for part in EIGHTHS} - {0}))
    graphs = set(lengths)
    torch.compiler.reset()  # those of a training before count against the limit of this one
    # Some models have layers of two kinds, and a step that runs out of memory may begin again with checkpointing.
    torch._dynamo.config.recompile_limit = 4 * len(EIGHTHS)

    # TORCH_COMPILE_DISABLE=1 would be an error with `fullgraph`.
    @partial(torch.compile, dynamic=False, fullgraph=True, backend=backend, disable=torch._dynamo.config.disable)
    def compiled(layer: Any, hidden: Tensor, given: Any, more: Any) -> Any:
        return type(layer).forward(layer, hidden, *given, **more)

    def forward(layer: Any, hidden: Tensor, *given: Any, **more: Any) -> Any:
        if torch.is_grad_enabled() and hidden.shape[1] in graphs:
            if not hidden.requires_grad:  # the first layer's, which would be a graph of its own
                hidden = hidden.detach().requires_grad_()
            try:
                return compiled(layer, hidden, given, more)
            except (TorchDynamoException, FailOnRecompileLimitHit) as error:
                graphs.clear()
                kind, reason = base_of(model).config.model_type, str(error).strip().splitlines()[0]
                logger.warning("%s: layers are not compiled: %s", kind, reason)
        return type(layer).forward(layer, hidden, *given, **more)

    for layer in transformer_of(model).modules():
        if isinstance(layer, GradientCheckpointingLayer):
            layer.forward = partial(forward, layer)
    logger.info("layers are compiled for sequences of %s tokens, each when it first comes", lengths)
    return lengths
