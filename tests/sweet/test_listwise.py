"""Stage 2 as weighted likelihood: the weights by hand, the loss against a slow one, and that an actor follows it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweetrl.backend import Backend
from sweetrl.config.settings import LoraSettings, ModelSettings, PolicySettings
from sweetrl.errors import UserError
from sweetrl.sweet.preferences import Replay, listwise_rows, reply_weights
from sweetrl.sweet.rank import centered
from sweetrl.types import Candidate, RankedState


def candidate(count: int, advantage: float, ids: tuple[int, ...] = (5,)) -> Candidate:
    return Candidate(ids, " ".join(map(str, ids)), count, advantage)


def test_weights_by_hand() -> None:
    weights = reply_weights([candidate(1, 0.2), candidate(3, 0.0)], power=1.0, temperature=0.1)
    assert weights == pytest.approx([math.exp(2) / (math.exp(2) + 3), 3 / (math.exp(2) + 3)])
    squared = reply_weights([candidate(1, 0.2), candidate(3, 0.2)], power=2.0, temperature=0.1)
    assert squared == pytest.approx([0.1, 0.9])
    assert reply_weights([candidate(1, -900.0), candidate(1, 900.0)], 1.0, 0.01) == pytest.approx([0.0, 1.0])


def test_without_a_temperature_advantages_do_not_matter() -> None:
    likely, unlikely = candidate(3, -5.0), candidate(1, 5.0)
    assert reply_weights([likely, unlikely], 1.0, None) == pytest.approx([0.75, 0.25])
    assert reply_weights([likely, unlikely], 0.0, None) == pytest.approx([0.5, 0.5])


def test_states_without_a_good_reply_count_little_by_advantage() -> None:
    poor, good = [candidate(2, -0.5), candidate(2, -0.4)], [candidate(1, 0.1), candidate(3, -0.5)]
    assert sum(reply_weights(poor, 1.0, 0.1)) == pytest.approx(1.0)
    assert reply_weights(poor, 1.0, 0.1, equal=False) == pytest.approx([0.5 * math.exp(-5), 0.5 * math.exp(-4)])
    assert reply_weights(good, 1.0, 0.1, 0.03, equal=False) == pytest.approx([0.25 * math.exp(1), 0.0])
    assert reply_weights([candidate(1, 9.0)], 1.0, 0.1, equal=False) == pytest.approx([20.0])


@given(
    st.lists(st.tuples(st.integers(1, 16), st.floats(-1, 1)), min_size=1, max_size=16),
    st.floats(0.01, 10),
    st.floats(0, 3),
    st.floats(0, 0.9),
)
def test_weights_are_a_distribution_in_the_order_of_advantages(
    drawn: list[tuple[int, float]], temperature: float, power: float, least: float
) -> None:
    candidates = [candidate(count, advantage) for count, advantage in drawn]
    weights = reply_weights(candidates, power, temperature, least)
    assert sum(weights) == pytest.approx(1.0)
    assert all(weight >= 0 for weight in weights)
    shifted = [candidate(count, advantage + 0.5) for count, advantage in drawn]
    assert reply_weights(shifted, power, temperature, least) == pytest.approx(weights, abs=1e-6)
    for reply, weight in zip(candidates, weights, strict=True):
        for other, other_weight in zip(candidates, weights, strict=True):
            if reply.count == other.count and reply.advantage > other.advantage:
                assert weight >= other_weight


def state(turn: int, *candidates: Candidate, task: str = "t", attempt: int = 0) -> RankedState:
    return RankedState(task, attempt, turn, (1, 2, *range(3, 3 + turn)), candidates)


def test_rows_hold_every_candidate_with_weight_and_say_where_they_come_from() -> None:
    states = [
        state(0, candidate(1, 0.0, (7, 8)), candidate(1, 0.0, (9,))),
        state(1, candidate(1, 1.0, (7,)), candidate(1, -1.0, (9, 9))),
        state(0, candidate(2, 0.0, (4,)), task="u"),
        RankedState("v", 0, 0, (1,), ()),  # every sample was empty
    ]
    data = listwise_rows(states, 1.0, 0.1, 0.03)
    assert [(row.token_ids, row.spans) for row in data.rows] == [
        ((1, 2, 7, 8), ((2, 4),)),
        ((1, 2, 9), ((2, 3),)),
        ((1, 2, 3, 7), ((3, 4),)),  # the other one has a weight of exp(-20)
        ((1, 2, 4), ((2, 3),)),
    ]
    assert data.groups == (0, 0, 0, 1)
    assert data.turns == (0, 0, 1, 0)
    assert data.pairs == ((0, 0), (1, 1), (2, 2), (3, 3))
    assert data.labels == pytest.approx((2 / 3, 2 / 3, 4 / 3, 4 / 3))  # a half, a half, 1 and 1, scaled to a mean of 1
    with pytest.raises(UserError, match="no candidate to learn from"):
        listwise_rows([RankedState("v", 0, 0, (1,), ())], 1.0, 0.1, 0.03)


def test_one_reply_of_babble_costs_the_others_their_order_by_the_mean_alone(caplog: pytest.LogCaptureFixture) -> None:
    drawn = (("needed", 0.0), ("usual", -0.3), ("other", -0.4), ("babble", -9.0))
    replies = tuple(Candidate((at,), text, 2, value) for at, (text, value) in enumerate(drawn))
    states = [RankedState("t", 0, 0, (1,), replies)]
    by_mean, by_median = (
        listwise_rows(centered(states, Backend(), f"{middle}_centered"), 1.0, 0.05, 0.03, equal=False)
        for middle in ("mean", "median")
    )
    assert by_mean.labels == pytest.approx((1.0, 1.0, 1.0))
    weights = (20.0, math.exp(0.1 / 0.05) / 4, 1 / 4)  # -0.4 is taken off
    assert by_median.labels == pytest.approx([3 * weight / sum(weights) for weight in weights])
    assert caplog.text.count("more than two thirds of the candidates have the greatest weight") == 1


def test_the_loss_is_the_weighted_likelihood_written_slowly() -> None:
    import torch

    from sweetrl.sweet.losses import listwise_loss

    logprobs, token_row = torch.tensor([-0.5, -1.0, -2.0, -0.25]), torch.tensor([0, 0, 1, 2])
    weight = torch.tensor([0.5, 1.5, 1.0])
    slow = -(0.5 * (-0.5 - 1.0) + 1.5 * -2.0 + 1.0 * -0.25) / 3
    assert listwise_loss(logprobs, weight, token_row, 3).item() == pytest.approx(slow)


@pytest.fixture(scope="module")
def states(tiny_model: Path) -> list[RankedState]:
    """Two replies that are equally likely to be sampled; the critic likes the first."""
    return [
        RankedState(f"t{number}", 0, turn, (10 + number, 11, 12 + turn), (good, bad))
        for number in range(4)
        for turn in range(2)
        for good, bad in [(candidate(2, 0.5, (20, 21)), candidate(2, -0.5, (30, 31, 32)))]
    ]


def fitted(tiny_model: Path, states: list[RankedState], folder: Path, **changes: Any) -> tuple[Any, list[Any]]:
    from sweetrl.lm.adapters import attach_adapter, load_base
    from sweetrl.sweet.trainer import ListwiseTrainer

    lora = LoraSettings(rank=4, alpha=8)
    settings = PolicySettings(**{"learning_rate": 2e-2, "epochs": 20, "batch_size": 8, "lora": lora, **changes})
    data = listwise_rows(states, settings.count_power, settings.advantage_temperature or None, 0.03)
    model = attach_adapter(load_base(ModelSettings(base=str(tiny_model), device="cpu"))[0], lora, seed=0)
    trainer = ListwiseTrainer(model, data, settings, folder, 0)
    return trainer, trainer.fit()


def probability(model: Any, state: RankedState, reply: tuple[int, ...]) -> float:
    import torch

    ids = torch.tensor([[*state.prompt_ids, *reply]])
    with torch.no_grad():
        logits = model(input_ids=ids).logits[0].log_softmax(-1)
    start = len(state.prompt_ids)
    return sum(logits[start - 1 + place, token].item() for place, token in enumerate(reply))


def test_an_actor_comes_to_say_what_the_critic_likes(
    tiny_model: Path, states: list[RankedState], tmp_path: Path
) -> None:
    trainer, history = fitted(tiny_model, states, tmp_path / "liked")
    good, bad = ((20, 21), (30, 31, 32))
    model = trainer.model.eval()
    with model.disable_adapter():
        before = [probability(model, state, good) for state in states]
    assert all(probability(model, state, good) > value + 1 for state, value in zip(states, before, strict=True))
    assert all(probability(model, state, good) > probability(model, state, bad) for state in states)
    assert history[-1]["loss/listwise"] < history[0]["loss/listwise"]


def test_a_step_of_more_candidates_than_there_are_is_the_same_however_it_is_laid_out_and_cut(
    tiny_model: Path, states: list[RankedState], tmp_path: Path
) -> None:
    """24 of 16 candidates: some are in the step twice, and a pass that holds both computes them once."""
    losses = []
    for layout, most in (("trees", 24), ("trees", 1), ("flat", 24), ("flat", 1)):
        options = {"layout": layout, "batch_size": 24, "micro_batch_size": most, "epochs": 2}
        trainer, history = fitted(tiny_model, states, tmp_path / f"{layout}-{most}", **options)
        step = trainer.train_dataset[0].pairs
        assert len(set(step)) < len(step) == 24
        assert (history[0]["computed"] < 0.9) == (layout == "trees")
        losses.append([entry["loss"] for entry in history])
    for other in losses[1:]:
        assert other == pytest.approx(losses[0], rel=1e-4)


def test_successful_dialogues_stand_beside_the_candidates_without_a_weight() -> None:
    some = [state(0, candidate(1, 0.0, (7, 8)), candidate(1, 0.0, (9,)))]
    dialogue = Replay("w", 0, (1, 2, 3, 4, 5, 6), (1, 4), (3, 6))
    for final, spans, turn in ((True, ((4, 6),), 1), (False, ((1, 3), (4, 6)), 0)):
        combined = listwise_rows(some, 1.0, 0.1, 0.03, replay=[dialogue], final=final)
        assert combined.rows[2].spans == spans
        assert (combined.replay, combined.labels[2], combined.groups, combined.turns[2]) == ((2,), 0.0, (0, 0, 1), turn)
        assert combined.pairs == ((0, 0), (1, 1))
