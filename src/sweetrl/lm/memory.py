"""What training and scoring take of a device's memory, from a model's shape; and how many tokens fit into one pass.

Kept for the backward pass, for each token and layer of a model with gated MLPs whose base is frozen and has adapters on
all linear layers (width d, MLP f, query and key width q and k, rank r):

half precision   12 d + 4 q + 4 k + 8 f + 14 r bytes: norms 8 d, the adapters' inputs 4 d + 2 f, attention 4 q + 4 k,
                 the MLP 6 f, what A gives 14 r
float32          16 d + 12 q + 8 k + 16 f + 28 r bytes

Where all weights are trained: 26 d + 4 q + 4 k + 8 f, in float32 24 d + 8 q + 8 k + 16 f.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sweetrl.config.sections import PassTokens
from sweetrl.errors import UserError
from sweetrl.lm.head import base_of, chunk_rows, compute_dtype, transformer_of

if TYPE_CHECKING:
    from torch import nn

logger = logging.getLogger("sweetrl")

GIB = 2**30
CARDS = {  # what torch can use of them, GiB
    "t4-16": 14.6, "v100-32": 31.7, "a10-24": 22.0, "l4-24": 22.0, "rtx4090-24": 23.5, "rtx5090-32": 31.4,
    "a100-40": 39.4, "l40s-48": 44.4, "a100-80": 79.2, "h100-80": 79.1, "h200-141": 139.8, "b200-180": 178.3,
}  # fmt: skip
CONTEXT = GIB  # CUDA's own memory, and the workspaces of its libraries
MARGIN = 0.1  # of what is left: fragments, and what a formula overlooks
OF_CPU = 16_384
FEWEST, MOST = 256, 32_768  # tokens in a pass
NF4 = 0.52  # bytes of a number in 4 bits, with its share of the blocks' scales, which are quantised, too
STATE = 12  # bytes of gradient and AdamW's two means for each trained number, float32


@dataclass(frozen=True)
class Shape:
    """What a model's memory follows from: its sizes, how many numbers it has, and how many bytes each takes.

    `size` is that in which layers compute. `weights` are frozen; `adapter` counts the numbers that are trained, in
    float32, and `rank` is that of the adapters (0: there are none).
    """

    layers: int
    width: int
    inner: int
    queries: int
    keys: int
    vocabulary: int
    weights: int
    size: int
    adapter: int = 0
    rank: int = 0

    @classmethod
    def of(cls, model: nn.Module) -> Shape:
        """Return the shape of a model, with the adapter that is on it."""
        base, weights = base_of(model), list(model.parameters())
        trained = [weight for weight in weights if weight.requires_grad]
        adapter, size = sum(weight.numel() for weight in trained), compute_dtype(model).itemsize
        frozen = sum(weight.numel() * weight.element_size() for weight in weights if not weight.requires_grad) // size
        rank = max((min(weight.shape) for weight in trained if weight.ndim == 2), default=0) if frozen else 0
        return cls(*_sizes(base.config.get_text_config()), frozen, size, adapter, rank)

    @classmethod
    def planned(cls, model: Any, size: int, rank: int, targets: str = "all-linear", nf4: bool = False) -> Shape:
        """Return the shape of a `model` in training: with adapters of `rank` on its linear layers, or (0) in full.

        With `nf4` those layers have 4 bits a number, and what scales them.
        """
        from torch.nn import Linear

        sizes, weights = _sizes(model.config.get_text_config()), sum(weight.numel() for weight in model.parameters())
        if not rank:
            return cls(*sizes, 0, size, weights)
        names = targets.split(",")
        layers = [(name, layer) for name, layer in transformer_of(model).named_modules() if isinstance(layer, Linear)]
        adapter = sum(
            rank * (layer.in_features + layer.out_features)
            for name, layer in layers
            if targets == "all-linear" or name.rpartition(".")[2] in names
        )
        if nf4:
            weights -= round(sum(layer.weight.numel() for _, layer in layers) * (1 - NF4 / size))
        return cls(*sizes, weights, size, adapter, rank)

    @property
    def kept(self) -> int:
        """Bytes that one layer keeps of a token for the backward pass."""
        d, q, k, f = self.width, self.queries, self.keys, self.inner
        if self.adapter and not self.rank:
            return 26 * d + 4 * (q + k) + 8 * f if self.size < 4 else 24 * d + 8 * (q + k) + 16 * f
        if self.size < 4:
            return 12 * d + 4 * (q + k) + 8 * f + 14 * self.rank
        return 16 * d + 12 * q + 8 * k + 16 * f + 28 * self.rank

    def token(self, checkpointing: bool = False) -> int:
        """Bytes of a token in a pass: what is kept of it, and one layer's work; without an adapter the latter alone."""
        if not self.adapter:
            return self.kept
        return self.layers * (self.width * self.size if checkpointing else self.kept) + self.kept

    @property
    def state(self) -> int:
        """Bytes beside each trained number: STATE, and its copy in half precision where layers compute in that."""
        return STATE + (self.size if self.size < 4 else 0)

    @property
    def cached(self) -> int:
        """Bytes of a token's keys and values while dialogues are sampled."""
        return 2 * self.layers * self.keys * self.size

    @property
    def steady(self) -> int:
        """Bytes that training holds beside its passes: weights, adapter, optimiser."""
        return self.weights * self.size + self.adapter * (4 + self.state)

    def fitting(self, free: float, checkpointing: bool = False) -> int:
        """Return how many tokens of a pass fit into `free` bytes: a power of two, so that equal machines agree."""
        head = 3 * 4 * chunk_rows("cuda", self.vocabulary) * self.vocabulary  # logits, their exponentials, a copy
        fits = int((free * (1 - MARGIN) - head) / self.token(checkpointing))
        return min(MOST, 1 << (fits.bit_length() - 1)) if fits >= FEWEST else 0

    def plan(self, room: float, batch: int, dialogue: int, checkpointing: bool = False) -> str:
        """Say in GiB what training takes on a device with `room` GiB, and sampling `batch` dialogues of `dialogue`."""
        left = room * GIB - CONTEXT - self.steady
        tokens = self.fitting(left, checkpointing)
        if not tokens and not checkpointing:
            checkpointing, tokens = True, self.fitting(left, True)
        parts = {
            "weights": self.weights * self.size,
            "adapter" if self.rank else "trained": 4 * self.adapter,
            "optimiser": self.state * self.adapter,
            "activations": tokens * self.token(checkpointing),
        }
        listing = ", ".join(f"{name} {bytes_ / GIB:.2f}" for name, bytes_ in parts.items())
        how = "with gradient checkpointing" if checkpointing else f"{self.fitting(left, True):,} with checkpointing"
        each = f"{tokens:,} tokens in a pass, {self.token(checkpointing) / 2**20:.2f} MiB each; {how}"
        fits = each if tokens else "nothing is left for a pass"
        cache = batch * dialogue * self.cached / GIB
        return f"{listing} of {room:.1f} GiB ({fits}); sampling: cache {cache:.2f} for {batch} x {dialogue:,} tokens"


