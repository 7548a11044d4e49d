"""How the rows of a step or of a dialogue are cut into micro-batches, as trees or as flat padded batches.

Also their log-probs from one pass over a forest or a flat batch, and whether a model's attention can compute forests.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sweetrl.config.sections import PassTokens
from sweetrl.errors import UserError
from sweetrl.lm.data import MicroBatch, PreferenceData, Row, collate, turn_columns
from sweetrl.lm.forest import build_forest, forest_tokens, layout_order, split_rows
from sweetrl.lm.head import backbone, base_of, compute_dtype, slot_logprobs, token_logprobs
from sweetrl.lm.memory import OF_CPU, pass_tokens
from sweetrl.lm.rows import choose, lengths_of, longest_of, sequences_of
from sweetrl.lm.tree_attention import Backend, TreeAttention, choose_backend, install, masks_of, moved

if TYPE_CHECKING:
    from torch import Tensor, nn

logger = logging.getLogger("sweetrl")

FOREST = 2**23  # tokens that are laid out as one forest: 16 bytes each while it is cut

PROBE = (  # a small forest: a trunk, branches at two of its turns, one of them branching again, and a row of its own
    Row((1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12), ((3, 5), (9, 12))),
    Row((1, 2, 3, 13, 14, 15), ((3, 6),)),
    Row((1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 17), ((9, 11),)),
    Row((1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 18, 19), ((9, 12),)),
    Row((20, 21, 22), ((1, 3),)),
)
SMALL_VOCABULARY = 64


@dataclass(frozen=True)
class Layout:
    """Trees (with the attention backend that the model and its device take) or flat batches (`backend` None).

    tokens   the most that one micro-batch computes, padding included; a single row or pair may be longer
    pad_id   what flat batches are padded with
    lengths  those that FlexAttention's sequences are padded to, rising: the ones that layers are compiled for
    """

    backend: Backend | None
    tokens: int = OF_CPU
    pad_id: int = 0
    lengths: tuple[int, ...] = ()

    def collate(self, rows: Sequence[Row]) -> dict[str, Any]:
        """One pass over `rows`, for sweetrl.lm.head.reply_logprobs."""
        if self.backend is None:
            return collate(rows, self.pad_id)
        return collate_trees(rows, self.backend, lengths=[length for length in self.lengths if length <= self.tokens])

    def cost(self, rows: Sequence[Row]) -> int:
        """Tokens that one pass over `rows` computes."""
        if self.backend is None:
            return sum(len(row.starts) for row in rows) * max(row.longest for row in rows)
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


def model_layout(model: nn.Module, layout: str, tokens: PassTokens = OF_CPU, pad_id: int = 0) -> Layout:
    """The layout called `layout` in the settings, or flat batches (it says why) where trees cannot be used."""
    backend, reason = usable_backend(model, trees=layout == "trees")
    if reason:
        logger.warning("flat batches instead of trees: %s", reason)
    return Layout(backend, pass_tokens(model, tokens)[0], pad_id)


def reply_logprobs(model: nn.Module, rows: dict[str, Any]) -> Tensor:
    """Log-probs [N] of the reply tokens of a pass (`Layout.collate`), row after row."""
    if "tree" not in rows:
        states, tokens, head = reply_states(model, rows)
        return token_logprobs(head, states, tokens)
    transformer, head = backbone(model)
    hidden = _forest_states(model, transformer, rows)
    predictions = slot_logprobs(head, hidden, rows["slot"], rows["choice"], rows["tree"].forest.slot)
    return predictions.index_select(0, rows["reply"])


def length_batches(rows: Sequence[Row], batch_tokens: int) -> list[list[int]]:
    """Indices of `rows` by rising length, in batches of at most `batch_tokens` padded tokens (or of one row)."""
    lengths, sequences = longest_of(rows), sequences_of(rows)
    result, held = list[list[int]](), 0
    for index in sorted(range(len(rows)), key=lengths.__getitem__):
        # Rows come by rising length, so the new one is the longest of its batch.
        if result and (held + sequences[index]) * lengths[index] <= batch_tokens:
            result[-1].append(index)
            held += sequences[index]
        else:
            result.append([index])
            held = sequences[index]
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

    Each row of replay goes with a pair: in trees with one that begins like it, in flat batches evenly.
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


def probe_rows(vocabulary: int, trunk: int = 0) -> tuple[Row, ...]:
    """Return PROBE in tokens from the middle of a vocabulary of that size, and two rows that share so long a `trunk`.

    In a very small one they stay as they are. The first and the last tokens are often special, and in half precision
    the log-probs of a row of those are decided by rounding alone, in trees and in rows alike.
    """
    first = vocabulary // 2 if vocabulary >= SMALL_VOCABULARY else 0
    rows = list(PROBE)
    if trunk:
        shared, spans = random.Random(0).choices(range(1, 20), k=trunk), ((trunk, trunk + 4),)
        rows += [Row((*shared, end, 1, 2, 3), spans) for end in (20, 21)]
    return tuple(Row(tuple(token + first for token in row.token_ids), row.spans) for row in rows)


def collate_trees(
    rows: Sequence[Row], backend: Backend, merge: bool = True, lengths: Sequence[int] = ()
) -> dict[str, Any]:
    """Make the tensors of one pass over the forest of `rows`: like collate, with `tree` in place of padding.

    input_ids, position_ids [1, S]; predicting [M]; slot, choice [U]; reply [N]; and the columns of turn_columns.
    """
    import torch
    from torch.nn.functional import pad

    forest = build_forest(rows, merge)
    tree = TreeAttention(forest, backend, lengths)
    extra = tree.padded - len(forest.token_ids)
    columns = {"predicting": forest.predicting, "slot": forest.slot, "choice": forest.target, "reply": forest.reply}
    made = {name: torch.from_numpy(values) for name, values in columns.items()}
    made["input_ids"] = pad(torch.from_numpy(forest.token_ids), (0, extra))[None]
    made["position_ids"] = pad(torch.from_numpy(forest.position), (0, extra))[None]
    return made | turn_columns(rows) | {"tree": tree}


def reply_states(model: nn.Module, rows: dict[str, Any]) -> tuple[Tensor, Tensor, Any]:
    """Return (states [N, width], tokens [N], head): what predicts a pass's reply tokens, row after row, and these."""
    transformer, head = backbone(model)
    if "tree" in rows:
        states = _forest_states(model, transformer, rows).index_select(0, rows["slot"][rows["reply"]])
        return states, rows["choice"][rows["reply"]], head
    hidden = transformer(input_ids=rows["input_ids"], use_cache=False).last_hidden_state
    return hidden.flatten(0, 1).index_select(0, rows["position"]), rows["target"], head


