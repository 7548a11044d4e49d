"""How the rows of a step or of a dialogue are cut into micro-batches, as trees or as flat padded batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sweetrl.lm.data import MicroBatch, PreferenceData, Row, collate
from sweetrl.lm.forest import forest_tokens, layout_order, split_rows
from sweetrl.lm.head import flat_logprobs
from sweetrl.lm.rows import choose, lengths_of
from sweetrl.lm.tree_attention import Backend
from sweetrl.lm.tree_forward import choose_layout, collate_trees, forest_logprobs

if TYPE_CHECKING:
    from torch import Tensor, nn

TOKENS = 16_384
FOREST = 2**23  # tokens that are laid out as one forest: 16 bytes each while it is cut


@dataclass(frozen=True)
class Layout:
    """Trees (with the attention backend that the model and its device take) or flat batches (`backend` None).

    tokens   the most that one micro-batch computes, padding included; a single row or pair may be longer
    pad_id   what flat batches are padded with
    """

    backend: Backend | None
    tokens: int = TOKENS
    pad_id: int = 0

    def collate(self, rows: Sequence[Row]) -> dict[str, Any]:
        """One pass over `rows`, for sweetrl.lm.head.reply_logprobs."""
        return collate(rows, self.pad_id) if self.backend is None else collate_trees(rows, self.backend)

    def cost(self, rows: Sequence[Row]) -> int:
        """Tokens that one pass over `rows` computes."""
        if self.backend is None:
            return len(rows) * max(len(row.token_ids) for row in rows)
        return forest_tokens(rows)

    def cut_rows(self, rows: Sequence[Row]) -> list[list[int]]:
        """Indices of `rows` in micro-batches of at most `tokens`; trees are made of `FOREST` tokens at a time."""
        if self.backend is None:
            return length_batches(rows, self.tokens)
        micro_batches: list[list[int]] = []
        for part in _stretches(lengths_of(rows), FOREST):
            cuts = split_rows(choose(rows, part), self.tokens)
            micro_batches += [[part[index] for index in indices] for indices in cuts]
        return micro_batches


def model_layout(model: nn.Module, layout: str, tokens: int = TOKENS, pad_id: int = 0) -> Layout:
    """The layout called `layout` in the settings, or flat batches where the model's attention cannot be masked."""
    return Layout(choose_layout(model, layout), tokens, pad_id)


def reply_logprobs(model: nn.Module, rows: dict[str, Any]) -> Tensor:
    """Log-probs [N] of the reply tokens of a pass (`Layout.collate`), row after row."""
    return forest_logprobs(model, rows) if "tree" in rows else flat_logprobs(model, rows)


def length_batches(rows: Sequence[Row], batch_tokens: int) -> list[list[int]]:
    """Indices of `rows` by rising length, in batches of at most `batch_tokens` padded tokens (or of one row)."""
    lengths = lengths_of(rows)
    result: list[list[int]] = []
    for index in sorted(range(len(rows)), key=lengths.__getitem__):
        # Rows come by rising length, so the new one is the longest of its batch.
        if result and (len(result[-1]) + 1) * lengths[index] <= batch_tokens:
            result[-1].append(index)
        else:
            result.append([index])
    return result


def _stretches(lengths: Sequence[int], most: int) -> Iterator[range]:
    """Cut a sequence of rows into stretches of at most `most` tokens (or of one row)."""
    first = tokens = 0
    for index, length in enumerate(lengths):
        if tokens + length > most and index > first:
            yield range(first, index)
            first, tokens = index, 0
        tokens += length
    if first < len(lengths):
        yield range(first, len(lengths))


def cut_step(data: PreferenceData, step: MicroBatch, layout: Layout, most_pairs: int) -> list[MicroBatch]:
    """Cut a step into micro-batches of at most `most_pairs` pairs and `layout.tokens` tokens; at least one pair each.

    Each replay_row goes with a pair: in trees with one that begins like it, in flat batches evenly.
    """
    pairs, replay = list(step.pairs), list(step.replay)
    rows = {index: data.rows[index] for index in {*replay, *(index for pair in pairs for index in pair)}}
    units: list[tuple[tuple[int, int], list[int]]]
    if layout.backend is None:
        units = [(pair, []) for pair in pairs]
        for number, replay_row in enumerate(replay):
            units[number * len(units) // len(replay)][1].append(replay_row)
    else:
        firsts = [pair[0] for pair in pairs] + replay
        units = []
        early: list[int] = []
        for place in layout_order([rows[index] for index in firsts]):
            if place < len(pairs):
                units.append((pairs[place], early))
                early = []
            elif units:
                units[-1][1].append(firsts[place])
            else:
                early.append(firsts[place])
    micro_batches: list[MicroBatch] = []
    held: dict[int, None] = {}
    for pair, extra in units:
        more = held | dict.fromkeys([*pair, *extra])
        fits = micro_batches and len(micro_batches[-1].pairs) < most_pairs
        if fits and layout.cost([rows[index] for index in more]) <= layout.tokens:
            last = micro_batches[-1]
            micro_batches[-1] = MicroBatch((*last.pairs, pair), (*last.replay, *extra))
            held = more
        else:
            micro_batches.append(MicroBatch((pair,), tuple(extra)))
            held = dict.fromkeys([*pair, *extra])
    return micro_batches


def share_of_step(
    data: PreferenceData, step: MicroBatch, layout: Layout, process_rank: int, processes: int
) -> MicroBatch:
    """The part of a step that one of several processes computes: neighbours in the layout, pairs in equal number."""
    if processes == 1:
        return step
    whole_step = cut_step(data, step, Layout(layout.backend, 2**62, layout.pad_id), len(step.pairs))[0]
    ends = (process_rank, process_rank + 1)
    pairs = slice(*(len(whole_step.pairs) * number // processes for number in ends))
    replay = slice(*(len(whole_step.replay) * number // processes for number in ends))
    return MicroBatch(whole_step.pairs[pairs], whole_step.replay[replay])
