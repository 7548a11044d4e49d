"""Tree attention: every node sees its ancestors and itself. Three backends that agree, for transformers' own models.

blocks  for CPUs: every path causally by itself, and all that hangs below a node against that node's path. No mask, no
        copy, no score too many; the parts of a query are joined by their log-sum-exp.
flex    torch's FlexAttention with a block mask: the kernel for CUDA devices.
dense   one 4-D mask handed to the model: for any model that takes one, and for checks; S x S scores are computed.

Models are left as they are. They look their attention up by name for every call; `install` registers one under the
name TREE and sets it. Without a tree it is transformers' SDPA, so that flat batches and sampling run as before.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from sweetrl.lm.forest import Forest
from sweetrl.lm.head import base_of

if TYPE_CHECKING:
    from torch import Tensor, nn

Backend = Literal["blocks", "flex", "dense"]

TREE = "sweetrl_tree"
FLEX_BLOCK = 128  # forests are padded to a multiple of FlexAttention's blocks, so that few shapes are compiled


@dataclass(frozen=True)
class Blocks:
    """The (query, key) pairs of a forest as few dense blocks, each pair in exactly one; runs of nodes, last exclusive.

    paths     (first, last): nodes one below the other, as a dialogue's trunk; each sees the path up to itself
    branches  (first, last, start, stop): nodes first..last hang below node stop - 1 and see all of start..stop, the
              path of that node from its beginning
    """

    paths: tuple[tuple[int, int], ...]
    branches: tuple[tuple[int, int, int, int], ...]


def plan_blocks(forest: Forest) -> Blocks:
    """Cut a forest into paths and what hangs below them.

    Depth first, a segment's first child follows it at once and continues its path; the subtrees of its other children
    follow that child's, as one run of nodes that all see the path so far. So no block needs a mask or a copy of keys.
    """
    start, stop, end, parent = forest.segments
    begin, tip = list(start), dict[int, int]()
    branches = []
    for segment, above in enumerate(parent):
        if above >= 0 and start[segment] == stop[above]:
            begin[segment] = begin[above]
            if end[segment] < end[above]:
                branches.append((end[segment], end[above], begin[above], stop[above]))
        tip[begin[segment]] = max(tip.get(begin[segment], 0), stop[segment])
    return Blocks(tuple(tip.items()), tuple(branches))


@dataclass
class TreeAttention:
    """What attention needs to know about one forest on one device; made once, used by every layer and recomputation."""

    forest: Forest
    backend: Backend
    _block_mask: Any = None

    @cached_property
    def blocks(self) -> Blocks:
        """What the backend `blocks` computes."""
        return plan_blocks(self.forest)

    def mask(self, device: Any, dtype: Any) -> Tensor:
        """The additive mask [1, 1, S, S]."""
        import torch

        mask = torch.zeros(1, 1, *(2 * [len(self.forest.end)]), dtype=dtype)
        return mask.masked_fill_(torch.from_numpy(~self.forest.ancestors()), torch.finfo(dtype).min).to(device)

    def block_mask(self, device: Any) -> Any:
        """FlexAttention's block mask over S rounded up to whole blocks; nodes beyond the forest see themselves."""
        import torch
        from torch.nn.attention.flex_attention import BlockMask

        if self._block_mask is None:
            ends = np.concatenate([self.forest.end, np.arange(len(self.forest.end), self.padded) + 1])
            some, full = seen_blocks(ends, FLEX_BLOCK)
            end = torch.from_numpy(ends).to(device)

            def sees(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
                return (key <= query) & (query < end[key])

            count, columns = _listed(some & ~full, device)
            full_count, full_columns = _listed(full, device)
            self._block_mask = BlockMask.from_kv_blocks(
                count, columns, full_count, full_columns, BLOCK_SIZE=FLEX_BLOCK, mask_mod=sees
            )
        return self._block_mask

    @property
    def padded(self) -> int:
        """Length of the sequence that is given to the model: S, or S rounded up for FlexAttention."""
        count = len(self.forest.token_ids)
        return -(-count // FLEX_BLOCK) * FLEX_BLOCK if self.backend == "flex" else count


def _listed(blocks: Any, device: Any) -> Any:
    """How many blocks each row of blocks sees [1, 1, rows], and all columns with these first [1, 1, rows, columns]."""
    import torch

    order = np.argsort(~blocks, axis=1, kind="stable")
    return (torch.from_numpy(column.astype(np.int32))[None, None].to(device) for column in (blocks.sum(1), order))


def seen_blocks(end: Any, block: int) -> tuple[Any, Any]:
    """For blocks of `block` nodes: whether block i (row) sees some of block j, and whether all of it sees all of j.

    A block before another one is seen in part if its longest subtree reaches the other's first node, and wholly if its
    shortest one reaches the other's end.
    """
    count = len(end) // block
    longest, shortest = (pick(end.reshape(count, block), axis=1) for pick in (np.max, np.min))
    first = np.arange(count)[:, None] * block
    before = np.tri(count, k=-1, dtype=bool)
    return (before & (longest > first)) | np.eye(count, dtype=bool), before & (shortest >= first + block)


def choose_backend(device: Any) -> Backend:
    """FlexAttention on CUDA devices, blocks elsewhere."""
    return "flex" if getattr(device, "type", str(device)) == "cuda" else "blocks"


def install(model: nn.Module) -> None:
    """Make `model` look its attention up under TREE; without a tree it goes on with transformers' SDPA."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(TREE, tree_attention_forward)
    AttentionMaskInterface.register(TREE, sdpa_mask)
    base = base_of(model)
    if base.config._attn_implementation != TREE:
        base.set_attn_implementation(TREE)


def tree_attention_forward(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    tree: TreeAttention | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """transformers' attention interface: query [1, heads, S, width], key and value [1, key heads, S, width]."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    if tree is None:
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, dropout=dropout, **kwargs
        )
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    if tree.backend == "flex":
        attend = _flex(query.device.type)
        out = attend(query, key, value, block_mask=tree.block_mask(query.device), scale=scale, enable_gqa=True)
    else:
        out = _function().apply(query, key, value, scale, tree)
    return out.transpose(1, 2).contiguous(), None


@cache
def _flex(device: str) -> Any:
    """FlexAttention, compiled for devices that have a kernel for it; on a CPU it runs as plain tensor operations."""
    import torch
    from torch.nn.attention.flex_attention import flex_attention

    return flex_attention if device == "cpu" else torch.compile(flex_attention)


@cache
def _function() -> Any:
    """The autograd function of the backend `blocks` (made when first used: its base class is torch's).

    torch's fused kernel for CPUs is what its SDPA calls there; it gives the log-sum-exp of the scores, too. Going back
    it takes some of the keys, and `out` and `sums` over all of them.
    """
    import torch

    attend = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    attend_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward

    class BlockAttention(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, query: Tensor, key: Tensor, value: Tensor, scale: float, tree: TreeAttention) -> Any:
            shape, (query, key, value) = query.shape, _by_key_head(query, key, value)
            out = query.new_empty(shape[2], shape[1], shape[3]).transpose(0, 1).view_as(query)
            sums = query.new_empty(query.shape[:3], dtype=torch.promote_types(query.dtype, torch.float32))
            blocks = tree.blocks
            for first, last in blocks.paths:
                queries, keys, values = (part[:, :, first:last] for part in (query, key, value))
                out[:, :, first:last], sums[:, :, first:last] = attend(queries, keys, values, 0.0, True, scale=scale)
            for first, last, start, stop in blocks.branches:
                below, so_far = out[:, :, first:last], sums[:, :, first:last]
                keys, values = key[:, :, start:stop], value[:, :, start:stop]
                more, total = attend(query[:, :, first:last], keys, values, 0.0, False, scale=scale)
                both = torch.logaddexp(so_far, total)
                below.mul_((so_far - both).exp_().unsqueeze(-1)).add_(more.mul_((total - both).exp_().unsqueeze(-1)))
                so_far.copy_(both)
            context.save_for_backward(query, key, value, out, sums)
            context.scale, context.tree = scale, tree
            return out.view(shape)

        @staticmethod
        def backward(context: Any, *grads: Tensor) -> Any:
            query, key, value, out, sums = context.saved_tensors
            grad = grads[0].view_as(query)
            to_query, to_key, to_value = torch.empty_like(query), torch.zeros_like(query), torch.zeros_like(query)
            blocks = context.tree.blocks
            pieces = [(first, last, first, last) for first, last in blocks.paths]
            for number, (first, last, start, stop) in enumerate(pieces + list(blocks.branches)):
                here, queries, outputs, total = (part[:, :, first:last] for part in (grad, query, out, sums))
                keys, values = key[:, :, start:stop], value[:, :, start:stop]
                causal = number < len(pieces)
                parts = attend_backward(here, queries, keys, values, outputs, total, 0.0, causal, scale=context.scale)
                if causal:
                    to_query[:, :, first:last] = parts[0]
                else:
                    to_query[:, :, first:last] += parts[0]
                to_key[:, :, start:stop] += parts[1]
                to_value[:, :, start:stop] += parts[2]
            return to_query.reshape(grads[0].shape), to_key.sum(1)[None], to_value.sum(1)[None], None, None

    return BlockAttention


def _by_key_head(query: Tensor, key: Tensor, value: Tensor) -> list[Tensor]:
    """[1, heads, S, width] as [key heads, heads of each, S, width], without a copy: what shares keys is one batch."""
    shape = (key.shape[1], query.shape[1] // key.shape[1], *query.shape[2:])
    return [query[0].unflatten(0, shape[:2]), *(part[0].unsqueeze(1).expand(shape) for part in (key, value))]
