import itertools
import math

import numpy as np
import pytest

from sweetrl.errors import UserError
from sweetrl.evaluation.statistics import (
    bootstrap_mean,
    holm,
    mcnemar_exact,
    paired_difference,
    paired_p_value,
    sign_flip_bound,
    t_interval,
    wilson_interval,
)


def test_wilson_known_values():
    # Agresti & Coull's textbook case: 0 of 10 and 5 of 10.
    assert wilson_interval(0, 10).low == pytest.approx(0.0, abs=1e-12)
    assert wilson_interval(0, 10).high == pytest.approx(0.2775, abs=1e-4)
    half = wilson_interval(5, 10)
    assert (half.value, half.low, half.high) == pytest.approx((0.5, 0.2366, 0.7634), abs=1e-4)
    assert wilson_interval(10, 10).high == pytest.approx(1.0)


def test_wilson_without_trials_knows_nothing_and_impossible_counts_are_refused():
    assert (wilson_interval(0, 0).low, wilson_interval(0, 0).high) == (0.0, 1.0)
    with pytest.raises(ValueError, match="11"):
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


def test_values_that_differ_by_rounding_alone_are_equal():
    """Each task has one question less, at a price of 0.03: BCa would make an interval of NaN of the differences."""
    rewards = np.random.default_rng(1).integers(0, 11, 80) / 10
    before, after = rewards - 0.03 * 6, rewards - 0.03 * 5
    assert np.ptp(after - before) > 0.0
    gain = paired_difference(before, after)
    assert gain.low == gain.high == gain.value == pytest.approx(0.03)


def test_rewards_that_differ_by_rounding_alone_show_no_difference():
    """Of a reward less the price of its questions: 0.8 - 0.1 and 0.9 - 0.2 are two numbers."""
    before, after = [0.9 - 0.2] * 20, [0.8 - 0.1] * 20
    assert before != after
    gain = paired_difference(before, after)
    assert gain.low == gain.high == gain.value == 0.0
    assert paired_p_value(before, after) == sign_flip_bound(before, after) == 1.0


def test_permutation_p_is_exact_for_few_tasks():
    # Five tasks that all gain: 2 of the 32 sign patterns are as extreme.
    assert paired_p_value([0.0] * 5, [1.0, 0.5, 0.3, 0.9, 0.2]) == pytest.approx(2 / 32)
    assert paired_p_value([0.0, 0.5], [0.0, 0.5]) == 1.0
    assert paired_p_value([0.0, 0.5], [1.0, 0.5]) == 1.0


def test_the_bound_of_the_permutation_p_is_never_below_it():
    rng = np.random.default_rng(5)
    for trial in range(60):
        count = int(rng.integers(2, 11))
        gaps = rng.normal(rng.normal(), 1.0, count) if trial % 2 else np.ones(count)
        exact = paired_p_value(np.zeros(count), gaps, 2**count)
        assert sign_flip_bound(np.zeros(count), gaps) >= exact
    assert sign_flip_bound([1.0, 0.0], [1.0, 0.0]) == 1.0
    assert sign_flip_bound([0.0] * 200, [1.0] * 200) == pytest.approx(2 * math.exp(-100))
    assert 0.0 < sign_flip_bound([0.0] * 5000, [1.0] * 5000) < 1e-300


def test_mcnemar_known_values():
    # 6 against 1 discordant tasks: p = 2 * (C(7,0) + C(7,1)) / 2^7 = 0.125.
    before = [True] * 5 + [False] * 6 + [True] + [False] * 3
    after = [True] * 5 + [True] * 6 + [False] + [False] * 3
    assert mcnemar_exact(before, after) == (6, 1, pytest.approx(0.125))
    assert mcnemar_exact([True], [True]) == (0, 0, 1.0)


def test_the_t_interval_is_the_textbooks():
    # Student's sleep data, the ten differences: 1.58, interval 0.70 to 2.46.
    gaps = [1.2, 2.4, 1.3, 1.3, 0.0, 1.0, 1.8, 0.8, 4.6, 1.4]
    assert t_interval(gaps) == pytest.approx((0.70, 2.46), abs=5e-3)
    assert t_interval([0.4]) is None
    assert t_interval([0.4, 0.4]) == (0.4, 0.4)


def test_holm_is_the_closed_test_of_all_intersections():
    """Slowly: a hypothesis falls if every set of hypotheses that holds it falls to Bonferroni."""
    generator = np.random.default_rng(4)
    for count in (1, 2, 4, 6):
        ps = (generator.uniform(0, 1, count) ** 3).round(4).tolist()
        slow = [
            max(
                min(1.0, size * min(ps[member] for member in subset))
                for size in range(1, count + 1)
                for subset in itertools.combinations(range(count), size)
                if place in subset
            )
            for place in range(count)
        ]
        assert holm(ps) == pytest.approx(slow)
    assert holm([]) == []
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
