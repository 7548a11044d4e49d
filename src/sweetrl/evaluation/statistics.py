"""How sure a number is: intervals for rates and means, paired comparison of two policies.

Rates get Wilson's score interval. Means and paired differences get a bias-corrected and accelerated (BCa) bootstrap
over tasks, the unit that is independent. The p-values are exact McNemar for paired success and a paired sign-flip
permutation test for rewards. All random numbers come from a seed; all of it is scipy, chosen and checked here once.

Where several trainings (seeds) were measured, tasks are not all that varies: sweetrl.reproduce.hierarchical.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sweetrl.errors import UserError

BATCH_CELLS = 4_000_000  # resampled values held in memory at a time (32 MB)
ROUNDING = 1e-12  # of the greatest value (at least of 1): values that differ by no more are equal


@dataclass(frozen=True)
class Estimate:
    """A number measured on `n` tasks with its two-sided interval at level `confidence`."""

    value: float
    low: float
    high: float
    n: int
    confidence: float

    def as_dict(self) -> dict[str, Any]:
        """The fields as plain JSON values."""
        return asdict(self)


def wilson_interval(successes: int, n: int, confidence: float = 0.95) -> Estimate:
    """Return the rate successes/n with Wilson's score interval; (0, 1) where n is 0."""
    from scipy.stats import binomtest

    if n == 0:
        return Estimate(0.0, 0.0, 1.0, 0, confidence)
    interval = binomtest(successes, n).proportion_ci(confidence_level=confidence, method="wilson")
    return Estimate(successes / n, float(interval.low), float(interval.high), n, confidence)


def bootstrap_mean(
    values: Sequence[float], confidence: float = 0.95, resamples: int = 10_000, seed: int = 0
) -> Estimate:
    """Return the mean of `values` (one value a task) with a BCa bootstrap interval over tasks.

    Equal values have a mean that cannot be resampled into anything else: the interval is that point; so it is where
    they differ by rounding only, of which BCa makes NaN. Fewer than two values have no interval and raise a UserError.
    """
    import numpy as np
    from scipy.stats import bootstrap

    data = np.asarray(values, dtype=float)
    if data.size < 2:
        raise UserError(f"an interval needs at least 2 tasks and there are {data.size}; raise evaluate.tasks.")
    if not np.isfinite(data).all():
        raise ValueError("the values hold a NaN or an infinity")
    mean = float(data.mean())
    if np.ptp(data) <= ROUNDING * max(1.0, float(np.abs(data).max())):
        return Estimate(mean, mean, mean, data.size, confidence)
    result = bootstrap(
        (data,),
        np.mean,
        n_resamples=resamples,
        batch=max(1, BATCH_CELLS // data.size),
        confidence_level=confidence,
        method="BCa",
        rng=np.random.default_rng(seed),
    )
    low, high = float(result.confidence_interval.low), float(result.confidence_interval.high)
    return Estimate(mean, low, high, data.size, confidence)


def paired_difference(
    before: Sequence[float], after: Sequence[float], confidence: float = 0.95, resamples: int = 10_000, seed: int = 0
) -> Estimate:
    """Return the mean of after - before, the tasks in equal order, with a BCa interval that resamples whole tasks."""
    return bootstrap_mean(gaps_of(before, after), confidence, resamples, seed)


def gaps_of(before: Sequence[float], after: Sequence[float]) -> list[float]:
    """Return after - before, task by task, 0 where they differ by rounding; ValueError where they differ in number."""
    return [
        0.0 if math.isclose(new, old, rel_tol=ROUNDING, abs_tol=ROUNDING) else float(new) - float(old)
        for old, new in zip(before, after, strict=True)
    ]


def paired_p_value(before: Sequence[float], after: Sequence[float], resamples: int = 10_000, seed: int = 0) -> float:
    """Return the two-sided p of "no difference in mean", by flipping the signs of the per-task differences.

    Exact where all 2^m sign patterns of the m tasks that differ can be counted in `resamples`, else sampled (smallest
    possible value about 2 / (resamples + 1)).
    """
    import numpy as np
    from scipy.stats import permutation_test

    differences = np.array([gap for gap in gaps_of(before, after) if gap])  # a tie adds nothing whatever its sign
    if differences.size < 2:
        return 1.0  # of a single difference both sign patterns are equally extreme
    result = permutation_test(
        (differences,),
        np.sum,
        permutation_type="samples",
        vectorized=True,
        n_resamples=resamples,
        batch=max(1, BATCH_CELLS // differences.size),
        alternative="two-sided",
        rng=np.random.default_rng(seed),
    )
    return float(result.pvalue)


def sign_flip_bound(before: Sequence[float], after: Sequence[float]) -> float:
    """Return a number that the exact p of `paired_p_value` never exceeds, however small it is: no sampling.

    With the differences d_i and random signs e_i, P(|sum e_i d_i| >= |sum d_i|) <= 2 exp(-(sum d_i)^2 / (2 sum d_i^2))
    (Hoeffding (1963), "Probability inequalities for sums of bounded random variables", JASA 58, 13-30, theorem 2). For
    what is far beyond any number of resamples; else it is several times the exact p.
    """
    gaps = gaps_of(before, after)
    squares = math.fsum(gap**2 for gap in gaps)
    bound = 2.0 * math.exp(-(math.fsum(gaps) ** 2) / (2.0 * squares)) if squares else 1.0
    return min(1.0, max(bound, sys.float_info.min))


def mcnemar_exact(before: Sequence[bool], after: Sequence[bool]) -> tuple[int, int, float]:
    """Compare paired successes with the exact McNemar test: a binomial test of the tasks only one policy solved.

    Returns how many only the second one solved (gained), how many only the first (lost), and the exact p.
    """
    from scipy.stats import binomtest

    gaps = gaps_of(before, after)
    gained, lost = gaps.count(1.0), gaps.count(-1.0)
    p_value = float(binomtest(gained, gained + lost, 0.5).pvalue) if gained + lost else 1.0
    return gained, lost, p_value


def t_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float] | None:
    """Return Student's interval of the mean of `values` (one a training): mean +- t_{S-1} s / sqrt(S).

    None for fewer than two values, which say nothing of their spread.
    """
    import numpy as np
    from scipy.stats import t

    if len(values) < 2:
        return None
    mean, error = float(np.mean(values)), float(np.std(values, ddof=1)) / len(values) ** 0.5
    reach = float(t.ppf((1 + confidence) / 2, len(values) - 1)) * error
    return mean - reach, mean + reach


def holm(p_values: Sequence[float]) -> list[float]:
    """Return the p-values adjusted by Holm's step-down procedure (1979), in the given order.

    With p_(1) <= ... <= p_(m): adjusted p_(i) = max over j <= i of min(1, (m - j + 1) p_(j)). Rejecting what is below
    alpha keeps the chance of any wrong rejection at alpha, however the tests depend on each other.
    """
    adjusted, highest = [0.0] * len(p_values), 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=lambda index: p_values[index])):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = highest
    return adjusted
