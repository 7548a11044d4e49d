"""Attempts in groups: the information gains of their turns, and the advantage of each, against slow plain sums."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweetrl.backend import Backend
from sweetrl.config.settings import GrpoSettings
from sweetrl.engines.chat import ChatFormat
from sweetrl.errors import UserError
from sweetrl.lm.data import Row, encode
from sweetrl.lm.passes import Layout
from sweetrl.methods import credit
from sweetrl.methods.credit import feedback_gains, lay_out, reference_gains, turn_credits, turn_gains
from sweetrl.types import ANSWER_MARKER, Message, Trajectory
from tests.lm.slowly import TOLERANCE, adapted_model, slow_logprobs

BACKEND = Backend()
SYSTEM = "You help a user."
LAYOUTS = [Layout("blocks"), Layout("blocks", tokens=90), Layout(None, 500)]


@pytest.fixture(scope="module", params=["float64", "float32"])
def policy(request: pytest.FixtureRequest, tiny_model: Path) -> Any:
    """A policy that is not the base any more, in the precision of the test."""
    return adapted_model(tiny_model, request.param, head=False).eval(), TOLERANCE[request.param]


def mean_logprob(model: Any, row: Row) -> float:
    import torch

    with torch.no_grad():
        (values,) = slow_logprobs(model, row)
    return sum(value.item() for value in values) / len(values)


def slow_feedback(model: Any, dialogue: Trajectory, chat: ChatFormat, placeholder: str) -> list[float]:
    """For each turn: the next reply after the user's answer, and after the placeholder in its place."""
    replies = [index for index, message in enumerate(dialogue.messages) if message.role == "assistant"]
    gains = []
    for turn, index in enumerate(replies[:-1]):
        other = list(dialogue.messages)
        other[index + 1] = Message("user", placeholder)
        values = []
        for variant in (dialogue, replace(dialogue, messages=tuple(other))):
            row = encode(variant, chat, SYSTEM)
            start, stop = row.spans[turn + 1]
            values.append(mean_logprob(model, Row(row.token_ids[:stop], ((start, stop),))))
        gains.append(values[0] - values[1])
    return gains


def slow_reference(model: Any, dialogue: Trajectory, chat: ChatFormat, most: int | None = None) -> list[float]:
    """For each state: the reference program in the place of the reply, behind the marker and the fence."""
    row, values = encode(dialogue, chat, SYSTEM), []
    opening = chat.reply(f"{ANSWER_MARKER}\n```python\n")[:-1]
    answer = chat.reply(f"{ANSWER_MARKER}\n```python\n{dialogue.task.ground_truth}")[:-1]
    assert answer[: len(opening)] == opening
    for start, _ in row.spans:
        ids = row.token_ids[:start] + (answer if most is None else answer[: len(opening) + most])
        values.append(math.exp(mean_logprob(model, Row(ids, ((start + len(opening), len(ids)),)))))
    return [values[turn + 1] - values[turn] for turn in range(len(values) - 1)]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_the_users_answers_change(
    policy: Any, trajectories: list[Trajectory], chat: ChatFormat, layout: Layout
) -> None:
    model, tolerance = policy
    some = trajectories[:9]  # with replies that were cut, and imported ones
    rows = [encode(dialogue, chat, SYSTEM) for dialogue in some]
    gains = feedback_gains(model, some, rows, chat, layout)
    for dialogue, values in zip(some, gains, strict=True):
        expected = slow_feedback(model, dialogue, chat, credit.PLACEHOLDER)
        assert values == pytest.approx(expected, abs=20 * tolerance) and all(values)
    assert {len(values) for values in gains} > {1, 4}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_turns_add_to_the_reference(
    policy: Any, trajectories: list[Trajectory], chat: ChatFormat, layout: Layout
) -> None:
    model, tolerance = policy
    some = trajectories[:9]
    rows = [encode(dialogue, chat, SYSTEM) for dialogue in some]
    gains = reference_gains(model, some, rows, BACKEND, chat, layout)
    for dialogue, values in zip(some, gains, strict=True):
        assert values == pytest.approx(slow_reference(model, dialogue, chat), abs=20 * tolerance) and all(values)