def _forest_states(model: nn.Module, transformer: Any, rows: dict[str, Any]) -> Tensor:
    """The states [M, width] of a collated forest that predict something."""
    import torch

    install(model)
    tree, input_ids = rows["tree"], rows["input_ids"]
    # Without a mask transformers would ask the device whether the positions are those of packed rows.
    more = {"attention_mask": torch.ones_like(input_ids, dtype=torch.bool)}
    if tree.backend == "blocks":
        more["tree"] = tree
    with masks_of(tree):
        states = transformer(input_ids=input_ids, position_ids=rows["position_ids"], use_cache=False, **more)
    hidden: Tensor = states.last_hidden_state[0].index_select(0, rows["predicting"])
    return hidden


def usable_backend(model: nn.Module, trees: bool = True) -> tuple[Backend | None, str]:
    """Return the backend for `model` on its device, or None and the reason why trees cannot be used.

    A small forest, with rows longer than a window of its attention, and a flat batch are computed and compared with the
    model's own logits. UserError where neither agrees with them.
    """
    import torch

    base, weight = base_of(model), next(model.parameters())
    config, attention = base.config.get_text_config(), base.config._attn_implementation
    limit = 1e-4 if compute_dtype(model).itemsize >= 4 else 0.1
    for_trees, reason = _tree_backend(base, weight.device) if trees else (None, "")
    window, context = attention_window(config)
    trunk = min(3 * window // 2, context - 4)
    rows = probe_rows(config.vocab_size, trunk if for_trees and trunk < OF_CPU else 0)
    backends: list[Backend | None] = [for_trees, None] if for_trees else [None]
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            own = torch.cat([_own_logprobs(model, row, weight.device) for row in rows])
            for backend in backends:
                where = "tree" if backend else "flat batch"
                try:
                    error = _apart(model, rows, backend, own)
                    if error <= limit:
                        return backend, "" if backend else reason
                    problem = f"gives other log-probs in a {where} than its own logits ({error:.1e} relative)"
                except UserError:
                    raise
                except Exception as failure:  # whatever a foreign model does with arguments that it does not know
                    problem = f"in a {where}: {type(failure).__name__}: {str(failure).splitlines()[0][:200]}"
                reason = f"{config.model_type} {problem}"
                if base.config._attn_implementation != attention:
                    base.set_attn_implementation(attention)
    finally:
        model.train(was_training)
    raise UserError(f"{reason}; take another model, as of the Llama or Qwen families.")


def _tree_backend(base: Any, device: Any) -> tuple[Backend | None, str]:
    """The backend that a model may take for trees, or None and the reason."""
    config = base.config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or ()) - {"full_attention", "sliding_attention"}
    if kinds or base._is_stateful:
        return None, f"{config.model_type} has layers of kind {', '.join(sorted(kinds)) or 'state space'}"
    if not base._supports_attention_backend:
        return None, f"{config.model_type} computes attention in code of its own"
    return choose_backend(device), ""


