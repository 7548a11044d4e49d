"""Sampled candidate replies on disk: other critics, margins and objectives rank the same replies without sampling."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sweetrl.io import atomic_path
from sweetrl.lm.reference import digest_weights

if TYPE_CHECKING:
    from sweetrl.lm.data import Row
    from sweetrl.types import Sampling

# Part of every key. Raise it when a change of the code gives other replies to equal prompts, weights and seeds.
_FORMAT = 1
# {token ids: (text, how often it was sampled)} in order of first appearance; that for each dialogue and agent's turn.
Distinct = dict[tuple[int, ...], tuple[str, int]]
Samples = list[list[Distinct]]


class SampleCache:
    """Keeps samples in `folder` by what they are a function of: the weights of `model` (bare, without an adapter), how
    it is computed, the ids that end a reply, the tokenizer, which makes texts of ids, prompts, sampling, seed and
    `_FORMAT`, the version of the sampling code. Removing a file costs time.

    For what this process samples only: nobody can tell what weights a server has, or which version computes them, so
    what servers say is kept for the run that asked and no longer (sweetrl.sweet.candidates).
    """

    def __init__(self, folder: Path, model: Any, tokenizer: Any, stop_ids: Sequence[int]) -> None:
        import torch

        self.folder = folder
        device = next(model.parameters()).device.type
        how = (_FORMAT, device, torch.get_num_threads(), torch.__version__, tuple(stop_ids), repr(tokenizer))
        self._model = hashlib.sha256(repr(how).encode())
        if (fast := getattr(tokenizer, "backend_tokenizer", None)) is not None:
            self._model.update(fast.to_str().encode())
        digest_weights(self._model, model)

    def find(
        self, rows: Sequence[tuple[str, Row]], sampling: Sampling, seed: int, make: Callable[[], Samples]
    ) -> Samples:
        """Return the samples at every agent's turn of `rows` (each with the name of its dialogue), else `make` them."""
        path = self.folder / f"{self._key(rows, sampling, seed)}.parquet"
        samples = _read(path, rows)
        if samples is None:
            samples = make()
            _write(path, samples)
        return samples

    def _key(self, rows: Sequence[tuple[str, Row]], sampling: Sampling, seed: int) -> str:
        digest = self._model.copy()
        digest.update(repr((sampling, seed)).encode())
        for name, row in rows:
            digest.update(repr((name, row.spans)).encode())
            digest.update(np.asarray(row.token_ids, dtype=np.int64).tobytes())
        return digest.hexdigest()[:32]


def _write(path: Path, samples: Samples) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {"row": pa.int32(), "turn": pa.int32(), "token_ids": pa.list_(pa.int32()), "text": pa.string()}
    records = [
        {"row": number, "turn": turn, "token_ids": list(ids), "text": text, "count": count}
        for number, turns in enumerate(samples)
        for turn, distinct in enumerate(turns)
        for ids, (text, count) in distinct.items()
    ]
    with atomic_path(path) as temporary:
        schema = pa.schema([*columns.items(), ("count", pa.int32())])
        pq.write_table(pa.Table.from_pylist(records, schema=schema), temporary, compression="zstd")


def _read(path: Path, rows: Sequence[tuple[str, Row]]) -> Samples | None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not path.exists():
        return None
    samples: Samples = [[{} for _ in row.spans] for _, row in rows]
    try:
        for reply in pq.read_table(path).to_pylist():
            samples[reply["row"]][reply["turn"]][tuple(reply["token_ids"])] = (reply["text"], reply["count"])
    except (pa.ArrowInvalid, KeyError, IndexError, TypeError):  # not a file of ours
        return None
    return samples


__all__ = ["Distinct", "SampleCache", "Samples"]
