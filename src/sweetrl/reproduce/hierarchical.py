"""Intervals over several trainings (seeds), each measured on tasks of its own: both are resampled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sweetrl.errors import UserError
from sweetrl.evaluation.statistics import BATCH_CELLS, Estimate, t_interval


@dataclass(frozen=True)
class Hierarchical(Estimate):
    """An Estimate over several trainings (`groups`), each measured on tasks: `n` in all.

    `low` and `high` are the hierarchical bootstrap's; `p_value` is the two-sided p of "the value is 0" by the same
    resamples. `t_low` and `t_high` are the ends of the t interval over the trainings' own values: None for a single
    one.
    """

    groups: int
    p_value: float
    t_low: float | None
    t_high: float | None


def hierarchical_mean(
    groups: Sequence[Sequence[float] | Sequence[tuple[float, float]]],
    confidence: float = 0.95,
    resamples: int = 10_000,
    seed: int = 0,
) -> Hierarchical:
    """Return the mean over trainings of each one's mean over its tasks, with an interval that knows both spreads.

    The hierarchical bootstrap (Davison & Hinkley 1997, section 3.8): each of R resamples draws S of the S `groups`
    with replacement, and within every drawn one its n_s tasks with replacement; the interval is that between the
    quantiles (1 - c)/2 and (1 + c)/2 of

        theta* = (1/S) sum_{k = 1..S} (1/n_k*) sum_{i = 1..n_k*} x_{k* i*}

    The p-value is the smallest level at which such an interval leaves 0 out, with the usual correction for R:

        p = min(1, 2 min((1 + #{theta* <= 0}) / (R + 1), (1 + #{theta* >= 0}) / (R + 1)))

    Read it together with the t interval over the trainings' means. With d the variance between trainings and e the one
    of a mean over tasks, the mean of S trainings has the variance (d + e)/S, the resamples (1 - 1/S)(d + e)/S + e/S on
    average: too much where trainings hardly differ (safe), too little where few differ much (three: two thirds). The t
    interval holds its level for any S > 1 if the trainings' means are about normal, and is wide for few.

    Of pairs (numerator, denominator) it is the ratio of the two means ("successes for each question asked"), tasks
    resampled as pairs. Denominators that are 0 everywhere raise a ValueError.
    """
    count = sum(map(len, groups))
    if count < 2 or not all(map(len, groups)):
        raise UserError(f"an interval needs at least 2 tasks, and one of each seed; there are {count}.")
    rows = [np.asarray(values, dtype=float).reshape(len(values), -1) for values in groups]
    means = np.array([some.mean(axis=0) for some in rows])
    value = float(_statistic(means.mean(axis=0, keepdims=True))[0])
    if not np.isfinite(value):
        raise ValueError("the values hold a NaN or an infinity, or it is a ratio to nothing")
    drawn = _statistic(_resampled_means(rows, resamples, np.random.default_rng(seed)))
    drawn = drawn[np.isfinite(drawn)]
    # What differs from 0 by rounding only counts on both sides.
    tails = [(1 + int(np.sum(side))) / (drawn.size + 1) for side in (drawn <= 1e-12, drawn >= -1e-12)]
    low, high = map(float, np.quantile(drawn, [(1 - confidence) / 2, (1 + confidence) / 2]))
    own = _statistic(means)  # each training's value
    ends = t_interval(own[np.isfinite(own)].tolist(), confidence) or (None, None)
    return Hierarchical(value, low, high, count, confidence, len(groups), min(1.0, 2 * min(tails)), *ends)


def _statistic(means: np.ndarray) -> np.ndarray:
    """Of rows of means: the mean itself, or the ratio of the first to the second (infinite or NaN: to nothing)."""
    if means.shape[1] == 1:
        return means[:, 0]
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio: np.ndarray = means[:, 0] / means[:, 1]
    return ratio


def _resampled_means(groups: Sequence[np.ndarray], resamples: int, generator: np.random.Generator) -> np.ndarray:
    """Return, for each resample, the mean over drawn groups of the mean over their drawn rows.

    A group that is drawn t times adds t n rows, drawn with replacement: how often each distinct row is among them is
    multinomial, so that is drawn in place of the rows.
    """
    distinct = [np.unique(rows, axis=0, return_counts=True) for rows in groups]
    step = max(1, BATCH_CELLS // max(len(rows) for rows, _ in distinct))
    parts = []
    for first in range(0, resamples, step):
        many = min(step, resamples - first)
        picks = generator.integers(len(groups), size=(many, len(groups)))
        total = np.zeros((many, groups[0].shape[1]))
        for number, (rows, counts) in enumerate(distinct):
            size = counts.sum()
            times = (picks == number).sum(axis=1)
            total += generator.multinomial(times * size, counts / size) @ rows / size
        parts.append(total / len(groups))
    return np.concatenate(parts)
