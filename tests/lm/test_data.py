from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweetrl.backend import Backend
from sweetrl.engines.chat import ChatFormat
from sweetrl.errors import UserError
from sweetrl.lm.data import (
    MicroBatch,
    PreferenceData,
    Row,
    collate,
    collate_pairs,
    drop_overlong,
    encode,
    plan,
)
from sweetrl.types import Message, Trajectory

SYSTEM = "You help a user."


def replies(row: Row) -> list[tuple[int, ...]]:
    return [row.token_ids[start:end] for start, end in row.spans]


def test_sampled_ids_are_taken_as_they_are(make_trajectory: Callable[..., Trajectory], chat: ChatFormat) -> None:
    for number in range(8):
        trajectory = make_trajectory(number, 0)
        odd = tuple(
            dataclasses.replace(turn, token_ids=(*turn.token_ids[:-1], 300, turn.token_ids[-1]))
            for turn in trajectory.turns
        )
        row = encode(dataclasses.replace(trajectory, turns=odd), chat, SYSTEM)
        assert replies(row) == [turn.token_ids for turn in odd]


def test_imported_dialogues_read_like_the_chat_template(
    make_trajectory: Callable[..., Trajectory], chat: ChatFormat, tokenizer: Any
) -> None:
    for number in range(8):
        trajectory = make_trajectory(number, 0, sampled=False)
        messages = [{"role": "system", "content": SYSTEM}] + [
            {"role": message.role, "content": message.content} for message in trajectory.messages
        ]
        rendered = tokenizer.apply_chat_template(messages, tokenize=False)
        row = encode(trajectory, chat, SYSTEM)
        assert tokenizer.decode(row.token_ids) == rendered
        assert row.token_ids.count(tokenizer.bos_token_id) == 1
        assert row.spans[-1][1] == len(row.token_ids)


def test_masks_never_cover_the_system_or_the_user(
    trajectories: list[Trajectory], chat: ChatFormat, tokenizer: Any
) -> None:
    for trajectory in trajectories:
        for system in (SYSTEM, (Backend().privileged_prompt(trajectory.task) or "") + SYSTEM):
            row = encode(trajectory, chat, system)
            texts = [message.content for message in trajectory.messages if message.role == "assistant"]
            assert [tokenizer.decode(ids).removesuffix(tokenizer.eos_token) for ids in replies(row)] == texts
            batch = collate([row])
            assert batch["target"].tolist() == [token for ids in replies(row) for token in ids]
            # the hidden state that predicts a token is the one before it
            flat = batch["input_ids"].flatten()
            assert flat[batch["position"] + 1].tolist() == batch["target"].tolist()
            outside = [i for i in range(len(row.token_ids)) if not any(s <= i < e for s, e in row.spans)]
            assert not set(outside) & set((batch["position"] + 1).tolist())


def test_a_cut_reply_gets_its_end_of_turn_from_the_context(
    make_trajectory: Callable[..., Trajectory], chat: ChatFormat
) -> None:
    trajectory = next(dialogue for dialogue in (make_trajectory(n, 0) for n in range(50)) if len(dialogue.turns) > 3)
    row = encode(trajectory, chat, SYSTEM)
    cut, uncut = row.spans[2], row.spans[1]
    assert row.token_ids[cut[1]] == chat.end_of_turn and row.token_ids[cut[1] - 1] != chat.end_of_turn
    assert row.token_ids[uncut[1] - 1] == chat.end_of_turn and row.token_ids[uncut[1]] != chat.end_of_turn


def test_broken_dialogues_are_named(make_trajectory: Callable[..., Trajectory], chat: ChatFormat) -> None:
    good = make_trajectory(1, 2)
    request, *rest = good.messages
    for messages, problem in (
        ((), "starts with the user's request"),
        ((request,), "says nothing"),
        ((request, Message("user", "again"), *rest), "message 1 is from `user`"),
    ):
        with pytest.raises(UserError, match=problem) as error:
            encode(dataclasses.replace(good, messages=messages, turns=()), chat, SYSTEM)
        assert "task train-00001, attempt 2" in str(error.value)


def data(pairs: int, replay: int = 0) -> PreferenceData:
    rows = tuple(Row(tuple(range(5 + index % 7)), ((2, 4),)) for index in range(2 * pairs + replay))
    return PreferenceData(
        rows, tuple((2 * i, 2 * i + 1) for i in range(pairs)), tuple(range(2 * pairs, 2 * pairs + replay))
    )


