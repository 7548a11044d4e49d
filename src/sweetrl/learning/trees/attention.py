"""Tree attention: every node sees its ancestors and itself. Three backends that agree, for transformers' own models.

blocks  block-sparse attention for CPUs: a chunk of queries meets only keys that some query in it sees. Keys that all
        of them see need no mask; the few others do; the two parts are joined by their log-sum-exp.
flex    torch's FlexAttention with a block mask: the kernel for CUDA devices.
dense   one 4-D mask handed to the model: for any model that takes one, and for checks; S x S scores are computed.

Models are left as they are. They look their attention up by name for every call; `install` registers one under the
name TREE and sets it. Without a tree it is transformers' SDPA, so that flat batches and sampling run as before.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from sweetrl.learning.trees.layout import Forest

if TYPE_CHECKING:
    from torch import Tensor, nn

Backend = Literal["blocks", "flex", "dense"]

TREE = "sweetrl_tree"
QUERIES = 256  # of one chunk: fewer mean less waste at its edges, more mean larger matrix products
FLEX_BLOCK = 128  # forests are padded to a multiple of FlexAttention's blocks, so that few shapes are compiled


@dataclass(frozen=True)
class Chunk:
    """Queries first..last of a forest, and the keys they need as runs of nodes, last exclusive.

    Keys in `seen` are ancestors of all these queries, keys in `partly` of some of them or queries themselves.
    """

    first: int
    last: int
    seen: tuple[tuple[int, int], ...]
    partly: tuple[tuple[int, int], ...]

    @property
    def scores(self) -> int:
        """How many (query, key) pairs are computed."""
        return (self.last - self.first) * sum(stop - start for start, stop in self.seen + self.partly)


def plan_chunks(forest: Forest, queries: int = QUERIES) -> list[Chunk]:
    """Cut a forest into chunks of `queries` nodes and find the keys of each."""
    segments = forest.segments
    chunks = []
    for first in range(0, len(forest.token_ids), queries):
        last = min(first + queries, len(forest.token_ids))
        needed = (segments.start < last) & (segments.end > first)
        start, stop, end = segments.start[needed], segments.stop[needed], segments.end[needed]
        # Nodes before the chunk whose subtree holds all of it are seen by every query.
        whole = end >= last
        seen = zip(start[whole], np.minimum(stop[whole], first), strict=True)
        some = np.concatenate([np.stack([start[~whole], stop[~whole]]), np.stack([start[whole], stop[whole]])], axis=1)
        some[0, len(start[~whole]) :] = np.maximum(some[0, len(start[~whole]) :], first)
        some[1] = np.minimum(some[1], last)
        chunks.append(Chunk(first, last, _runs(seen), _runs(zip(*some, strict=True))))
    return chunks


def _runs(pieces: Any) -> tuple[tuple[int, int], ...]:
    """Sort half-open intervals, leave out empty ones, join neighbours."""
    result: list[tuple[int, int]] = []
    for start, stop in sorted((int(start), int(stop)) for start, stop in pieces if start < stop):
        if result and result[-1][1] == start:
            result[-1] = (result[-1][0], stop)
        else:
            result.append((start, stop))
    return tuple(result)


@dataclass
class TreeAttention:
    """What attention needs to know about one forest on one device; made once, used by every layer and recomputation."""

    forest: Forest
    backend: Backend
    _made: dict[Any, Any] = field(default_factory=dict)

    def chunks(self, device: Any, dtype: Any) -> list[tuple[Chunk, Tensor]]:
        """Chunks with the additive mask [queries, keys] of their partly seen keys."""
        import torch

        if (device, dtype) not in self._made:
            made = []
            for chunk in plan_chunks(self.forest):
                keys = np.concatenate([np.arange(*run) for run in chunk.partly])
                queries = np.arange(chunk.first, chunk.last)[:, None]
                sees = (keys <= queries) & (queries < self.forest.end[keys])
                mask = torch.zeros(sees.shape, dtype=dtype)
                mask.masked_fill_(torch.from_numpy(~sees), -math.inf)
                made.append((chunk, mask.to(device)))
            self._made[device, dtype] = made
        return self._made[device, dtype]

    def mask(self, device: Any, dtype: Any) -> Tensor:
        """The additive mask [1, 1, S, S]."""
        import torch

        if (device, dtype) not in self._made:
            mask = torch.zeros(1, 1, *(2 * [len(self.forest.end)]), dtype=dtype)
            mask.masked_fill_(torch.from_numpy(~self.forest.ancestors()), torch.finfo(dtype).min)
            self._made[device, dtype] = mask.to(device)
        return self._made[device, dtype]

    def block_mask(self, device: Any) -> Any:
        """FlexAttention's block mask over S rounded up to whole blocks; nodes beyond the forest see themselves."""
        import torch
        from torch.nn.attention.flex_attention import BlockMask

        if device not in self._made:
            ends = np.concatenate([self.forest.end, np.arange(len(self.forest.end), self.padded) + 1])
            some, whole = seen_blocks(ends, FLEX_BLOCK)
            end = torch.from_numpy(ends).to(device)

            def sees(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
                return (key <= query) & (query < end[key])

            count, columns = _listed(some & ~whole, device)
            full_count, full_columns = _listed(whole, device)
            self._made[device] = BlockMask.from_kv_blocks(
                count, columns, full_count, full_columns, BLOCK_SIZE=FLEX_BLOCK, mask_mod=sees
            )
        return self._made[device]

    @property
    def padded(self) -> int:
        """Length of the sequence that is given to the model: S, or S rounded up for FlexAttention."""
        count = len(self.forest.token_ids)
        return -(-count // FLEX_BLOCK) * FLEX_BLOCK if self.backend == "flex" else count


def _listed(blocks: Any, device: Any) -> Any:
    """How many blocks each row of blocks sees [1, 1, rows], and all columns with these first [1, 1, rows, columns]."""
    import torch

    order = np.argsort(~blocks, axis=1, kind="stable")
    return (torch.from_numpy(one.astype(np.int32))[None, None].to(device) for one in (blocks.sum(1), order))


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
    whole: Any = model
    base = whole.get_base_model() if hasattr(whole, "get_base_model") else whole
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
        out = _flex(query)(query, key, value, block_mask=tree.block_mask(query.device), scale=scale, enable_gqa=True)
    else:
        out = _function().apply(query, key, value, scale, tree)
    return out.transpose(1, 2).contiguous(), None


_compiled: list[Any] = []


def _flex(query: Tensor) -> Any:
    """FlexAttention, compiled for devices that have a kernel for it; on a CPU it runs as plain tensor operations."""
    import torch
    from torch.nn.attention.flex_attention import flex_attention

    if query.device.type == "cpu":
        return flex_attention
    if not _compiled:
        _compiled.append(torch.compile(flex_attention))
    return _compiled[0]


_made_function: list[Any] = []


def _function() -> Any:
    """The autograd function of the backend `blocks` (made when first used: its base class is torch's)."""
    import torch

    if _made_function:
        return _made_function[0]

    class BlockAttention(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, query: Tensor, key: Tensor, value: Tensor, scale: float, tree: TreeAttention) -> Any:
            out = torch.empty_like(query)
            sums = torch.empty(query.shape[:3], dtype=torch.promote_types(query.dtype, torch.float32))
            groups = query.shape[1] // key.shape[1]
            for chunk, mask in tree.chunks(query.device, query.dtype):
                part = _grouped(query[:, :, chunk.first : chunk.last], groups)
                found, total = _attend(
                    part, _gather(key, chunk.partly), _gather(value, chunk.partly), mask.repeat(groups, 1), scale
                )
                if chunk.seen:
                    other, more = _attend(part, _gather(key, chunk.seen), _gather(value, chunk.seen), None, scale)
                    both = torch.logaddexp(total, more)
                    found = found * (total - both).exp().unsqueeze(-1).to(found.dtype)
                    found += other * (more - both).exp().unsqueeze(-1).to(found.dtype)
                    total = both
                out[:, :, chunk.first : chunk.last] = _ungrouped(found, groups)
                sums[:, :, chunk.first : chunk.last] = _ungrouped(total, groups)
            context.save_for_backward(query, key, value, out, sums)
            context.scale, context.tree = scale, tree
            return out

        @staticmethod
        def backward(context: Any, *grads: Tensor) -> Any:
            query, key, value, out, sums = context.saved_tensors
            grad = grads[0]
            groups = query.shape[1] // key.shape[1]
            to_query, to_key, to_value = torch.empty_like(query), torch.zeros_like(key), torch.zeros_like(value)
            for chunk, mask in context.tree.chunks(query.device, query.dtype):
                span = slice(chunk.first, chunk.last)
                own: Any = [_grouped(one[:, :, span], groups) for one in (grad, query, out, sums)]
                total = torch.zeros_like(own[1])
                for runs, seen_mask in ((chunk.partly, mask.repeat(groups, 1)), (chunk.seen, None)):
                    if not runs:
                        continue
                    keys: Any = (_gather(key, runs), _gather(value, runs), seen_mask, context.scale)
                    parts = _attend_backward(*own, *keys)
                    total += parts[0]
                    _scatter(to_key, runs, parts[1])
                    _scatter(to_value, runs, parts[2])
                to_query[:, :, span] = _ungrouped(total, groups)
            return to_query, to_key, to_value, None, None

    _made_function.append(BlockAttention)
    return BlockAttention


def _grouped(queries: Tensor, groups: int) -> Tensor:
    """[1, heads, C, ...] to [1, key heads, groups * C, ...]: query heads that share keys become more queries."""
    if groups == 1:
        return queries
    return queries.reshape(1, queries.shape[1] // groups, groups * queries.shape[2], *queries.shape[3:])


def _ungrouped(queries: Tensor, groups: int) -> Tensor:
    if groups == 1:
        return queries
    return queries.reshape(1, queries.shape[1] * groups, queries.shape[2] // groups, *queries.shape[3:])


def _gather(values: Tensor, runs: tuple[tuple[int, int], ...]) -> Tensor:
    """The nodes of `runs` out of [1, heads, S, width]; one run (a dialogue's trunk) is not copied."""
    import torch

    pieces = [values[:, :, start:stop] for start, stop in runs]
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=2)


def _scatter(values: Tensor, runs: tuple[tuple[int, int], ...], grad: Tensor) -> None:
    """Add `grad` to the nodes of `runs`."""
    place = 0
    for start, stop in runs:
        values[:, :, start:stop] += grad[:, :, place : place + stop - start]
        place += stop - start


def _attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float) -> tuple[Tensor, Tensor]:
    """Softmax attention and the log-sum-exp of its scores."""
    import torch

    if query.device.type == "cpu":  # torch's fused kernel for CPUs, which is what its SDPA calls
        fused = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        return fused(query, key, value, 0.0, False, attn_mask=mask, scale=scale)
    scores = torch.matmul(query, key.transpose(-1, -2)).float() * scale
    if mask is not None:
        scores = scores + mask
    total = scores.logsumexp(-1)
    return torch.matmul((scores - total.unsqueeze(-1)).exp().to(value.dtype), value), total


def _attend_backward(
    grad: Tensor,
    query: Tensor,
    out: Tensor,
    total: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of query, key and value through some of the keys; `out` and `total` are over all of them.

    With p = exp(s - total): dv = p' g, ds = p (g v' - <g, out>), dq = scale ds k, dk = scale ds' q.
    """
    import torch

    if query.device.type == "cpu":
        fused = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
        return fused(grad, query, key, value, out, total, 0.0, False, attn_mask=mask, scale=scale)
    scores = torch.matmul(query, key.transpose(-1, -2)).float() * scale
    if mask is not None:
        scores = scores + mask
    p = (scores - total.unsqueeze(-1)).exp()
    through = torch.matmul(grad, value.transpose(-1, -2)).float()
    ds = (p * (through - (grad.float() * out.float()).sum(-1, keepdim=True)) * scale).to(query.dtype)
    return (
        torch.matmul(ds, key),
        torch.matmul(ds.transpose(-1, -2), query),
        torch.matmul(p.to(grad.dtype).transpose(-1, -2), grad),
    )
