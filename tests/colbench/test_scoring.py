"""Rewards that are plain functions: numbers, parts, bounds, another scorer's verdict beneath, prices."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction

import numpy
import pytest

from sweetrl.colbench.domain import Domain
from sweetrl.colbench.scoring import PRICE, PricedScorer, RewardScorer, price, price_fault, unpriced
from sweetrl.errors import UserError
from sweetrl.rollout.scored import with_score
from sweetrl.types import Message, Score, Task, TestResult, Trajectory

DIALOGUES = [
    Trajectory(Task(f"t-{number}", "Say it.", "word"), 0, (Message("user", "Say it."),), answer="a" * number)
    for number in range(4)
]
TESTS = (TestResult("test1", True, "passed"), TestResult("test2", False, "wrong"))


def length(task: Task, dialogue: Trajectory) -> float:
    return len(dialogue.answer or "") / 4


class Own:
    """A domain's scorer: half of the tests of each answer passed, all of them where the answer is long."""

    def __init__(self, solved: bool | None = None) -> None:
        self.solved = solved

    def score(self, dialogues: Sequence[Trajectory]) -> list[Score]:
        return [
            Score(
                1.0 if len(dialogue.answer or "") > 2 else 0.5,
                TESTS,
                {"tests": 0.5},
                self.solved,
                semantics="fixed",
                isolation="walls",
                notes={"topic": dialogue.task.id},
            )
            for dialogue in dialogues
        ]


def test_a_number_is_the_reward() -> None:
    scores = RewardScorer(length, "own").score(DIALOGUES)
    assert scores == [Score(number / 4, semantics="own") for number in range(4)]
    for number in (1, Fraction(1), numpy.float32(1.0), numpy.int64(1)):
        (score,) = RewardScorer(lambda task, dialogue, number=number: number, "own").score(DIALOGUES[:1])
        assert score == Score(1.0, semantics="own") and type(score.reward) is float
    assert RewardScorer(length, "own").score([]) == []


def test_named_parts_are_kept_and_their_sum_is_the_reward() -> None:
    def brief(task: Task, dialogue: Trajectory) -> Mapping[str, float]:
        return {"right": 0.5, "brief": -0.25 * (len(dialogue.answer or "") > 2), "polite": True}

    scores = RewardScorer(brief, "brief", (-1.0, 2.0)).score(DIALOGUES[2:])
    assert [score.reward for score in scores] == [1.5, 1.25]
    assert scores[1].parts == {"right": 0.5, "brief": -0.25, "polite": 1.0}
    scored = with_score(DIALOGUES[3], scores[1])
    assert (scored.reward, scored.parts, scored.solved) == (1.25, scores[1].parts, None)


@pytest.mark.parametrize("value", [1.01, -0.5])
def test_a_reward_out_of_its_range_is_refused(value: float) -> None:
    with pytest.raises(UserError) as caught:
        RewardScorer(lambda task, dialogue: {"a": value - 1, "b": 1}, "own").score(DIALOGUES)
    assert str(caught.value) == (
        f"task t-0: the reward own returned {value:g}, outside 0 to 1; change the function, or the domain's "
        "`reward_range`."
    )
    wide = RewardScorer(lambda task, dialogue: value, "own", (-0.5, 1.01))
    assert wide.score(DIALOGUES[:1])[0].reward == value


def test_rounding_takes_nobodys_success_away() -> None:
    parts = {"right": 0.7, "brief": 0.2, "polite": 0.1}
    assert 0.7 + 0.2 + 0.1 < 1.0
    (score,) = RewardScorer(lambda task, dialogue: parts, "own").score(DIALOGUES[:1])
    assert score.reward == 1.0 and with_score(DIALOGUES[0], score).success
    (above, below) = RewardScorer(lambda task, dialogue: 1.0 + 1e-12 if dialogue.answer else -1e-12, "own").score(
        [DIALOGUES[1], DIALOGUES[0]]
    )
    assert (above.reward, below.reward) == (1.0, 0.0)


