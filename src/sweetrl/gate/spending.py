"""What comparing again and again on the same tasks costs: each comparison gets a share of one chance of error.

Whoever tries twenty equally good challengers on the same tasks finds a lucky one. So the chance alpha of a wrong
promotion is spent over all comparisons with one champion on one set of test tasks: comparison n may use

    alpha_n = alpha * 6 / (pi^2 n^2),    sum over n = 1, 2, ... of alpha_n = alpha

(Euler's sum of 1/n^2). By Bonferroni's inequality the chance that any of them is wrong is alpha at most, whatever
depends on what, and however many there are: nobody has to say beforehand how many that will be. A sequence of shares
like this one is also what online control of false discoveries comes to as long as nothing was found: Foster & Stine
(2008), "Alpha-investing: a procedure for sequential control of expected false discoveries", JRSS B 70, 429-444;
Javanmard & Montanari (2018), "Online rules for control of false discovery rate and false discovery exceedance", Annals
of Statistics 46, 526-554. docs/decisions/0014-alpha-spending-at-the-gate.md has the reasons for this one.
"""

from __future__ import annotations

import math

from sweetrl.settings import GateSettings

MOST_RESAMPLES = 1_000_000


def share(number: int) -> float:
    """Return which share of the whole chance of error comparison `number` (from 1) may use: 6 / (pi number)^2."""
    if number < 1:
        raise ValueError(f"comparisons are counted from 1, and this is {number}")
    return 6.0 / (math.pi * number) ** 2


def level(rules: GateSettings, confidence: float, number: int) -> float:
    """Return the chance of error, two-sided, that comparison `number` may have under `rules`."""
    return (1.0 - confidence) * (share(number) if rules.spending == "inverse-square" else 1.0)


def resamples_for(alpha: float, resamples: int) -> int:
    """Return how many resamples can tell a p-value below `alpha`: at least 20 / alpha, at most `MOST_RESAMPLES`."""
    return max(resamples, min(MOST_RESAMPLES, math.ceil(20.0 / alpha)))
