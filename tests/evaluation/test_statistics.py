import numpy as np
import pytest

from sweetrl.errors import UserError
from sweetrl.evaluation.statistics import (
    bootstrap_mean,
    mcnemar_exact,
    paired_difference,
    paired_p_value,
    promotion_decision,
    wilson_interval,
)


def test_wilson_known_values():
    # Agresti & Coull's textbook case: 0 of 10 and 5 of 10.
    assert wilson_interval(0, 10).low == pytest.approx(0.0, abs=1e-12)
    assert wilson_interval(0, 10).high == pytest.approx(0.2775, abs=1e-4)
    half = wilson_interval(5, 10)
    assert (half.value, half.low, half.high) == pytest.approx((0.5, 0.2366, 0.7634), abs=1e-4)
    assert wilson_interval(10, 10).high == pytest.approx(1.0)


def test_wilson_without_trials_knows_nothing():
    assert (wilson_interval(0, 0).low, wilson_interval(0, 0).high) == (0.0, 1.0)


def test_wilson_refuses_impossible_counts():
    with pytest.raises(ValueError, match="11 successes"):
        wilson_interval(11, 10)


def test_bootstrap_is_seeded_and_close_to_the_normal_interval():
    values = np.random.default_rng(1).normal(0.3, 0.2, 500)
    first, second = bootstrap_mean(values, seed=3), bootstrap_mean(values, seed=3)
    assert first == second
    assert first != bootstrap_mean(values, seed=4)
    half_width = 1.96 * values.std(ddof=1) / np.sqrt(500)
    assert first.value == pytest.approx(values.mean())
    assert first.low == pytest.approx(values.mean() - half_width, abs=2e-3)
    assert first.high == pytest.approx(values.mean() + half_width, abs=2e-3)


def test_bootstrap_of_equal_values_is_a_point_and_of_one_value_an_error():
    assert bootstrap_mean([0.5] * 8).low == bootstrap_mean([0.5] * 8).high == 0.5
    with pytest.raises(UserError, match="at least 2 tasks"):
        bootstrap_mean([1.0])


def test_bootstrap_covers_the_truth():
    """Skewed rewards in tenths, as the benchmark's: 95 % intervals hold the true mean about 95 times in 100."""
    generator = np.random.default_rng(0)
    values, weights = np.array([0.0, 0.2, 0.5, 1.0]), np.array([0.45, 0.15, 0.15, 0.25])
    truth, covered, trials = float(values @ weights), 0, 300
    for trial in range(trials):
        estimate = bootstrap_mean(generator.choice(values, 60, p=weights), resamples=500, seed=trial)
        covered += estimate.low <= truth <= estimate.high
    assert 0.91 <= covered / trials <= 0.98


def test_pairing_removes_the_difference_between_tasks():
    generator = np.random.default_rng(2)
    hardness = generator.uniform(0, 0.9, 200)
    before, after = hardness, hardness + generator.normal(0.05, 0.02, 200)
    paired = paired_difference(before, after)
    assert paired.low > 0.04
    assert bootstrap_mean(after).low < bootstrap_mean(before).high  # unpaired, the two overlap


def test_permutation_p_is_exact_for_few_tasks():
    # Five tasks that all gain: 2 of the 32 sign patterns are as extreme.
    assert paired_p_value([0.0] * 5, [1.0, 0.5, 0.3, 0.9, 0.2]) == pytest.approx(2 / 32)
    assert paired_p_value([0.0, 0.5], [0.0, 0.5]) == 1.0
    assert paired_p_value([0.0, 0.5], [1.0, 0.5]) == 1.0


def test_permutation_p_is_uniform_without_a_difference():
    generator = np.random.default_rng(5)
    p_values = [
        paired_p_value(generator.normal(size=30), generator.normal(size=30), resamples=400, seed=trial)
        for trial in range(200)
    ]
    assert 0.01 <= np.mean(np.array(p_values) < 0.05) <= 0.10


def test_mcnemar_known_values():
    # 6 against 1 discordant tasks: p = 2 * (C(7,0) + C(7,1)) / 2^7 = 0.125.
    before = [True] * 5 + [False] * 6 + [True] + [False] * 3
    after = [True] * 5 + [True] * 6 + [False] + [False] * 3
    result = mcnemar_exact(before, after)
    assert (result.gained, result.lost) == (6, 1)
    assert result.p_value == pytest.approx(0.125)
    assert mcnemar_exact([True], [True]).p_value == 1.0


def rewards(values):
    return {f"t{index:04d}": float(value) for index, value in enumerate(values)}


def test_promotion_of_a_clear_winner():
    generator = np.random.default_rng(6)
    champion = generator.choice([0.0, 0.5, 1.0], 300)
    challenger = np.minimum(1.0, champion + (generator.random(300) < 0.3) * 0.5)
    decision = promotion_decision(rewards(champion), rewards(challenger), confidence=0.95)
    assert decision.promote and decision.interval[0] > 0 and decision.p_value < 0.001 and decision.n == 300
    assert decision.reason.startswith("promoted: the challenger beats the champion")
    assert decision.as_dict()["interval"] == list(decision.interval)
    assert decision.difference == pytest.approx(decision.challenger_mean - decision.champion_mean)


def test_no_promotion_of_an_equal_or_worse_one():
    generator = np.random.default_rng(7)
    champion, same = generator.random(200), generator.random(200)
    assert not promotion_decision(rewards(champion), rewards(same)).promote
    worse = promotion_decision(rewards(champion), rewards(champion * 0.5))
    assert not worse.promote and "worse" in worse.reason
    equal = promotion_decision(rewards(champion), rewards(champion))
    assert not equal.promote and equal.difference == 0.0 and equal.p_value == 1.0


def test_three_lucky_tasks_promote_nobody():
    """The bootstrap interval of three equal gains is a point above zero; the permutation test is not fooled."""
    decision = promotion_decision(rewards([0, 0, 0]), rewards([1, 1, 1]))
    assert decision.interval == (1.0, 1.0) and decision.p_value == pytest.approx(0.25)
    assert not decision.promote


def test_without_a_champion_the_challenger_is_promoted():
    decision = promotion_decision(None, {"a": 0.5, "b": 1.0})
    assert decision.promote and "no champion" in decision.reason and decision.challenger_mean == 0.75


def test_the_gate_wrongly_promotes_rarely():
    generator = np.random.default_rng(8)
    promoted = sum(
        promotion_decision(
            rewards(generator.choice([0, 1], 50)), rewards(generator.choice([0, 1], 50)), resamples=300, seed=trial
        ).promote
        for trial in range(200)
    )
    assert promoted / 200 <= 0.06  # one side of a two-sided 95 % test


def test_different_tasks_are_refused():
    with pytest.raises(UserError, match=r"different tasks .* for example b"):
        promotion_decision({"a": 1.0, "b": 0.0}, {"a": 1.0})
    with pytest.raises(UserError, match="no results"):
        promotion_decision({"a": 1.0}, {})