def test_a_reward_that_fails_says_at_which_task() -> None:
    def broken(task: Task, dialogue: Trajectory) -> float:
        return 1.0 / (len(dialogue.answer or "") - 2)

    with pytest.raises(ZeroDivisionError) as caught:
        RewardScorer(broken, "own", (-1.0, 1.0)).score(DIALOGUES[1:])
    assert caught.value.__notes__ == ["The reward own failed at task t-2."]
    with pytest.raises(UserError) as refused:  # a UserError gets no note
        RewardScorer(Domain().reward, "own").score(DIALOGUES)
    assert not hasattr(refused.value, "__notes__")


# Over a domain's own scorer


def test_success_is_the_other_scorers_whatever_the_reward() -> None:
    for solved in (True, False):

        def agrees(task: Task, dialogue: Trajectory, solved: bool = solved) -> float:
            assert dialogue.success is solved and dialogue.parts == {"tests": 0.5}
            return len(dialogue.answer or "") / 3

        scores = RewardScorer(agrees, "own", (-1, 1), Own(solved)).score(DIALOGUES)
        assert [score.solved for score in scores] == [solved] * 4 and type(scores[3].reward) is float
    most = RewardScorer(lambda task, dialogue: 1.0, "own", inner=Own()).score(DIALOGUES)
    assert [dialogue.success for dialogue in map(with_score, DIALOGUES, most)] == [False] * 3 + [True]
    assert most[0].parts == {}, "the other scorer's parts are not the reward's"


# The price of questions


def asking(questions: int, ended: bool = True) -> Trajectory:
    """A dialogue with an answer of 3 letters, or one that the user has spoken in last."""
    spoken = [Message("assistant", "Which?"), Message("user", "This.")] * questions
    messages = (Message("user", "Say it."), *spoken, *([Message("assistant", "aaa")] if ended else []))
    return Trajectory(DIALOGUES[3].task, 0, messages, answer="aaa" if ended else None)


def test_every_question_has_its_price_and_success_has_none() -> None:
    dialogues = [asking(questions) for questions in (0, 1, 3)]
    assert [price(dialogue, 0.25) for dialogue in dialogues] == [0.0, 0.25, 0.75]
    assert price(asking(2, ended=False), 0.25) == 0.5 and price(DIALOGUES[3], 0.25) == 0.0
    scores = PricedScorer(Own(), 0.25).score(dialogues)
    assert [score.reward for score in scores] == [1.0, 0.75, 0.25]
    assert [dict(score.parts) for score in scores] == [{"tests": 0.5, PRICE: -cost} for cost in (0.0, 0.25, 0.75)]
    assert math.copysign(1.0, scores[0].parts[PRICE]) == 1.0
    assert [dialogue.success for dialogue in map(with_score, dialogues, scores)] == [True] * 3
    assert (scores[2].tests, scores[2].semantics, scores[2].isolation) == (TESTS, "fixed", "walls")
    assert scores[2].notes == {"topic": "t-3"}
    assert PricedScorer(Own(), 0.25).score([]) == []


def test_the_price_can_be_taken_back_and_checked() -> None:
    dialogue = asking(3)
    (score,) = PricedScorer(RewardScorer(lambda task, dialogue: 1, "own"), 0.1).score([dialogue])
    paid = with_score(dialogue, score)
    assert paid.reward == 1.0 - 0.1 * 3 and unpriced(paid).reward == 1.0
    assert price_fault(paid, 0.1) is None
    assert price_fault(paid, 0.0) == "its questions have cost 0.3, with this reward.turn_cost it is 0"
    assert price_fault(replace(paid, reward=0.9), 0.1) == "the reward is 0.9, but its parts add up to 0.7"
    free = replace(dialogue, reward=1.0)
    assert unpriced(free) is free and unpriced(dialogue) is dialogue
    assert (price_fault(free, 0.0), price_fault(dialogue, 0.1)) == (None, None), "nothing to pay, not scored"
    assert price_fault(free, 0.1) == "its questions have cost 0, with this reward.turn_cost it is 0.3"