def attention_window(config: Any) -> tuple[int, int]:
    """Return the most tokens that a layer may see, by whatever name the configuration has (0: all), and the context."""
    context = getattr(config, "max_position_embeddings", None) or 2**31
    sizes = [0]
    for name, value in config.to_dict().items():
        if ("window" in name or "chunk" in name) and "layers" not in name and type(value) is int and value < context:
            sizes.append(value)
    return max(sizes), context


def _own_logprobs(model: Any, row: Row, device: Any) -> Tensor:
    """Log-probs of a row's reply tokens by the model's own logits, with nothing of ours."""
    import torch

    ids, first = torch.tensor([row.token_ids], device=device), row.spans[0][0]
    logits = model(input_ids=ids, use_cache=False, logits_to_keep=ids.shape[1] - first + 1).logits[0].float()
    chosen = logits[:-1].log_softmax(1).gather(1, ids[0, first:, None])[:, 0]
    return torch.cat([chosen[start - first : stop - first] for start, stop in row.spans])


def _apart(model: Any, rows: Sequence[Row], backend: Backend | None, own: Tensor) -> float:
    """How far log-probs are from the model's own, relative to their spread: at most in trees, on average in a batch.

    In half precision rounding may flip the choice of an expert.
    """
    spread = (own - own.mean()).abs().max().clamp(min=1e-9)

    def differences(layout: Layout, rows: Sequence[Row]) -> Tensor:
        values = reply_logprobs(model, to_device(layout.collate(rows), own.device))
        return (values - own[: len(values)]).abs() / spread

    in_trees = float(differences(Layout(backend), rows).max()) if backend else 0.0
    return max(in_trees, float(differences(Layout(None), rows[: len(PROBE)]).mean()))


def to_device(batch: dict[str, Any], device: Any) -> dict[str, Any]:
    """Move the tensors of a batch."""
    import torch

    def there(value: Any) -> Any:
        if isinstance(value, dict):
            return to_device(value, device)
        return moved(value, device) if isinstance(value, torch.Tensor) else value

    return {name: there(value) for name, value in batch.items()}
