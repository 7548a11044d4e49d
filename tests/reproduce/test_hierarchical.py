"""Intervals over trainings: against counting all resamples, and how often they cover the truth."""

import itertools

import numpy as np
import pytest

from sweetrl.errors import UserError
from sweetrl.evaluation.statistics import bootstrap_mean, t_interval
from sweetrl.reproduce.hierarchical import hierarchical_mean


def every_resample(groups):
    """The means of all hierarchical resamples of groups of equal size, each as often as it is likely."""
    means = []
    for picks in itertools.product(groups, repeat=len(groups)):
        ways = [itertools.product(group, repeat=len(group)) for group in picks]
        means += [np.mean([np.mean(rows, axis=0) for rows in chosen], axis=0) for chosen in itertools.product(*ways)]
    return np.array(means)


def test_the_hierarchical_bootstrap_is_what_counting_all_resamples_gives():
    groups = [[0.0, 1.0], [1.0, 0.25], [-0.5, 0.5]]
    counted = every_resample(groups)
    estimate = hierarchical_mean(groups, 0.9, 40_000, seed=1)
    assert (estimate.value, estimate.n, estimate.groups) == (pytest.approx(np.mean(groups)), 6, 3)
    assert (estimate.low, estimate.high) == pytest.approx(np.quantile(counted, [0.05, 0.95]), abs=0.02)
    below, above = np.mean(counted <= 0), np.mean(counted >= 0)
    assert estimate.p_value == pytest.approx(2 * min(below, above), abs=0.01)


def test_a_ratio_is_resampled_by_pairs():
    groups = [[(1.0, 4.0), (0.0, 2.0)], [(1.0, 1.0), (1.0, 3.0)]]
    ratios = np.divide(*every_resample(groups).T)
    estimate = hierarchical_mean(groups, 0.8, 40_000)
    assert estimate.value == pytest.approx((1 + 2) / (6 + 4))
    assert (estimate.low, estimate.high) == pytest.approx(np.quantile(ratios, [0.1, 0.9]), abs=0.02)
    assert (estimate.t_low, estimate.t_high) == pytest.approx(t_interval([1 / 6, 2 / 4], 0.8))
    with pytest.raises(ValueError, match="nothing"):
        hierarchical_mean([[(0.0, 0.0), (1.0, 0.0)]])


def test_seeds_count_alike_however_many_tasks_they_have_left():
    assert hierarchical_mean([[1.0] * 10, [0.0] * 90]).value == 0.5


def test_one_seed_is_a_bootstrap_over_tasks_without_a_t_interval():
    values = np.random.default_rng(1).binomial(1, 0.3, 400).astype(float)
    plain, estimate = bootstrap_mean(values), hierarchical_mean([values])
    assert (estimate.low, estimate.high) == pytest.approx((plain.low, plain.high), abs=0.006)
    assert estimate.t_low is estimate.t_high is None
    noisy = np.random.default_rng(2).normal(0.3, 0.2, (3, 50)).tolist()
    assert hierarchical_mean(noisy) == hierarchical_mean(noisy) != hierarchical_mean(noisy, seed=1)


def test_differences_of_seeds_are_paired_by_task():
    generator = np.random.default_rng(3)
    hardness = generator.uniform(0, 0.9, (3, 100))
    better = hardness + generator.normal(0.05, 0.02, (3, 100))
    estimate = hierarchical_mean((better - hardness).tolist())
    assert 0.04 < estimate.low < estimate.value < estimate.high < 0.06
    assert estimate.p_value == pytest.approx(2 / 10_001)
    assert estimate.t_low < estimate.value < estimate.t_high
    same = hierarchical_mean([[0.0, 0.0]])
    assert (same.value, same.low, same.high, same.p_value) == (0.0, 0.0, 0.0, 1.0)


def test_too_few_tasks_and_numbers_that_are_none_are_refused():
    for groups in ([[0.5]], [[0.5, 1.0], []], []):
        with pytest.raises(UserError, match="at least 2 tasks"):
            hierarchical_mean(groups)
    with pytest.raises(ValueError, match="NaN"):
        hierarchical_mean([[0.5, float("nan")]])


def coverage(seeds, spread, trials=300, tasks=100):
    """How often the hierarchical and the t interval cover the truth, where trainings vary by `spread`."""
    generator = np.random.default_rng(5)
    covered = np.zeros(2)
    for trial in range(trials):
        chances = np.clip(generator.normal(0.5, spread, seeds), 0, 1)
        groups = [generator.binomial(1, chance, tasks) for chance in chances]
        estimate = hierarchical_mean(groups, resamples=400, seed=trial)
        covered += [estimate.low <= 0.5 <= estimate.high, estimate.t_low <= 0.5 <= estimate.t_high]
    return covered / trials


def test_hierarchical_intervals_know_how_trainings_vary():
    """Trainings as noisy as tasks: a bootstrap over pooled tasks covers the truth far less than 95 times in 100."""
    hierarchical, t = coverage(seeds=10, spread=0.1)
    assert 0.89 <= hierarchical <= 0.98
    assert 0.92 <= t <= 0.98
    generator, covered = np.random.default_rng(5), 0
    for trial in range(200):
        chances = generator.normal(0.5, 0.1, 10)
        tasks = np.concatenate([generator.binomial(1, chance, 100) for chance in chances])
        estimate = hierarchical_mean([tasks], resamples=400, seed=trial)
        covered += estimate.low <= 0.5 <= estimate.high
    assert covered / 200 < 0.75


def test_what_the_documentation_says_of_few_seeds_is_so():
    """Three trainings: safe where they hardly differ, too sure where they differ much; the t interval is neither."""
    alike, t_alike = coverage(seeds=3, spread=0.0)
    apart, t_apart = coverage(seeds=3, spread=0.15)
    assert alike >= 0.96
    assert 0.70 <= apart <= 0.90
    assert t_alike >= 0.92 and t_apart >= 0.92


def test_p_values_are_uniform_without_a_difference():
    """Two trainings that differ by chance only: p is below 0.05 in at most about 5 % of them."""
    generator, low = np.random.default_rng(8), 0
    for trial in range(300):
        before, after = generator.binomial(1, 0.5, (2, 5, 60))
        low += hierarchical_mean((after - before).tolist(), resamples=400, seed=trial).p_value < 0.05
    assert low / 300 <= 0.06
