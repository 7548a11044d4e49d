"""The decision: which challenger is promoted, the reasons to refuse it, and the verdict."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from sweetrl.config.settings import GateSettings
from sweetrl.errors import UserError
from sweetrl.gate.decision import Decision, Measured, decide, first_decision, pair_versions, render, times
from sweetrl.gate.power import level

PLAIN = GateSettings(slices=[], spending="none")
Ends = tuple[float, float, float]


def against_base(**measures: Ends) -> dict[str, Any]:
    """An evaluation.json with the low end, high end and p of each measure's difference."""
    differences = {
        name: {"value": (low + high) / 2, "low": low, "high": high, "p_value": p, "test": "a test"}
        for name, (low, high, p) in measures.items()
    }
    return {"tasks": 300, "confidence": 0.95, "difference": differences}


SAME, BETTER, WORSE = (-0.1, 0.1, 0.9), (0.1, 0.2, 0.001), (-0.2, -0.1, 0.001)
LEARNT = against_base(success=SAME, reward=BETTER)
# 300 tasks, 34 of them won and 16 lost: p = 0.015
BEFORE = [0.0] * 34 + [1.0] * 16 + [0.5] * 250
AFTER = [1.0] * 34 + [0.0] * 16 + [0.5] * 250


def measured(values: Iterable[float], **more: Iterable[float]) -> Measured:
    return Measured(by_task(values), **{name: by_task(numbers) for name, numbers in more.items()}, evaluation=LEARNT)


def by_task(values: Iterable[float]) -> dict[str, float]:
    return {f"t{index:04d}": float(value) for index, value in enumerate(values)}


def decision_of(
    champion: Iterable[float], challenger: Iterable[float], rules: GateSettings = PLAIN, **options: int
) -> Decision:
    return decide(pair_versions(measured(champion), measured(challenger), rules), rules, **options)


def test_promotion_of_a_clear_winner() -> None:
    generator = np.random.default_rng(6)
    champion = generator.choice([0.0, 0.5, 1.0], 300)
    challenger = np.minimum(1.0, champion + (generator.random(300) < 0.3) * 0.5)
    decision = decision_of(champion, challenger)
    assert decision.promote and decision.interval[0] > 0 and decision.p_value < 0.001 and decision.n == 300
    assert decision.reason.startswith("promoted: the challenger beats the champion (mean reward +0.")
    assert "two equally good agents differ this much about once in 5,000 comparisons" in decision.reason
    assert decision.champion_mean is not None and decision.challenger_mean is not None
    assert decision.difference == pytest.approx(decision.challenger_mean - decision.champion_mean)


def test_p_values_in_words() -> None:
    assert times(0.6) == "more often than not" and times(0.0002) == "about once in 5,000 comparisons"
    assert times(1e-300) == "less than once in 1,000,000,000 comparisons"


def test_no_promotion_of_an_equal_or_worse_one() -> None:
    generator = np.random.default_rng(7)
    champion, same = generator.random(200), generator.random(200)
    assert not decision_of(champion, same).promote
    worse = decision_of(champion, champion * 0.5)
    assert not worse.promote and "worse" in worse.reason
    equal = decision_of(champion, champion)
    assert not equal.promote and equal.difference == 0.0 and equal.p_value == 1.0
    assert "The two versions reach the same on each of the 200 tasks." in equal.notes


def test_three_lucky_tasks_promote_nobody() -> None:
    """The bootstrap interval of three equal gains is a point above zero; the permutation test is not fooled."""
    decision = decision_of([0, 0, 0], [1, 1, 1])
    assert decision.interval == (1.0, 1.0) and decision.p_value == pytest.approx(0.25)
    assert not decision.promote


@pytest.mark.parametrize(
    ("success", "reward", "tone", "says"),
    [
        (SAME, BETTER, "better", ""),
        (SAME, SAME, "open", "not shown to be better than its base (mean reward changed by 0.0 points"),
        (BETTER, SAME, "open", "not shown to be better than its base (mean reward changed by 0.0 points"),
        (SAME, WORSE, "worse", "worse than its base: mean reward changed by −15.0 points"),
        (WORSE, BETTER, "worse", "worse than its base: success rate changed by −15.0 points"),
    ],
)
def test_the_base_is_the_first_opponent(success: Ends, reward: Ends, tone: str, says: str) -> None:
    """Where there is no champion, and where there is one that the challenger beats."""
    evaluation = against_base(success=success, reward=reward)
    first = first_decision(Measured({"a": 0.5, "b": 1.0}, evaluation=evaluation))
    assert "here is no champion yet" in first.verdict and first.challenger_mean == 0.75
    beaten = decide(pair_versions(measured(BEFORE), replace(measured(AFTER), evaluation=evaluation), PLAIN), PLAIN)
    assert "he challenger beats the champion (mean reward +0.060" in beaten.verdict
    for decision in (first, beaten):
        assert (decision.promote, decision.tone, bool(decision.harm)) == (not says, tone, tone == "worse")
        assert decision.reason.startswith(f"not promoted: the challenger is {says}" if says else "promoted: ")
        assert ("--accept" in decision.reason) is bool(says)
    assert f'class="verdict {tone}"' in render(beaten, PLAIN, "3", "2")


def test_a_loss_to_the_champion_reports_the_base_all_the_same() -> None:
    harmful = Measured(by_task(BEFORE), evaluation=against_base(reward=WORSE))
    lost = decide(pair_versions(measured(AFTER), harmful, PLAIN), PLAIN)
    assert lost.reason.startswith("not promoted: the challenger is worse than its base: mean reward")
    assert lost.notes[0].startswith("The challenger is worse than the champion (mean reward -0.060")
    assert decision_of(AFTER, BEFORE).notes[0].startswith("The challenger is better than its base (mean reward changed")
    assert decision_of(AFTER, BEFORE).tone == "worse" and decision_of(AFTER, AFTER).tone == "open"


