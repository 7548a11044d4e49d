"""Log-probs of many rows without gradients, by the policy and by its reference; the latter are kept on disk."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sweetrl.console.progress import Meter
from sweetrl.io import atomic_path
from sweetrl.lm.data import Row
from sweetrl.lm.distributed import all_gather, is_sharded, process_rank_and_count
from sweetrl.lm.head import COMPUTES_IN, base_of, without_adapter
from sweetrl.lm.memory import no_room
from sweetrl.lm.passes import Layout, reply_logprobs, to_device
from sweetrl.lm.rows import Listed, reply_tokens_of, unnamed_file

if TYPE_CHECKING:
    from torch import Tensor, nn

logger = logging.getLogger("sweetrl")

# Of a model's configuration: names, and what changes no value.
NO_VALUES = frozenset({"_name_or_path", "transformers_version", "use_cache", "dtype"})
GATHERED = 64  # micro-batches whose values processes exchange at a time


def row_logprobs(model: nn.Module, rows: Sequence[Row], layout: Layout, together: bool = False) -> list[Tensor]:
    """Log-probs of every row's reply tokens, as the model stands: CPU tensors [reply tokens], in order, no gradient.

    With `together` all processes compute a share of them each, and all get all values.
    """
    import torch

    result: list[Tensor] = [torch.empty(0)] * len(rows)
    computed = _spread(model, rows, layout) if together else _computed(model, rows, layout, layout.cut_rows(rows))
    for index, values in computed:
        result[index] = values
    return result


def in_passes(
    model: nn.Module,
    rows: Sequence[Row],
    layout: Layout,
    micro_batches: Iterable[Sequence[int]],
    compute: Callable[[Any, dict[str, Any]], Tensor],
) -> Iterator[tuple[Sequence[int], Tensor]]:
    """Yield the indices of each micro-batch's rows and what `compute` makes of model and batch, on the CPU.

    Where memory is short, each is computed in twice as many parts from then on.
    """
    import torch

    device, parts = next(model.parameters()).device, 1
    for indices in micro_batches:
        some = [rows[index] for index in indices]
        values: Tensor | None = None
        while values is None:
            cuts = [len(some) * number // parts for number in range(parts + 1)]
            try:
                with torch.no_grad():
                    passes = [layout.collate(some[first:last]) for first, last in pairwise(cuts) if first < last]
                    values = torch.cat([compute(model, to_device(batch, device)).cpu() for batch in passes])
            except torch.OutOfMemoryError as error:
                if is_sharded(model):  # the others wait in the middle of their passes
                    raise no_room(layout.cost(some)) from error
                if parts >= len(some):
                    raise no_room(layout.cost(some[:1])) from error
            if values is None:
                parts *= 2
                logger.warning("the device's memory is short: passes without gradients are cut into %d parts", parts)
                torch.cuda.empty_cache()
        yield indices, values


def _computed(
    model: nn.Module, rows: Sequence[Row], layout: Layout, micro_batches: Iterable[Sequence[int]]
) -> Iterator[tuple[int, Tensor]]:
    """Yield the index of a row and the log-probs of its reply tokens, micro-batch by micro-batch."""
    for indices, values in in_passes(model, rows, layout, micro_batches, reply_logprobs):
        for index, piece in zip(indices, values.split([rows[index].reply_tokens for index in indices]), strict=True):
            yield index, piece.clone()


def _spread(model: nn.Module, rows: Sequence[Row], layout: Layout) -> Iterator[tuple[int, Tensor]]:
    """The same by all processes together: each computes a share of the micro-batches, and all get all values."""
    process_rank, processes = process_rank_and_count()
    micro_batches = layout.cut_rows(rows)
    if processes == 1:
        yield from _computed(model, rows, layout, micro_batches)
        return
    own = micro_batches[process_rank::processes]
    # Processes that share a model's layers compute equally many; what is computed twice is equal.
    own = own + micro_batches[:1] * (-(-len(micro_batches) // processes) - len(own))
    for first in range(0, len(own), GATHERED):
        for part in all_gather(list(_computed(model, rows, layout, own[first : first + GATHERED]))):
            yield from part


def _reported(computed: Iterable[tuple[int, Tensor]], total: int) -> Iterator[tuple[int, Tensor]]:
    """Pass on what is computed, and report progress now and then, but not of work that takes seconds."""
    if process_rank_and_count()[0]:
        yield from computed
        return
    progress = Meter("reference log-probs", total, "sequences", bar=False)  # training has a bar already
    for number, row_values in enumerate(computed, start=1):
        yield row_values
        if number < total:
            progress(1)


class RowValues(Listed["Tensor"]):
    """Values of every row's reply tokens, in a file; CPU tensors [reply tokens], in order."""

    def __init__(self, values: np.ndarray[Any, Any], lengths: Sequence[int]) -> None:
        self.values, self._ends = values, np.cumsum(np.asarray(lengths, dtype=np.int64))

    def __len__(self) -> int:
        return len(self._ends)

    def item(self, index: int) -> Tensor:
        """Read the values of row number `index`."""
        import torch

        return torch.from_numpy(np.array(self.values[self.place(index)]))

    def place(self, index: int) -> slice:
        """Where the values of row number `index` are."""
        return slice(int(self._ends[index - 1]) if index else 0, int(self._ends[index]))


