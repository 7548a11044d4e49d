"""From dialogues to rows of token ids: sampled ids are taken as they are, never re-tokenised.

A row is one sequence for the model and the spans of the agent's replies in it. Nothing outside a span is ever learnt
from or scored: not the system prompt, not the user's words, not the training-time information in front of the critic.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, compress, pairwise
from typing import TYPE_CHECKING, Any, TypeVar

from sweetrl.errors import UserError
from sweetrl.lm.rows import IndexPairs, choose, longest_of
from sweetrl.lm.rows import Row as Row
from sweetrl.protocols import Chat
from sweetrl.types import AgentTurn, Trajectory

if TYPE_CHECKING:
    from torch import Tensor

WINDOW = 16  # optimiser steps over which pairs are sorted by length

Value = TypeVar("Value")


def encode(trajectory: Trajectory, chat: Chat, system: str | None) -> Row:
    """Lay out a dialogue as the engine saw it: every prompt that it was sent, and every reply's own sampled ids.

    Where a turn has no recorded prompt (imports, text engines), all are written as `rewrite` does.
    """
    if not (trajectory.turns and all(turn.prompt_ids for turn in trajectory.turns)):
        return rewrite(trajectory, chat, system)
    turns, before = list[tuple[tuple[int, ...], tuple[int, ...]]](), tuple[int, ...]()
    for turn in trajectory.turns:
        prompt = before[: turn.prompt_kept] + turn.prompt_ids
        turns.append((prompt, turn.token_ids))
        before = prompt + turn.token_ids
    return Row.of_turns(turns)


def rewrite(trajectory: Trajectory, chat: Chat, system: str | None) -> Row:
    """Lay out a dialogue as its chat template writes it: `system`, the request, and every reply's own sampled ids.

    `system` is the agent's system prompt, or the privileged prefix and the system prompt for the critic. Replies
    without ids (imported from official files) are tokenised from their raw text. The user's words after the last
    reply are left out.
    """
    messages = trajectory.messages
    where = f"task {trajectory.task.id}, attempt {trajectory.attempt}"
    if not messages or messages[0].role != "user":
        raise UserError(f"{where}: a dialogue starts with the user's request; repair the trajectory file.")
    by_message = {turn.message_index: turn for turn in trajectory.turns}
    prompts, turns = chat.begin(system, messages[0].content), list[tuple[tuple[int, ...], tuple[int, ...]]]()
    turn = AgentTurn(0, "")
    for index, message in enumerate(messages[1:], start=1):
        expected = "assistant" if index % 2 else "user"
        if message.role != expected:
            raise UserError(f"{where}: message {index} is from `{message.role}`, expected `{expected}`.")
        if message.role == "user":
            if index + 1 < len(messages):
                prompts.add(turn, message.content)
            continue
        turn = by_message.get(index) or AgentTurn(index, message.content)
        turns.append((prompts.ids, turn.token_ids or chat.reply(turn.raw)))
    if not turns:
        raise UserError(f"{where}: the agent says nothing in this dialogue; leave it out of the trajectories.")
    return Row.of_turns(turns)


def collate(rows: Sequence[Row], pad_id: int = 0) -> dict[str, Tensor]:
    """Right-pad rows into one batch and say where its reply tokens are.

    Returns long tensors: input_ids [B, S] of B sequences, R of them where each row is one; position [N], the flat index
    of the hidden state that predicts the token; target [N]; turn [N]; turn_row [T]; turn_index [T] (0 for a dialogue's
    first reply); tokens [R], unpadded lengths. Causal attention never looks right, so right padding needs no mask.
    """
    import torch

    sequences = [sequence for row in rows for sequence in row.sequences]
    length = max(len(sequence.token_ids) for sequence in sequences)
    input_ids = torch.full((len(sequences), length), pad_id, dtype=torch.long)
    position: list[int] = []
    target: list[int] = []
    for number, row in enumerate(sequences):
        input_ids[number, : len(row.token_ids)] = torch.tensor(row.token_ids, dtype=torch.long)
        for start, end in row.spans:
            position.extend(range(number * length + start - 1, number * length + end - 1))
            target.extend(row.token_ids[start:end])
    return {"input_ids": input_ids} | _long(position=position, target=target) | turn_columns(rows)


def _long(**columns: list[int]) -> dict[str, Tensor]:
    import torch

    return {name: torch.tensor(values, dtype=torch.long) for name, values in columns.items()}


def turn_columns(rows: Sequence[Row]) -> dict[str, Tensor]:
    """Which turn and row every reply token is in: turn [N], turn_row [T], turn_index [T], tokens [R]; see collate."""
    turn: list[int] = []
    turn_row: list[int] = []
    turn_index: list[int] = []
    for number, row in enumerate(rows):
        for index, (start, end) in enumerate(row.spans):
            turn.extend([len(turn_row)] * (end - start))
            turn_row.append(number)
            turn_index.append(index)
    tokens = [len(row.token_ids) for row in rows]
    return _long(turn=turn, turn_row=turn_row, turn_index=turn_index, tokens=tokens)


@dataclass(frozen=True)
class PreferenceData:
    """Rows, pairs of them as (chosen, rejected) indices, and replay: rows that are learnt by likelihood alone.

    `groups` says for each row which dialogue or task it comes from: rows of one group begin alike. Empty: all differ.
    `labels` (if any) says for each row whether its attempt succeeded, `turns` at which turn (from 0) its first reply is
    (else 0). A row that is learnt alone is a pair with itself. `reference_rows` (if any) are the rows as the reference
    sees them: other context, the same reply tokens. Rows and pairs may lie in files (sweetrl.lm.rows).
    """

    rows: Sequence[Row]
    pairs: Sequence[tuple[int, int]]
    replay: Sequence[int] = ()
    groups: Sequence[int] = ()
    labels: Sequence[float] = ()
    turns: Sequence[int] = ()
    reference_rows: Sequence[Row] = ()


def drop_overlong(data: PreferenceData, limit: int) -> tuple[PreferenceData, int]:
    """Leave out pairs and replay with a row of more than `limit` tokens; return the rest and how many pairs went."""
    fits = bytearray(length <= limit for length in longest_of(data.rows))
    pairs = IndexPairs(pair for pair in data.pairs if fits[pair[0]] and fits[pair[1]])
    replay = [replay_row for replay_row in data.replay if fits[replay_row]]
    used = bytearray(len(data.rows))
    for index in chain(replay, chain.from_iterable(pairs)):
        used[index] = 1
    kept = array("q", compress(range(len(used)), used))
    place = array("q", accumulate(used, initial=0))

    def some(values: Sequence[Value]) -> tuple[Value, ...]:
        return tuple(compress(values, used))

    rest = PreferenceData(
        choose(data.rows, kept),
        IndexPairs((place[chosen], place[rejected]) for chosen, rejected in pairs),
        tuple(place[replay_row] for replay_row in replay),
        some(data.groups),
        some(data.labels),
        some(data.turns),
        choose(data.reference_rows, kept) if data.reference_rows else (),
    )
    return rest, len(data.pairs) - len(pairs)


@dataclass(frozen=True)
class MicroBatch:
    """Pairs (and replay) that are computed together, as indices into PreferenceData: a step, or one pass of it."""

    pairs: tuple[tuple[int, int], ...]
    replay: tuple[int, ...] = ()


def plan(
    data: PreferenceData, epochs: float, batch_size: int, seed: int, replay: float = 0.0, max_pairs_per_group: int = 1
) -> list[MicroBatch]:
    """Lay out a training run as a list of optimiser steps of `batch_size` pairs each.

    The pairs are a stream of fresh permutations cut into full batches (so an epoch's last batch borrows from the next
    permutation); round(epochs * pairs / batch_size) steps, at least one. With `max_pairs_per_group` > 1 the pairs of a
    group are shuffled and cut into equal parts of at most `max_pairs_per_group`, and whole parts are permuted, so that
    a step holds pairs that begin alike; else pairs are sorted by length within a window of steps, so that little is
    padding. Each step holds about `replay` demonstrations per pair, from a stream of their own. A plan depends on its
    arguments only, so a killed run continues it by skipping what was done.
    """
    if not data.pairs:
        raise UserError("there is no pair to learn from; collect more trajectories or lower the margin.")
    steps = max(1, round(epochs * len(data.pairs) / batch_size))
    max_pairs_per_group = max_pairs_per_group if data.groups else 1
    chance = random.Random(seed)
    stream = _stream(data, max_pairs_per_group, chance)
    replay_stream = _endless(len(data.replay), random.Random(seed + 1))
    lengths = longest_of(data.rows)
    result, used = list[MicroBatch](), 0
    for first in range(0, steps, WINDOW):
        count = min(WINDOW, steps - first)
        taken = [next(stream) for _ in range(count * batch_size)]
        if max_pairs_per_group == 1:
            taken.sort(key=lambda number: max(lengths[index] for index in data.pairs[number]))
        batches = [taken[start : start + batch_size] for start in range(0, len(taken), batch_size)]
        chance.shuffle(batches)
        for batch in batches:
            due = round((len(result) + 1) * batch_size * replay) if data.replay else 0
            drawn = [data.replay[next(replay_stream)] for _ in range(due - used)]
            used = max(used, due)
            result.append(MicroBatch(tuple(data.pairs[number] for number in batch), tuple(drawn)))
    return result


def _stream(data: PreferenceData, max_pairs_per_group: int, chance: random.Random) -> Iterator[int]:
    """Endless fresh permutations of the pairs' numbers, parts of a group kept together."""
    if max_pairs_per_group == 1:
        yield from _endless(len(data.pairs), chance)
    members: dict[int, array[int]] = {}
    for number, pair in enumerate(data.pairs):
        members.setdefault(data.groups[pair[0]], array("i")).append(number)
    while True:
        parts = []
        for numbers in members.values():
            mixed = array("i", chance.sample(numbers, len(numbers)))
            count = -(-len(mixed) // max_pairs_per_group)
            cuts = [len(mixed) * number // count for number in range(count + 1)]
            parts += [mixed[start:stop] for start, stop in pairwise(cuts)]
        for part in chance.sample(parts, len(parts)):
            yield from part


def _endless(count: int, chance: random.Random) -> Iterator[int]:
    """Endless fresh permutations of 0 .. `count` - 1."""
    while count:
        yield from chance.sample(range(count), count)


def collate_pairs(
    data: PreferenceData,
    batch: MicroBatch,
    reference: Sequence[Tensor] | None,
    lay_out: Callable[[Sequence[Row]], dict[str, Any]] = collate,
) -> dict[str, Any]:
    """Make the tensors of one pass; a row that is in several pairs is computed once.

    `lay_out` makes a batch of rows; by default they are padded (collate).
    Returns {"rows": collate(...), "reference" [N] (if given, by row), "chosen" [P], "rejected" [P], "replay" [A]},
    the last three being row numbers in the batch, and "label" [R] where the data have labels. "tokens" is how many the
    rows have, "turns" how many turns the longest dialogue has, and which of them (from 0) "chosen" and "rejected" rows
    have; "chosen_turns", "rejected_turns" are the places of these rows' turns in the columns; "share" says that these
    are all pairs and all replay of a step.
    """
    import torch

    order = dict.fromkeys([index for pair in batch.pairs for index in pair] + list(batch.replay))
    number = {index: place for place, index in enumerate(order)}
    rows = [data.rows[index] for index in order]
    result: dict[str, Any] = {"rows": lay_out(rows)} | _long(
        chosen=[number[chosen] for chosen, _ in batch.pairs],
        rejected=[number[rejected] for _, rejected in batch.pairs],
        replay=[number[replay_row] for replay_row in batch.replay],
    )
    if data.turns:
        first = torch.tensor([data.turns[index] for index in order])
        result["rows"]["turn_index"] = result["rows"]["turn_index"] + first[result["rows"]["turn_row"]]
    columns, result["turns"], result["share"] = result["rows"], {}, (1.0, 1.0)
    for name in ("chosen", "rejected"):  # here, before the batch is on a device, whose counts would be waited for
        own = torch.isin(columns["turn_row"], result[name]).nonzero()[:, 0]
        result[f"{name}_turns"], result["turns"][name] = own, columns["turn_index"][own].unique().tolist()
    result["turns"]["all"], result["tokens"] = int(columns["turn_index"].max()) + 1, int(columns["tokens"].sum())
    if data.labels:
        result["label"] = torch.tensor([data.labels[index] for index in order])
    if reference is not None:
        result["reference"] = torch.cat([reference[index] for index in order])
    return result