def test_a_context_without_room(
    policy: Any, trajectories: list[Trajectory], chat: ChatFormat, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, tolerance = policy
    some = [*trajectories[:3], *trajectories[6:9]]
    rows = [encode(dialogue, chat, SYSTEM) for dialogue in some]
    opening, program = (len(ids) for ids in credit._reference_ids(some[0].task, BACKEND, chat))
    furthest = max(row.spans[-1][0] for row in rows[:3])

    def limit(count: int) -> None:
        monkeypatch.setattr(credit, "context_limit", lambda model: count)

    limit(furthest + opening + 5)  # five tokens of the first task's reference, for all of its attempts
    assert program > 5
    gains = reference_gains(model, some, rows, BACKEND, chat, Layout(None))
    for dialogue, values in zip(some[:3], gains[:3], strict=True):
        assert values == pytest.approx(slow_reference(model, dialogue, chat, 5), abs=20 * tolerance)
    limit(furthest + opening)
    gains = reference_gains(model, some, rows, BACKEND, chat, Layout(None))
    assert all(values == [0.0] * (len(row.spans) - 1) for values, row in zip(gains[:3], rows, strict=False))
    limit(max(len(row.token_ids) for row in rows) + 1)
    monkeypatch.setattr(credit, "PLACEHOLDER", " ".join(["nothing"] * 50))
    assert feedback_gains(model, some[:1], rows[:1], chat, Layout(None))[0][-1] == 0.0


def test_a_single_turn_has_no_information_gain(policy: Any, trajectories: list[Trajectory], chat: ChatFormat) -> None:
    model, _ = policy
    dialogue = trajectories[0]
    brief = replace(dialogue, messages=(dialogue.messages[0], dialogue.messages[-1]), turns=())
    rows = [encode(brief, chat, SYSTEM)]
    assert feedback_gains(model, [brief], rows, chat, Layout(None)) == [[]]
    assert reference_gains(model, [brief], rows, BACKEND, chat, Layout(None)) == [[]]


def test_no_reference_is_one_sentence(policy: Any, trajectories: list[Trajectory], chat: ChatFormat) -> None:
    dialogue = replace(trajectories[0], task=replace(trajectories[0].task, ground_truth=""))
    with pytest.raises(UserError, match=r"task train-00000: grpo\.credit `igpo` needs a reference"):
        reference_gains(policy[0], [dialogue], [encode(dialogue, chat, SYSTEM)], BACKEND, chat, Layout(None))


@pytest.mark.parametrize("kind", ["infopo", "igpo"])
def test_each_credit_has_its_own_gains(
    policy: Any, trajectories: list[Trajectory], chat: ChatFormat, kind: Any
) -> None:
    model, tolerance = policy
    dialogue = trajectories[0]
    rows = [encode(dialogue, chat, SYSTEM)]
    (gains,) = turn_gains(model, [dialogue], rows, BACKEND, chat, GrpoSettings(credit=kind, layout="flat"))
    slowly = slow_feedback(model, dialogue, chat, credit.PLACEHOLDER), slow_reference(model, dialogue, chat)
    assert gains == pytest.approx(slowly[kind == "igpo"], abs=20 * tolerance)


# Which turn gets what


def moments(values: Sequence[float]) -> tuple[float, float]:
    mean = sum(values) / len(values)
    return mean, math.sqrt(sum((value - mean) ** 2 for value in values) / len(values))


def standard(value: float, values: Sequence[float]) -> float:
    mean, deviation = moments(values)
    return (value - mean) / deviation if deviation > 1e-6 else 0.0


def slow_credits(
    rewards: Sequence[float], gains: Sequence[Sequence[float]], groups: Sequence[int], settings: GrpoSettings
) -> list[list[float]]:
    advantages = []
    for reward, own, group in zip(rewards, gains, groups, strict=True):
        members = [number for number, other in enumerate(groups) if other == group]
        outcomes = [rewards[number] for number in members]
        informed = [gain for number in members for gain in gains[number]]
        turns = []
        if settings.credit == "infopo":
            gate = 1 / (1 + math.exp(moments(outcomes)[1] / settings.intrinsic_gate_temperature))
            for gain in (*own, None):
                info = 0.0 if gain is None else standard(gain, informed)
                turns.append(standard(reward, outcomes) + settings.intrinsic_weight * gate * info)
        else:
            each = [standard(value, [*informed, *outcomes]) for value in (*own, reward)]
            for turn in range(len(each)):
                turns.append(sum(value * settings.discount**later for later, value in enumerate(each[turn:])))
        advantages.append(turns)
    return advantages


attempts = st.lists(
    st.tuples(st.sampled_from([0.0, 0.25, 1.0]), st.lists(st.floats(-2, 2).map(lambda x: round(x, 3)), max_size=4)),
    min_size=1,
    max_size=8,
)


@given(
    attempts,
    st.sampled_from(["infopo", "igpo"]),
    st.sampled_from([1.0, 0.8]),
    st.sampled_from([0.05, 0.5]),
)
def test_credits(made: list[tuple[float, list[float]]], kind: Any, discount: float, temperature: float) -> None:
    how = {"intrinsic_weight": 0.7, "intrinsic_gate_temperature": temperature}
    settings = GrpoSettings(credit=kind, discount=discount, **how)
    rewards, gains = [reward for reward, _ in made], [gain for _, gain in made]
    groups = [number // 3 for number in range(len(made))]
    advantages = turn_credits(rewards, [len(gain) + 1 for gain in gains], groups, settings, gains)
    expected = slow_credits(rewards, gains, groups, settings)
    assert [len(turns) for turns in advantages] == [len(turns) for turns in expected]
    for turns, slow in zip(advantages, expected, strict=True):
        assert turns == pytest.approx(slow, abs=1e-6)


def test_attempts_are_laid_out_with_the_information_gains_of_turns(
    make_trajectory: Callable[..., Trajectory], chat: ChatFormat
) -> None:
    given_ = [make_trajectory(0, n, 0.5) for n in range(3)]
    lost = make_trajectory(0, 3, None, outcome="lost")
    calls: list[tuple[list[Trajectory], list[Row]]] = []

    def informs(dialogues: Sequence[Trajectory], rows: Sequence[Row]) -> list[list[float]]:
        calls.append((list(dialogues), list(rows)))
        return [[float(number + turn) for turn in range(len(row.spans) - 1)] for number, row in enumerate(rows)]

    laid_out = lay_out([*given_, lost], chat, "Help.", GrpoSettings(credit="infopo"), informs)
    assert calls == [(given_, list(laid_out.rows))], "lost attempts have no gains"
    gains = informs(given_, laid_out.rows)
    expected = slow_credits([0.5] * 3, gains, [0] * 3, GrpoSettings(credit="infopo"))
    for values, slow in zip(laid_out.advantages, expected, strict=True):
        assert values == pytest.approx(slow)
    flat = [gain for some in gains for gain in some]
    assert laid_out.metrics["info_gain"] == pytest.approx(sum(flat) / len(flat))
    assert laid_out.metrics["groups_with_signal"] == 1.0, "equal rewards give a signal, too"


def test_attempts_are_compared_within_their_task_only(
    make_trajectory: Callable[..., Trajectory], chat: ChatFormat
) -> None:
    rewards = [[1.0, 0.0, 0.5], [0.2, 0.2, 0.2]]
    given = [make_trajectory(task, n, reward) for task, row in enumerate(rewards) for n, reward in enumerate(row)]
    lost = make_trajectory(0, 3, None, outcome="lost")
    laid_out = lay_out([*given, lost], chat, "Help.", GrpoSettings())
    assert laid_out.rows == tuple(encode(dialogue, chat, "Help.") for dialogue in given)
    assert laid_out.groups == (0, 0, 0, 1, 1, 1)
    deviation = (((0.5**2) * 2) / 3) ** 0.5
    for row, values, expected in zip(
        laid_out.rows, laid_out.advantages, [0.5 / deviation, -0.5 / deviation, 0.0, 0.0, 0.0, 0.0], strict=True
    ):
        assert values == pytest.approx((expected,) * len(row.spans))
    assert laid_out.metrics["return"] == pytest.approx(2.1 / 6)
    assert laid_out.metrics["success"] == pytest.approx(1 / 6)
    assert laid_out.metrics["groups_with_signal"] == 0.5
    assert laid_out.metrics["turns"] == sum(len(row.spans) for row in laid_out.rows) / 6


def test_a_turn_is_compared_with_turns_of_its_number() -> None:
    settings = GrpoSettings(credit="turn", discount=0.5)
    by_turn = turn_credits([1.0, 0.4], [1, 2], [0, 0], settings)
    # Turn 0: returns 1 and 0.2; turn 1: only the second attempt has one.
    assert by_turn[0] == pytest.approx((1.0,))
    assert by_turn[1] == pytest.approx((-1.0, 0.0))
    by_attempt = turn_credits([1.0, 0.4], [1, 2], [0, 0], GrpoSettings())
    assert by_attempt[0] == pytest.approx((1.0,)) and by_attempt[1] == pytest.approx((-1.0, -1.0))


def test_nothing_scored_is_one_sentence(make_trajectory: Callable[..., Trajectory], chat: ChatFormat) -> None:
    with pytest.raises(UserError, match="nothing to learn from"):
        lay_out([make_trajectory(0, 0, None, outcome="lost")], chat, "Help.", GrpoSettings())
