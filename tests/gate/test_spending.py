"""Trying again and again on the same tasks: without the guard a challenger that is no better wins in the end."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import norm

from sweetrl.config.settings import GateSettings
from sweetrl.gate.decision import Decision, Measured, compare_means, decide, pair_versions
from sweetrl.gate.drift import look
from sweetrl.gate.power import MOST_RESAMPLES, level, share
from tests.gate.test_decision import LEARNT

ALPHA, TRIES, TASKS = 0.05, 20, 80


def test_the_shares_add_up_to_one() -> None:
    assert share(1) == pytest.approx(6 / math.pi**2)
    assert sum(share(number) for number in range(1, 100_000)) == pytest.approx(1.0, abs=1e-4)
    assert sum(share(number) for number in range(1, 1000)) < 1.0


def test_a_limit_that_no_number_of_resamples_can_show_can_be_met(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, from comparison 124 on no challenger was promoted, even with every task won, and no drift was found."""
    assert level(GateSettings(), 0.95, 124) < 2 / (MOST_RESAMPLES + 1) < level(GateSettings(), 0.95, 123)
    monkeypatch.setattr("sweetrl.gate.power.MOST_RESAMPLES", 2000)
    rules, names = GateSettings(slices=[]), [f"t{number:02d}" for number in range(40)]
    loser, winner = (Measured(dict.fromkeys(names, value), evaluation=LEARNT) for value in (0.0, 1.0))
    few = Measured({name: float(place < 8) for place, name in enumerate(names)}, evaluation=LEARNT)

    def decided(champion: Measured, challenger: Measured) -> Decision:
        return decide(pair_versions(champion, challenger, rules), rules, resamples=1000, number=10)

    decision = decided(loser, winner)
    assert decision.promote and decision.p_value < decision.alpha < 2 / 2001
    assert not decided(winner, loser).promote
    assert not decided(loser, few).promote, "8 of 40 tasks: p is 0.008"
    assert look(winner.rewards, loser.rewards, rules, 0.95, 1000, 0, 10).drifted


def test_the_interval_is_of_the_level_that_it_states() -> None:
    """With as many resamples as in the first comparison its ends would be those of another level."""
    before, after = [0.0] * 45 + [1.0] * 30 + [0.5] * 225, [1.0] * 45 + [0.0] * 30 + [0.5] * 225
    alpha = level(GateSettings(), 0.95, 20)
    difference, _ = compare_means(before, after, alpha, 1000, 0)
    reach = norm.isf(alpha / 2) * np.std(np.subtract(after, before)) / math.sqrt(300)
    assert difference.high - difference.low == pytest.approx(2 * reach, rel=0.05)


@pytest.fixture(scope="module")
def promoted() -> dict[str, float]:
    """How often one of 20 challengers that are as good as the champion is promoted, with the guard and without.

    Each task has a chance of its own. Who lies well below what the limit asks of the normal approximation cannot be
    promoted, nor can who is not without the guard: they are not decided.
    """
    rng, promotions = np.random.default_rng(4), {"none": 0, "inverse-square": 0}
    names = [f"t{number:03d}" for number in range(TASKS)]
    trials = 120
    for _ in range(trials):
        chance = rng.uniform(0.2, 0.9, TASKS)
        champion = (rng.random(TASKS) < chance).astype(float)
        wins = dict.fromkeys(promotions, False)
        for number in range(1, TRIES + 1):
            challenger = (rng.random(TASKS) < chance).astype(float)
            gaps = challenger - champion
            errors = gaps.sum() / math.sqrt((gaps**2).sum())
            sides = [
                Measured(dict(zip(names, side.tolist(), strict=True)), evaluation=LEARNT)
                for side in (champion, challenger)
            ]
            for spending in promotions:  # first without the guard
                rules = GateSettings(spending=spending, slices=[])  # type: ignore[arg-type]
                if errors < 0.92 * norm.isf(level(rules, 1 - ALPHA, number) / 2):
                    break
                decision = decide(pair_versions(*sides, rules), rules, 1 - ALPHA, resamples=500, number=number)
                if not decision.promote:
                    break
                wins[spending] = True
        for spending, won in wins.items():
            promotions[spending] += won
    return {spending: count / trials for spending, count in promotions.items()}


def test_without_the_guard_luck_wins_in_the_end(promoted: dict[str, float]) -> None:
    assert promoted["none"] > 3 * ALPHA


def test_with_the_guard_it_wins_no_more_often_than_stated(promoted: dict[str, float]) -> None:
    assert promoted["inverse-square"] <= ALPHA
