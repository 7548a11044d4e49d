"""A larger base agent for Table 4: the small one with more layers, trained on, in a folder of its own.

small/ (the small base), params.yaml (with the sizes) -> models/base/.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweetrl.config.settings import PretrainSettings
from sweetrl.errors import UserError
from sweetrl.models.load import load_weights
from sweetrl.stages.pretrain import pretrain
from sweetrl.stages.run import stage_main

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM

SMALL = Path("small")


def grown(vocabulary: int, settings: PretrainSettings, tokenizer: Any, positions: int) -> LlamaForCausalLM:
    """Return the model in SMALL with `settings.layers` layers: at the start it computes what the small one does.

    New layers are spread evenly among the old ones. Each is a copy of the layer below it whose two outputs (of the
    attention and of the feed-forward part) are 0: it adds nothing to the residual stream until it is trained. A sixth
    of the steps from scratch is enough then.
    """
    import torch

    model: Any = load_weights(SMALL, "float32")
    old = list(model.model.layers)
    if settings.layers <= len(old) or settings.width != model.config.hidden_size:
        raise UserError(
            f"large_base: pretrain.layers is {settings.layers} and pretrain.width {settings.width}; the larger base "
            f"has more than the small one's {len(old)} layers and its width, {model.config.hidden_size}."
        )
    sources = [at * len(old) // settings.layers for at in range(settings.layers)]
    layers = [
        old[source] if source not in sources[:at] else copy.deepcopy(old[source]) for at, source in enumerate(sources)
    ]
    for at, layer in enumerate(layers):
        layer.self_attn.layer_idx = at
        if sources[at] in sources[:at]:
            torch.nn.init.zeros_(layer.self_attn.o_proj.weight)
            torch.nn.init.zeros_(layer.mlp.down_proj.weight)
    model.model.layers = torch.nn.ModuleList(layers)
    model.config.num_hidden_layers = len(layers)
    return model


if __name__ == "__main__":
    stage_main(lambda settings: pretrain(settings, SMALL, grown))
