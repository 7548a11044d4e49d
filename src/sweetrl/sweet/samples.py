"""Sampled candidate replies on disk: other critics, margins and objectives rank the same replies without sampling."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sweetrl.lm.reference import digest_weights
from sweetrl.sweet.tables import Table, write_table

if TYPE_CHECKING:
    from sweetrl.lm.data import Row
    from sweetrl.types import Sampling

# Part of every key. Raise it when a change of the code gives other replies to equal prompts, weights and seeds.
_FORMAT = 1
# {token ids: (text, how often it was sampled)} in order of first appearance; that for each dialogue and agent's turn.
Distinct = dict[tuple[int, ...], tuple[str, int]]
Samples = list[list[Distinct]]


@dataclass(frozen=True)
class _Reply:
    """A distinct reply at an agent's turn of dialogue number `row` of a block, as it is kept."""

    row: int
    turn: int
    token_ids: tuple[int, ...]
    text: str
    count: int


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
        if not path.exists():
            samples = make()
            write_table(path, _Reply, _replies(samples))
            return samples
        samples = [[{} for _ in row.spans] for _, row in rows]
        for reply in Table(path, _Reply):
            samples[reply.row][reply.turn][reply.token_ids] = (reply.text, reply.count)
        return samples

    def _key(self, rows: Sequence[tuple[str, Row]], sampling: Sampling, seed: int) -> str:
        digest = self._model.copy()
        digest.update(repr((sampling, seed)).encode())
        for name, row in rows:
            digest.update(repr((name, row.spans)).encode())
            digest.update(np.asarray(row.token_ids, dtype=np.int64).tobytes())
        return digest.hexdigest()[:32]


def _replies(samples: Samples) -> Iterator[_Reply]:
    for number, turns in enumerate(samples):
        for turn, distinct in enumerate(turns):
            for ids, (text, count) in distinct.items():
                yield _Reply(number, turn, ids, text, count)