def _write_values(path: Path | None, lengths: Sequence[int], computed: Iterable[tuple[int, Tensor]]) -> RowValues:
    """Write values as they come, as one array of NumPy (.npy), or without a `path` into a file without a name."""
    result, start, total = RowValues(np.zeros(0, dtype=np.float32), lengths), 0, sum(lengths)
    file = unnamed_file() if path is None else path.open("w+b")
    for index, logprobs in computed:
        values = logprobs.numpy()
        if not start:
            header = {"descr": values.dtype.str, "fortran_order": False, "shape": (total,)}
            np.lib.format.write_array_header_1_0(file, header)
            start = file.tell()
        file.seek(start + result.place(index).start * values.itemsize)
        file.write(values.tobytes())
    if start:
        file.flush()
        result.values = np.memmap(file, values.dtype, "r", start, (total,))
    return result


def _read_values(path: Path, lengths: Sequence[int]) -> RowValues | None:
    """What `_write_values` wrote, or None where there is nothing of this size."""
    try:
        values = np.load(path, mmap_mode="r")
    except (OSError, ValueError, EOFError):  # none, or another kind of file
        return None
    return RowValues(values, lengths) if values.shape == (sum(lengths),) else None


def reference_logprobs(
    model: Any, rows: Sequence[Row], layout: Layout, cache: Path | None = None, adapter: bool = False
) -> RowValues:
    """log pi_ref of every row's reply tokens, once and for all; read from a file, row by row.

    The reference is the base, the adapter switched off; with `adapter` it is the model as it stands. With a folder
    `cache` they are computed once for each (weights, layout, rows) and read from there afterwards. Several processes
    share the work.
    """
    path = cache / f"{_key(model, rows, layout, adapter)}.npy" if cache is not None else None
    lengths = reply_tokens_of(rows)
    kept = None if path is None else _read_values(path, lengths)
    if all(all_gather(kept is not None)) and kept is not None:
        return kept
    was_training = model.training
    model.eval()
    try:
        with nullcontext() if adapter else without_adapter(model):
            computed = _reported(_spread(model, rows, layout), len(rows))
            if path is None or process_rank_and_count()[0]:
                return _write_values(None, lengths, computed)
            with atomic_path(path) as temporary:
                return _write_values(temporary, lengths, computed)
    finally:
        model.train(was_training)


def _key(model: Any, rows: Sequence[Row], layout: Layout, adapter: bool) -> str:
    """Digest of what the values are a function of: weights that matter, how they are computed, tokens and spans."""
    import torch

    device, dtype = next(model.parameters()).device.type, getattr(base_of(model), COMPUTES_IN, None)
    how = (layout, adapter, device, dtype, torch.get_num_threads(), torch.__version__)
    digest = hashlib.sha256(repr(how).encode())
    digest_weights(digest, model, adapter)
    for row in rows:
        digest.update(np.asarray(row.token_ids, dtype=np.int64).tobytes())
        digest.update(repr(row.spans if len(row.starts) == 1 else (row.spans, row.starts)).encode())
    return digest.hexdigest()[:32]


def digest_weights(digest: hashlib._Hash, model: Any, adapter: bool = False) -> None:
    """Add the weights of `model` and its configuration to `digest`, those of its adapter only with `adapter`."""
    import torch

    if (config := getattr(model, "config", None)) is not None:  # the same weights with other heads are another model
        values = {name: value for name, value in config.to_dict().items() if name not in NO_VALUES}
        digest.update(json.dumps(values, sort_keys=True, default=str).encode())
    for name, module in model.named_modules() if adapter else ():
        if isinstance(scaling := getattr(module, "scaling", None), dict):
            digest.update(f"{name} {scaling}".encode())
    for name, value in model.state_dict().items():
        if "lora_" in name and not adapter:
            continue
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        tensor = value.full_tensor() if hasattr(value, "full_tensor") else value  # all processes gather a sharded one
        bytes_ = tensor.detach().cpu().contiguous().flatten().view(torch.uint8)
        digest.update(bytes_.numpy().tobytes())
