"""How sure a number is: intervals for rates and means, paired comparison of two policies, and the promotion gate.

Rates get Wilson's score interval. Means and paired differences get a bias-corrected and accelerated (BCa) bootstrap
over tasks, the unit that is independent. The p-values are exact McNemar for paired success and a paired sign-flip
permutation test for rewards. All random numbers come from a seed; all of it is scipy, chosen and checked here once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sweetrl.errors import UserError

BATCH_CELLS = 4_000_000  # resampled values held in memory at a time (32 MB)


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


@dataclass(frozen=True)
class McNemar:
    """Paired success: tasks only the second policy solved (gained) or only the first (lost), and the exact p."""

    gained: int
    lost: int
    p_value: float


@dataclass(frozen=True)
class Decision:
    """Whether the challenger becomes champion, and why.

    `difference` is the mean of challenger minus champion over the `n` tasks that both attempted, `interval` its
    two-sided BCa interval at `confidence`, `p_value` the two-sided paired permutation p.
    """

    promote: bool
    reason: str
    difference: float
    interval: tuple[float, float]
    n: int
    p_value: float
    confidence: float = 0.95
    champion_mean: float | None = None
    challenger_mean: float | None = None

    def as_dict(self) -> dict[str, Any]:
        """The fields as plain JSON values."""
        return {**asdict(self), "interval": list(self.interval)}


def wilson_interval(successes: int, n: int, confidence: float = 0.95) -> Estimate:
    """Return the rate successes/n with Wilson's score interval; (0, 1) where n is 0."""
    from scipy.stats import binomtest

    if n == 0:
        return Estimate(0.0, 0.0, 1.0, 0, confidence)
    if not 0 <= successes <= n:
        raise ValueError(f"{successes} successes in {n} trials")
    interval = binomtest(successes, n).proportion_ci(confidence_level=confidence, method="wilson")
    return Estimate(successes / n, float(interval.low), float(interval.high), n, confidence)


def bootstrap_mean(
    values: Sequence[float], confidence: float = 0.95, resamples: int = 10_000, seed: int = 0
) -> Estimate:
    """Return the mean of `values` (one value a task) with a BCa bootstrap interval over tasks.

    Equal values have a mean that cannot be resampled into anything else: the interval is that point. Fewer than two
    values have no interval and raise a UserError.
    """
    import numpy as np
    from scipy.stats import bootstrap

    data = np.asarray(values, dtype=float)
    if data.size < 2:
        raise UserError(f"an interval needs at least 2 tasks and there are {data.size}; raise evaluate.tasks.")
    if not np.isfinite(data).all():
        raise ValueError("the values hold a NaN or an infinity")
    mean = float(data.mean())
    if np.ptp(data) == 0.0:
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
    import numpy as np

    if len(before) != len(after):
        raise ValueError(f"paired values differ in number: {len(before)} and {len(after)}")
    return bootstrap_mean(np.subtract(after, before, dtype=float).tolist(), confidence, resamples, seed)


def paired_p_value(before: Sequence[float], after: Sequence[float], resamples: int = 10_000, seed: int = 0) -> float:
    """Return the two-sided p of "no difference in mean", by flipping the signs of the per-task differences.

    Exact where all 2^m sign patterns of the m tasks that differ can be counted in `resamples`, else sampled (smallest
    possible value about 2 / (resamples + 1)).
    """
    import numpy as np
    from scipy.stats import permutation_test

    differences = np.subtract(after, before, dtype=float)
    differences = differences[differences != 0.0]  # a tie adds nothing whatever its sign
    if differences.size == 0:
        return 1.0
    if differences.size == 1:
        return 1.0  # both sign patterns are as extreme as what was seen
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


def mcnemar_exact(before: Sequence[bool], after: Sequence[bool]) -> McNemar:
    """Compare paired successes with the exact McNemar test: a binomial test of the tasks only one policy solved."""
    from scipy.stats import binomtest

    if len(before) != len(after):
        raise ValueError(f"paired successes differ in number: {len(before)} and {len(after)}")
    gained = sum(1 for first, second in zip(before, after, strict=True) if second and not first)
    lost = sum(1 for first, second in zip(before, after, strict=True) if first and not second)
    p_value = float(binomtest(gained, gained + lost, 0.5).pvalue) if gained + lost else 1.0
    return McNemar(gained, lost, p_value)


def promotion_decision(
    champion: Mapping[str, float] | None,
    challenger: Mapping[str, float],
    confidence: float = 0.95,
    resamples: int = 10_000,
    seed: int = 0,
) -> Decision:
    """Decide whether `challenger` replaces `champion` (both: task id -> reward; None: there is no champion yet).

    The challenger wins if the BCa interval of the mean paired difference lies above zero and the paired permutation
    test agrees (p < 1 - confidence); the second condition is what holds on few tasks, where a bootstrap is too sure.
    Different tasks, no tasks or a single one: UserError.
    """
    if not challenger:
        raise UserError("the challenger has no results to decide on; run the evaluate stage first.")
    if champion is None:
        mean = sum(challenger.values()) / len(challenger)
        reason = f"promoted: there is no champion yet (the challenger's mean reward is {mean:.3f})."
        return Decision(True, reason, 0.0, (0.0, 0.0), len(challenger), 1.0, confidence, None, mean)
    if champion.keys() != challenger.keys():
        missing, extra = champion.keys() - challenger.keys(), challenger.keys() - champion.keys()
        example = min(missing or extra)
        raise UserError(
            f"champion and challenger were evaluated on different tasks ({len(missing)} only by the champion, "
            f"{len(extra)} only by the challenger, for example {example}); evaluate both on the same tasks."
        )
    tasks = sorted(champion)
    before, after = [champion[task] for task in tasks], [challenger[task] for task in tasks]
    difference = paired_difference(before, after, confidence, resamples, seed)
    p_value = paired_p_value(before, after, resamples, seed)
    promote = difference.low > 0.0 and p_value < 1.0 - confidence
    numbers = (
        f"mean reward {difference.value:+.3f} on {difference.n} paired tasks, "
        f"{confidence:.0%} interval {difference.low:+.3f} to {difference.high:+.3f}, p = {p_value:.2g}"
    )
    if promote:
        reason = f"promoted: the challenger beats the champion ({numbers})."
    elif difference.high < 0.0:
        reason = f"not promoted: the challenger is worse than the champion ({numbers})."
    else:
        reason = f"not promoted: the challenger is not shown to be better than the champion ({numbers})."
    return Decision(
        promote,
        reason,
        difference.value,
        (difference.low, difference.high),
        difference.n,
        p_value,
        confidence,
        sum(before) / len(before),
        sum(after) / len(after),
    )