@given(st.integers(1, 60), st.sampled_from([0.5, 1, 2, 4]), st.sampled_from([8, 4]), st.integers(0, 5))
def test_a_plan_has_full_batches_and_uses_pairs_evenly(pairs: int, epochs: float, batch_size: int, seed: int) -> None:
    grouped = dataclasses.replace(data(pairs), groups=tuple(index // 2 // 5 for index in range(2 * pairs)))
    for max_pairs_per_group in (1, 3, 8):
        made = plan(grouped, epochs, batch_size, seed, max_pairs_per_group=max_pairs_per_group)
        steps = max(1, round(epochs * pairs / batch_size))
        assert len(made) == steps
        assert all(len(batch.pairs) == batch_size for batch in made)
        counts = Counter(pair for batch in made for pair in batch.pairs)
        uses = [counts[pair] for pair in data(pairs).pairs]
        assert max(uses) - min(uses) <= 1
        assert made == plan(grouped, epochs, batch_size, seed, max_pairs_per_group=max_pairs_per_group)


def test_a_plan_keeps_pairs_of_a_group_together_and_mixes_groups() -> None:
    grouped = dataclasses.replace(data(200), groups=tuple(index // 2 // 20 for index in range(400)))  # 10 groups of 20

    def groups_in_a_step(max_pairs_per_group: int) -> float:
        made = plan(grouped, 1, 8, seed=3, max_pairs_per_group=max_pairs_per_group)
        return sum(len({pair[0] // 40 for pair in step.pairs}) for step in made) / len(made)

    # 20 pairs are cut into 3 parts of 6 or 7: a step of 8 meets 2 or 3 of them.
    assert groups_in_a_step(8) < 2.5 < 3 <= groups_in_a_step(2) < groups_in_a_step(1)
    first, second = (plan(grouped, 1, 8, seed=seed, max_pairs_per_group=8) for seed in (3, 4))
    assert first != second and {p for s in first for p in s.pairs} == {p for s in second for p in s.pairs}


@pytest.mark.parametrize(("share", "expected"), [(0.25, 100), (1.0, 400), (0.0, 0), (0.1, 40)])
def test_a_plan_draws_replay_in_proportion(share: float, expected: int) -> None:
    made = plan(data(40, replay=7), epochs=10, batch_size=8, seed=0, replay=share)
    drawn = Counter(replay_row for batch in made for replay_row in batch.replay)
    assert sum(drawn.values()) == expected
    assert not drawn or max(drawn.values()) - min(drawn.values()) <= 1


def test_what_the_model_cannot_read_is_left_out_and_counted() -> None:
    rows = tuple(Row(tuple(range(length)), ((2, 4),)) for length in (5, 9, 6, 7, 9))
    rest, gone = drop_overlong(PreferenceData(rows, ((0, 1), (2, 3), (3, 0)), (4, 0)), limit=8)
    assert gone == 1
    assert [len(row.token_ids) for row in rest.rows] == [5, 6, 7]
    assert rest.pairs == ((1, 2), (2, 0)) and rest.replay == (0,)
    bare = tuple(Row(row.token_ids[1:], ((1, 3),)) for row in rows)
    rest, _ = drop_overlong(PreferenceData(rows, ((0, 1), (2, 3), (3, 0)), (4, 0), reference_rows=bare), limit=8)
    assert [len(row.token_ids) for row in rest.reference_rows] == [4, 5, 6], "what the reference sees goes with its row"


def test_no_pairs_is_one_sentence() -> None:
    with pytest.raises(UserError, match="no pair to learn from"):
        plan(data(0), 1, 8, 0)


def test_nothing_that_fits_is_another_sentence() -> None:
    """The message names the context: where there are enough pairs, the advice to collect more would not help."""
    from types import SimpleNamespace

    from sweetrl.sweet.training import fitting

    text = SimpleNamespace(max_position_embeddings=3)
    model = SimpleNamespace(config=SimpleNamespace(get_text_config=lambda: text))
    some = PreferenceData((Row((1, 2, 3, 4), ((2, 4),)), Row((1, 2, 3, 5), ((2, 4),))), ((0, 1), (1, 0)))
    with pytest.raises(UserError, match=r"none of the 2 .* fits into the model's context of 3 tokens"):
        fitting(some, model)


def test_rows_of_single_replies_know_their_turn() -> None:
    """Metrics split the policy's advantages by turn; rows that are left out take their turn's number with them."""
    rows = tuple(Row(tuple(range(length)), ((2, length),)) for length in (5, 6, 7, 50))
    data = PreferenceData(rows, ((0, 1), (3, 1), (1, 2)), (2,), turns=(4, 4, 1, 9))
    fits, too_long = drop_overlong(data, 10)
    assert too_long == 1 and fits.turns == (4, 4, 1)
    made = collate_pairs(fits, MicroBatch(((1, 2),), (2,)), None)
    assert made["rows"]["turn_index"].tolist() == [4, 1]
    assert collate_pairs(PreferenceData(rows, ((0, 1),)), MicroBatch(((0, 1),)), None)["rows"]["turn_index"].sum() == 0