def _sizes(config: Any) -> tuple[int, int, int, int, int, int]:
    """Layers, width, width of the MLP (of the experts that a token meets), of queries and of keys, vocabulary."""
    heads = config.num_attention_heads
    head = getattr(config, "head_dim", None) or config.hidden_size // heads
    keys = (getattr(config, "num_key_value_heads", None) or heads) * head
    inner = getattr(config, "moe_intermediate_size", None) or getattr(config, "intermediate_size", None)
    inner = (inner or 4 * config.hidden_size) * (getattr(config, "num_experts_per_tok", None) or 1)
    return config.num_hidden_layers, config.hidden_size, inner, heads * head, keys, config.vocab_size


def free_bytes(device: Any) -> int:
    """Return what is free on a CUDA device, with what torch keeps there for itself."""
    import torch

    return torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)


def pass_tokens(model: nn.Module, tokens: PassTokens, least: int = 0, checkpointing: bool = False) -> tuple[int, bool]:
    """Return the most tokens of a pass, and whether it takes gradient checkpointing.

    `auto` is what fits on a CUDA device as the model stands on it, and OF_CPU elsewhere; where nothing is trained half
    of that, because replies are sampled beside it. `least` is the cost of the longest pair, which cannot be cut:
    where it does not fit otherwise, checkpointing is taken.
    """
    weight = next(model.parameters())
    if tokens != "auto" or weight.device.type != "cuda":
        return OF_CPU if tokens == "auto" else tokens, checkpointing
    shape, free = Shape.of(model), free_bytes(weight.device)
    left = free - shape.state * shape.adapter if shape.adapter else free / 2
    fits = shape.fitting(left, checkpointing)
    if shape.adapter and not checkpointing and fits < max(least, FEWEST):
        checkpointing, fits = True, shape.fitting(left, True)
    logger.info(
        "memory, GiB: weights %.2f, trained %.2f, optimiser %.2f, free %.2f: %s tokens in a pass, %.2f MiB each%s",
        *(shape.weights * shape.size / GIB, 4 * shape.adapter / GIB, shape.state * shape.adapter / GIB, left / GIB),
        *(f"{fits:,}", shape.token(checkpointing) / 2**20, ", with gradient checkpointing" if checkpointing else ""),
    )
    return max(fits, FEWEST), checkpointing


def no_room(tokens: int) -> UserError:
    """The error where a pass cannot be made smaller."""
    return UserError(
        f"the device's memory does not hold a pass of {tokens:,} tokens, which cannot be cut; end what else runs on "
        "it, take `model.dtype: bfloat16`, or leave out the longest dialogues (docs/performance.md)."
    )


def no_room_beside() -> UserError:
    """The error where there is no room beside the passes."""
    return UserError(
        "the device's memory does not hold what is trained beside a pass, as the optimiser's state; lower `tokens` or "
        "`lora.rank`, take `model.train: lora`, or end what else runs on it."
    )
