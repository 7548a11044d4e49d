"""Tree attention: every node sees its ancestors and itself. Two backends that agree, for transformers' own models.

blocks  for CPUs: every path causally by itself, and all that hangs below a node against that node's path. No mask, no
        copy, no score too many; the parts of a query are joined by their log-sum-exp.
flex    torch's FlexAttention with a block mask, which is a layer's mask: the kernel for CUDA devices.

Models are left as they are. They look their attention up by name for every call; `install` registers one under the
name TREE and sets it. Without a tree it is transformers' SDPA, so that flat batches and sampling run as before. Masks
are looked up, too: for a tree a layer's mask is the number of tokens that its window has, or flex's block mask.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from sweetrl.lm.forest import Forest
from sweetrl.lm.head import base_of

if TYPE_CHECKING:
    from torch import Tensor, nn

Backend = Literal["blocks", "flex"]

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


def near_blocks(blocks: Blocks, window: int) -> Blocks:
    """The blocks with what a window of that many tokens reaches: paths in runs of a window, each below the one before.

    Within a run all is near enough; what hangs below it still has to look how far away it is.
    """
    paths = list[tuple[int, int]]()
    branches = [(first, last, max(start, stop - window), stop) for first, last, start, stop in blocks.branches]
    for first, last in blocks.paths:
        for begin in range(first, last, window):
            paths.append((begin, min(begin + window, last)))
            if begin > first:
                branches.append((*paths[-1], begin - window, begin))
    return Blocks(tuple(paths), tuple(branches))


@dataclass
class TreeAttention:
    """What attention needs to know about one forest on one device; made once, used by every layer and recomputation.

    `lengths`, rising, are those that FlexAttention's sequences are padded to, where they are not longer.
    """

    forest: Forest
    backend: Backend
    lengths: Sequence[int] = ()
    _block_masks: dict[int, Any] = field(default_factory=dict)

    @cached_property
    def blocks(self) -> Blocks:
        """What the backend `blocks` computes."""
        return plan_blocks(self.forest)

    @cached_property
    def depth(self) -> int:
        """Tokens of the longest path."""
        return int(self.forest.position.max()) + 1

    def block_mask(self, device: Any, window: int) -> Any:
        """FlexAttention's block mask over `padded` nodes; those beyond the forest see themselves."""
        import torch
        from torch.nn.attention.flex_attention import BlockMask

        window = 0 if window >= self.depth else window
        if window not in self._block_masks:
            ends = np.concatenate([self.forest.end, np.arange(len(self.forest.end), self.padded) + 1])
            positions = np.pad(self.forest.position, (0, self.padded - len(self.forest.end)))
            least = np.maximum(positions - window + 1, 0) if window else np.zeros_like(positions)
            some, full = seen_blocks(ends, FLEX_BLOCK)
            if window:
                low, high = (pick(positions.reshape(-1, FLEX_BLOCK), axis=1) for pick in (np.min, np.max))
                some &= low[:, None] - high < window
                full &= high[:, None] - low < window
            end, position, first = (moved(torch.from_numpy(numbers), device) for numbers in (ends, positions, least))

            # One function with and without a window, so that layers of both kinds are compiled as one.
            def sees(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
                return (key <= query) & (query < end[key]) & (position[key] >= first[query])

            self._block_masks[window] = BlockMask.from_kv_blocks(
                *_listed(some & ~full, device), *_listed(full, device), BLOCK_SIZE=FLEX_BLOCK, mask_mod=sees
            )
        return self._block_masks[window]

    @property
    def padded(self) -> int:
        """Length of the sequence that is given to the model: S, or more for FlexAttention."""
        count = len(self.forest.token_ids)
        if self.backend != "flex":
            return count
        in_blocks = -(-count // FLEX_BLOCK) * FLEX_BLOCK
        return next((length for length in self.lengths if length >= count), in_blocks)


def moved(tensor: Tensor, device: Any) -> Tensor:
    """Move a tensor; to a GPU from pinned memory, so that the host does not wait until it is there."""
    import torch

    pinned = torch.device(device).type == "cuda" and tensor.device.type == "cpu"
    return tensor.pin_memory().to(device, non_blocking=True) if pinned else tensor.to(device)


def _listed(blocks: Any, device: Any) -> tuple[Tensor, Tensor]:
    """How many blocks each row of blocks sees [1, 1, rows], and all columns with these first [1, 1, rows, columns]."""
    import torch

    order = np.argsort(~blocks, axis=1, kind="stable")
    count, columns = (torch.from_numpy(numbers.astype(np.int32))[None, None] for numbers in (blocks.sum(1), order))
    return moved(count, device), moved(columns, device)


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

    AttentionInterface.register(TREE, tree_attention_forward)
    AttentionMaskInterface.register(TREE, tree_mask)
    base = base_of(model)
    if base.config._attn_implementation != TREE:
        base.set_attn_implementation(TREE)


_TREE = ContextVar[TreeAttention | None]("_TREE", default=None)


@contextmanager
def masks_of(tree: TreeAttention) -> Iterator[None]:
    """Within it, models get the masks of this tree."""
    token = _TREE.set(tree)
    try:
        yield
    finally:
        _TREE.reset(token)


def tree_mask(*, local_size: int | None = None, **more: Any) -> Any:
    """transformers' mask interface: SDPA's mask, or for a tree the window [1, 1, 1, 1] in tokens, 0 without one.

    For FlexAttention it is the block mask.
    """
    import torch
    from transformers.masking_utils import sdpa_mask

    tree = _TREE.get()
    if tree is None:
        return sdpa_mask(local_size=local_size, **more)
    if tree.backend == "flex":
        return tree.block_mask(more["device"], local_size or 0)
    return torch.full((1, 1, 1, 1), local_size or 0)


def tree_attention_forward(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Any,
    scaling: float | None = None,
    dropout: float = 0.0,
    tree: TreeAttention | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """transformers' attention interface: query [1, heads, S, width], key and value [1, key heads, S, width].

    The mask is a block mask (flex), a window (blocks, with a `tree`), or SDPA's.
    """
    import torch
    from torch.nn.attention.flex_attention import BlockMask, flex_attention
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    query, key = query.to(value.dtype), key.to(value.dtype)  # rotary positions make them float32 under autocast
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    if isinstance(attention_mask, BlockMask):
        plain = query.device.type == "cpu" or torch.compiler.is_compiling()  # a layer around it is compiled, then
        attend = flex_attention if plain else _compiled_attention()
        out = attend(query, key, value, block_mask=attention_mask, scale=scale, enable_gqa=True)
    elif tree is not None:
        window = 0 if attention_mask is None or attention_mask >= tree.depth else int(attention_mask)
        out = _function().apply(query, key, value, scale, tree, window)
    else:
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, dropout=dropout, **kwargs
        )
    return out.transpose(1, 2).contiguous(), None


@cache
def _compiled_attention() -> Any:
    """FlexAttention compiled by itself. On a CPU, which has no kernel for it, it runs as plain tensor operations."""
    import torch
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention)


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
        def forward(
            context: Any, query: Tensor, key: Tensor, value: Tensor, scale: float, tree: TreeAttention, window: int
        ) -> Any:
            shape, (query, key, value) = query.shape, _by_key_head(query, key, value)
            out = query.new_empty(shape[2], shape[1], shape[3]).transpose(0, 1).view_as(query)
            sums = query.new_empty(query.shape[:3], dtype=torch.promote_types(query.dtype, torch.float32))
            blocks = near_blocks(tree.blocks, window) if window else tree.blocks
            for first, last in blocks.paths:
                queries, keys, values = (part[:, :, first:last] for part in (query, key, value))
                out[:, :, first:last], sums[:, :, first:last] = attend(queries, keys, values, 0.0, True, scale=scale)
            for first, last, start, stop in blocks.branches:
                below, so_far = out[:, :, first:last], sums[:, :, first:last]
                keys, values = key[:, :, start:stop], value[:, :, start:stop]
                far = _far(tree, window, (first, last, start, stop), query)
                more, total = attend(query[:, :, first:last], keys, values, 0.0, False, attn_mask=far, scale=scale)
                both = torch.logaddexp(so_far, total)
                below.mul_((so_far - both).exp_().unsqueeze(-1)).add_(more.mul_((total - both).exp_().unsqueeze(-1)))
                so_far.copy_(both)
            context.save_for_backward(query, key, value, out, sums)
            context.scale, context.tree, context.blocks, context.window = scale, tree, blocks, window
            return out.view(shape)

        @staticmethod
        def backward(context: Any, *grads: Tensor) -> Any:
            query, key, value, out, sums = context.saved_tensors
            grad = grads[0].view_as(query)
            to_query, to_key, to_value = torch.empty_like(query), torch.zeros_like(query), torch.zeros_like(query)
            blocks, scale = context.blocks, context.scale
            pieces = [(first, last, first, last) for first, last in blocks.paths]
            for number, (first, last, start, stop) in enumerate(pieces + list(blocks.branches)):
                here, queries, outputs, total = (part[:, :, first:last] for part in (grad, query, out, sums))
                keys, values = key[:, :, start:stop], value[:, :, start:stop]
                causal = number < len(pieces)
                far = None if causal else _far(context.tree, context.window, (first, last, start, stop), query)
                parts = attend_backward(
                    here, queries, keys, values, outputs, total, 0.0, causal, attn_mask=far, scale=scale
                )
                if causal:
                    to_query[:, :, first:last] = parts[0]
                else:
                    to_query[:, :, first:last] += parts[0]
                to_key[:, :, start:stop] += parts[1]
                to_value[:, :, start:stop] += parts[2]
            return to_query.reshape(grads[0].shape), to_key.sum(1)[None], to_value.sum(1)[None], None, None, None

    return BlockAttention


def _far(tree: TreeAttention, window: int, block: tuple[int, int, int, int], like: Tensor) -> Tensor | None:
    """The additive mask [queries, keys] of a block below a path: whoever is out of the window is not seen."""
    import torch

    if not window:
        return None
    first, last, start, stop = block
    position = torch.from_numpy(tree.forest.position)
    far = position[first:last, None] - position[start:stop] >= window
    # Half of the least number: what is added to it stays finite where a query sees none of the keys.
    return like.new_zeros(far.shape).masked_fill_(far.to(like.device), torch.finfo(like.dtype).min / 2)


def _by_key_head(query: Tensor, key: Tensor, value: Tensor) -> list[Tensor]:
    """[1, heads, S, width] as [key heads, heads of each, S, width], without a copy: what shares keys is one batch."""
    shape = (key.shape[1], query.shape[1] // key.shape[1], *query.shape[2:])
    return [query[0].unflatten(0, shape[:2]), *(part[0].unsqueeze(1).expand(shape) for part in (key, value))]