def test_a_lost_dialogues_task_is_left_out_and_other_tasks_are_refused() -> None:
    paired = pair_versions(Measured({"a": 1.0, "b": 0.0, "c": 0.5}), Measured({"a": 0.0, "b": 1.0}), PLAIN)
    assert (paired.before, paired.after, paired.discordance) == ([1.0, 0.0], [0.0, 1.0], 1.0)
    with pytest.raises(UserError, match="no test task that champion and challenger both finished"):
        pair_versions(Measured({"a": 1.0}), Measured({"x": 1.0}), PLAIN)


def test_what_wins_the_first_time_does_not_win_the_third_time() -> None:
    rules = GateSettings(slices=[])
    first, third = (decision_of(BEFORE, AFTER, rules, number=number) for number in (1, 3))
    assert first.promote and first.alpha == pytest.approx(level(rules, 0.95, 1))
    assert not third.promote and third.alpha < first.p_value < first.alpha
    assert "This is comparison 3 with this champion on these test tasks: its limit is 0.0034" in third.verdict
    assert third.number == 3 and third.confidence == pytest.approx(1 - third.alpha)
    assert decision_of(BEFORE, AFTER, PLAIN, number=3).promote


def test_a_version_not_shown_to_be_better_reports_what_could_have_been_seen() -> None:
    decision = decision_of([0.0, 1.0] * 50, [1.0, 0.0] * 10 + [0.0, 1.0] * 40)
    assert decision.detectable == pytest.approx(0.124, abs=0.002)
    assert "On 100 tasks a true difference of 0.124 or more is seen with a chance of 80 %" in decision.verdict
    assert "0.05 (gate.smallest_difference) needs about 626 tasks" in decision.verdict
    assert "On 2 tasks no difference at all can be seen" in decision_of([0.0, 1.0], [1.0, 0.0]).verdict


def sliced(rules: GateSettings) -> Decision:
    """A challenger that wins 60 of 300 tasks and loses 12 of the 40 of one topic; another topic has 5 tasks."""
    before = [0.0] * 60 + [1.0] * 12 + [0.5] * 233
    after = [1.0] * 60 + [0.0] * 12 + [0.5] * 233
    topics = ["plain"] * 60 + ["boat"] * 12 + ["boat"] * 28 + ["rare"] * 5 + ["plain"] * 200
    groups = {"topic": {f"t{index:04d}": topic for index, topic in enumerate(topics)}}
    old, new = measured(before), measured(after)
    return decide(pair_versions(old, Measured(new.rewards, groups=groups, evaluation=LEARNT), rules), rules)


def test_a_loss_in_a_slice_is_reported_and_refused_where_asked() -> None:
    kept = sliced(GateSettings(slices=["topic"]))
    assert kept.promote
    assert "In 1 of 3 slices it loses more than 0.1: topic boat (-0.300 on 40 tasks" in kept.verdict
    assert "In 1 of 3 slices there are too few tasks to rule out a loss of more than 0.1: topic rare" in kept.verdict
    assert "In 1 of 3 slices the interval rules out a loss of more than 0.1." in kept.verdict
    refused = sliced(GateSettings(slices=["topic"], slice_rule="refuse-loss"))
    assert not refused.promote and refused.reason.startswith("not promoted: the challenger beats the champion on the")
    assert refused.reason.endswith("but it loses more than 0.1 in topic boat (gate.slice_rule: refuse-loss).")
    doubted = sliced(GateSettings(slices=["topic"], slice_rule="refuse-doubt"))
    assert "cannot be ruled out in topic rare (gate.slice_rule: refuse-doubt)" in doubted.reason


def test_costs_are_reported_and_refused_where_asked() -> None:
    turns = {"turns": [3.0, 5.0] * 150}, {"turns": [4.0, 5.0] * 150}
    sides = measured(BEFORE, **turns[0]), measured(AFTER, **turns[1])

    def decided(**changes: float) -> Decision:
        rules = PLAIN.model_copy(update=changes)
        return decide(pair_versions(*sides, rules), rules)

    decision = decided()
    assert decision.promote
    assert "A dialogue takes 4.50 agent turns, +0.50 against the champion." in decision.verdict
    assert decided(extra_turns=0.6).promote
    refused = decided(extra_turns=0.52)
    assert not refused.promote, "0.5 more, but it may be 0.56"
    assert "it is not shown to take at most 0.52 more agent turns a dialogue (gate.extra_turns)" in refused.reason
    with pytest.raises(UserError, match=r"tokens are not known"):
        decided(extra_tokens=5.0)


def test_the_page_shows_every_slice_and_number() -> None:
    decision = sliced(GateSettings(slices=["topic"]))
    shown = render(decision, GateSettings(), "3", "2")
    assert "Version 3 against the champion, version 2" in shown and decision.reason in shown
    assert all(part.name in shown for part in decision.slices) and "cannot be told" in shown
    assert "<script" not in shown


def test_the_page_shows_text_as_text() -> None:
    groups: Mapping[str, Mapping[str, str]] = {"topic": {f"t{i:04d}": "<b>" if i % 2 else "c" for i in range(300)}}
    rules = GateSettings(slices=["topic"])
    decision = decide(pair_versions(measured(BEFORE), Measured(by_task(AFTER), groups=groups), rules), rules)
    assert "<b>" not in render(decision, rules, "3", "2")
