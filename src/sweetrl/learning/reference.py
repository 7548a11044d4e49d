"""Log-probs of many rows without gradients, by the policy and by its reference; the latter are kept on disk."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sweetrl.io import atomic_path
from sweetrl.learning.batches import Row
from sweetrl.learning.distributed import all_gather, broadcast, rank_and_world_size, whole_tensor
from sweetrl.learning.passes import Layout, reply_logprobs
from sweetrl.models import WeightsFiles, weights_files

if TYPE_CHECKING:
    from torch import Tensor, nn

# How many values of each weight of a large model are looked at, besides the hashes of its files.
SAMPLED = 4096


def row_logprobs(
    model: nn.Module, rows: Sequence[Row], layout: Layout, passes: Sequence[Sequence[int]] | None = None
) -> list[Tensor]:
    """Log-probs of every row's reply tokens, as the model stands: CPU tensors [reply tokens], in order, no gradient.

    `passes` are the rows that are computed together, by default all of them as `layout` cuts them; others stay empty.
    """
    import torch

    from sweetrl.learning.trees.forward import to_device

    device = next(model.parameters()).device
    result: list[Tensor] = [torch.empty(0)] * len(rows)
    with torch.no_grad():
        for indices in layout.cut_rows(rows) if passes is None else passes:
            batch = to_device(layout.collate([rows[index] for index in indices]), device)
            pieces = reply_logprobs(model, batch).cpu().split([rows[index].reply_tokens for index in indices])
            for index, piece in zip(indices, pieces, strict=True):
                result[index] = piece.clone()
    return result


def spread_logprobs(model: nn.Module, rows: Sequence[Row], layout: Layout) -> list[Tensor]:
    """row_logprobs by all processes together: each computes a share of the passes, all get all values."""
    rank, ranks = rank_and_world_size()
    if ranks == 1:
        return row_logprobs(model, rows, layout)
    passes = layout.cut_rows(rows)
    own = passes[rank::ranks]
    # Processes that share a model's layers make equally many passes; what is computed twice is equal.
    given = own + passes[:1] * (-(-len(passes) // ranks) - len(own))
    found = row_logprobs(model, rows, layout, given)
    values = [found[index] for indices in own for index in indices]
    parts = all_gather(values)
    for number, part in enumerate(parts):
        for index, value in zip([index for one in passes[number::ranks] for index in one], part, strict=True):
            found[index] = value
    return found


def starts_trained(model: Any) -> bool:
    """Whether the adapter on `model` already changes it: then its start, not the bare base, is the reference."""
    return any("lora_B" in name and bool(value.any()) for name, value in model.named_parameters())


def reference_logprobs(
    model: Any, rows: Sequence[Row], layout: Layout, cache: Path | None = None, adapter: bool = False
) -> list[Tensor]:
    """log pi_ref of every row's reply tokens, once and for all; CPU tensors [reply tokens], in order.

    The reference is the base, the adapter switched off; with `adapter` it is the model as it stands. With a folder
    `cache` they are computed once for each (weights, layout, rows) and read from there afterwards. Several processes
    share the work.
    """
    import torch

    path = cache / f"{_key(model, rows, layout, adapter)}.npy" if cache is not None else None
    lengths = [row.reply_tokens for row in rows]
    kept = broadcast(lambda: np.load(path) if path is not None and path.exists() else None)
    if kept is not None and len(kept) == sum(lengths):
        return list(torch.from_numpy(kept).split(lengths))
    was_training = model.training
    model.eval()
    off = model.disable_adapter() if hasattr(model, "disable_adapter") and not adapter else nullcontext()
    try:
        with off:
            found = spread_logprobs(model, rows, layout)
    finally:
        model.train(was_training)
    if path is not None and rank_and_world_size()[0] == 0:
        with atomic_path(path) as temporary, temporary.open("wb") as file:
            np.save(file, torch.cat(found).numpy())
    return found


def _key(model: Any, rows: Sequence[Row], layout: Layout, adapter: bool) -> str:
    """Digest of what the values are a function of: weights that matter, how they are computed, tokens and spans."""
    import torch

    digest = hashlib.sha256(repr((layout, adapter, torch.get_num_threads(), torch.__version__)).encode())
    digest_weights(digest, model, adapter)
    for row in rows:
        digest.update(np.asarray(row.token_ids, dtype=np.int64).tobytes())
        digest.update(repr(row.spans).encode())
    return digest.hexdigest()[:32]


def digest_weights(digest: hashlib._Hash, model: Any, adapter: bool = False) -> None:
    """Add the weights of `model` to `digest`, those of its adapter only with `adapter`.

    A large model's frozen weights stand there as the hashes of the files that they come from, which are remembered
    (sweetrl.file_hashes), and as `SAMPLED` values of each: weights that were changed in memory since are others.
    """
    import torch

    parameters = dict(model.named_parameters(remove_duplicate=False))
    told: dict[WeightsFiles, str | None] = {}
    for name, value in model.state_dict().items():
        if "lora_" in name and not adapter:
            continue
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        flat = value.detach()
        files = weights_files(parameters[name]) if name in parameters else None
        if files is not None and files not in told:
            told[files] = files.digest()
        if files is not None and (content := told[files]) is not None:
            digest.update(content.encode())
            flat = flat.flatten()[:: max(1, flat.numel() // SAMPLED)]
        bytes_ = whole_tensor(flat).cpu().contiguous().flatten().view(torch.uint8)
        digest.update(bytes_.numpy().tobytes())
