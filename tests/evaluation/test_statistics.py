import itertools
import math

import numpy as np
import pytest

from sweetrl.errors import UserError
from sweetrl.evaluation.statistics import (
    bootstrap_mean,
    hierarchical_difference,
    hierarchical_mean,
    hierarchical_ratio,
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
    result = mcnemar_exact(before, after)
    assert (result.gained, result.lost) == (6, 1)
    assert result.p_value == pytest.approx(0.125)
    assert mcnemar_exact([True], [True]).p_value == 1.0


def every_resample(groups):
    """All that a hierarchical resample of groups of one size can be, each as often as it is likely: one by one."""
    found = []
    for picks in itertools.product(groups, repeat=len(groups)):
        ways = [itertools.product(one, repeat=len(one)) for one in picks]
        found += [np.mean([np.mean(rows, axis=0) for rows in chosen], axis=0) for chosen in itertools.product(*ways)]
    return np.array(found)


def test_the_hierarchical_bootstrap_is_what_counting_all_resamples_gives():
    groups = [[0.0, 1.0], [1.0, 0.25], [-0.5, 0.5]]
    counted = every_resample(groups)
    found = hierarchical_mean(groups, 0.9, 40_000, seed=1)
    assert (found.value, found.n, found.groups) == (pytest.approx(np.mean(groups)), 6, 3)
    assert (found.low, found.high) == pytest.approx(np.quantile(counted, [0.05, 0.95]), abs=0.02)
    below, above = np.mean(counted <= 0), np.mean(counted >= 0)
    assert found.p_value == pytest.approx(2 * min(below, above), abs=0.01)


def test_a_ratio_is_resampled_by_pairs():
    groups = [[(1.0, 4.0), (0.0, 2.0)], [(1.0, 1.0), (1.0, 3.0)]]
    counted = every_resample(groups)
    found = hierarchical_ratio(groups, 0.8, 40_000)
    assert found.value == pytest.approx((1 + 2) / (6 + 4))
    assert (found.low, found.high) == pytest.approx(np.quantile(counted[:, 0] / counted[:, 1], [0.1, 0.9]), abs=0.02)
    assert (found.t_low, found.t_high) == pytest.approx(t_interval([1 / 6, 2 / 4], 0.8))
    with pytest.raises(ValueError, match="nothing"):
        hierarchical_ratio([[(0.0, 0.0), (1.0, 0.0)]])


def test_seeds_count_alike_however_many_tasks_they_have_left():
    assert hierarchical_mean([[1.0] * 10, [0.0] * 90]).value == 0.5


def test_one_seed_is_a_bootstrap_over_tasks_without_a_t_interval():
    values = np.random.default_rng(1).binomial(1, 0.3, 400).astype(float)
    plain, found = bootstrap_mean(values), hierarchical_mean([values])
    assert (found.low, found.high) == pytest.approx((plain.low, plain.high), abs=0.006)
    assert found.t_low is found.t_high is None
    noisy = np.random.default_rng(2).normal(0.3, 0.2, (3, 50)).tolist()
    assert hierarchical_mean(noisy) == hierarchical_mean(noisy) != hierarchical_mean(noisy, seed=1)


def test_differences_of_seeds_are_paired_by_task():
    generator = np.random.default_rng(3)
    hardness = generator.uniform(0, 0.9, (3, 100))
    better = hardness + generator.normal(0.05, 0.02, (3, 100))
    found = hierarchical_difference(hardness.tolist(), better.tolist())
    assert 0.04 < found.low < found.value < found.high < 0.06
    assert found.p_value == pytest.approx(2 / 10_001)
    assert found.t_low < found.value < found.t_high
    same = hierarchical_difference([[0.1, 0.7]], [[0.1, 0.7]])
    assert (same.value, same.low, same.high, same.p_value) == (0.0, 0.0, 0.0, 1.0)
    with pytest.raises(ValueError, match="shorter"):
        hierarchical_difference([[0.1, 0.7]], [[0.1]])


def test_too_few_tasks_and_numbers_that_are_none_are_refused():
    for groups in ([[0.5]], [[0.5, 1.0], []], []):
        with pytest.raises(UserError, match="at least 2 tasks"):
            hierarchical_mean(groups)
    with pytest.raises(ValueError, match="NaN"):
        hierarchical_mean([[0.5, float("nan")]])


def coverage(seeds, spread, trials=300, tasks=100):
    """How often the hierarchical and the t interval hold the truth, where trainings vary by `spread`."""
    generator = np.random.default_rng(5)
    held = np.zeros(2)
    for trial in range(trials):
        chances = np.clip(generator.normal(0.5, spread, seeds), 0, 1)
        groups = [generator.binomial(1, chance, tasks) for chance in chances]
        found = hierarchical_mean(groups, resamples=400, seed=trial)
        held += [found.low <= 0.5 <= found.high, found.t_low <= 0.5 <= found.t_high]
    return held / trials


def test_hierarchical_intervals_know_how_trainings_vary():
    """Trainings as noisy as tasks: a bootstrap over pooled tasks holds the truth far less than 95 times in 100."""
    hierarchical, t = coverage(seeds=10, spread=0.1)
    assert 0.89 <= hierarchical <= 0.98
    assert 0.92 <= t <= 0.98
    generator, pooled = np.random.default_rng(5), 0
    for trial in range(200):
        chances = generator.normal(0.5, 0.1, 10)
        tasks = np.concatenate([generator.binomial(1, chance, 100) for chance in chances])
        found = hierarchical_mean([tasks], resamples=400, seed=trial)
        pooled += found.low <= 0.5 <= found.high
    assert pooled / 200 < 0.75


def test_what_the_documentation_says_of_few_seeds_is_so():
    """Three trainings: safe where they hardly differ, too sure where they differ much; the t interval is neither."""
    alike, t_alike = coverage(seeds=3, spread=0.0)
    apart, t_apart = coverage(seeds=3, spread=0.15)
    assert alike >= 0.96
    assert 0.70 <= apart <= 0.90
    assert t_alike >= 0.92 and t_apart >= 0.92


def test_p_values_are_even_without_a_difference():
    """Two trainings that differ by chance only: p below 0.05 in at most about one in twenty."""
    generator, low = np.random.default_rng(8), 0
    for trial in range(300):
        before, after = generator.binomial(1, 0.5, (2, 5, 60)).tolist()
        low += hierarchical_difference(before, after, resamples=400, seed=trial).p_value < 0.05
    assert low / 300 <= 0.06


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
                min(1.0, size * min(ps[one] for one in some))
                for size in range(1, count + 1)
                for some in itertools.combinations(range(count), size)
                if place in some
            )
            for place in range(count)
        ]
        assert holm(ps) == pytest.approx(slow)
    assert holm([]) == []
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
