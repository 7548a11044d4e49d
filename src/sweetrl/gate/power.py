"""What a paired comparison can see, and what comparing again and again on the same tasks costs.

Both versions attempt the same tasks. With d_i the difference of their rewards on task i and m = E[d^2] (the
`discordance`; with rewards of 0 and 1 the share of tasks that only one of them solves), the sum of the differences has
the variance n m if there is no difference, and n (m - delta^2) if their mean is delta. So a two-sided test at `alpha`
finds delta with the chance `power` on

    n = (z_{1 - alpha/2} sqrt(m) + z_power sqrt(m - delta^2))^2 / delta^2

tasks, if they are many: Connor (1987), "Sample size for testing differences in proportions for the paired-sample
design", Biometrics 43, 207-211, for rewards of 0 and 1; the gate's sign-flip test has these variances for any rewards.

Whoever tries twenty equally good challengers on the same tasks finds a lucky one. So the chance alpha of a wrong
promotion is spent over all comparisons with one champion on one set of test tasks: comparison n may use

    alpha_n = alpha * 6 / (pi^2 n^2),    sum over n = 1, 2, ... of alpha_n = alpha

By Bonferroni's inequality the chance that any of them is wrong is alpha at most, however many there are: nobody has to
say beforehand how many that will be (docs/decisions/0014-alpha-spending-at-the-gate.md; shares like these are those of
online control as long as nothing was found: Foster & Stine (2008), JRSS B 70; Javanmard & Montanari (2018), AoS 46).
"""

from __future__ import annotations

import math

from sweetrl.config.settings import GateSettings

MOST_RESAMPLES = 1_000_000


def required_tasks(difference: float, discordance: float, alpha: float, power: float) -> int:
    """Return on how many tasks a true `difference` of mean reward is seen with the chance `power` at two-sided `alpha`.

    `discordance` is the mean squared difference on a task; it is no smaller than the square of the mean, so a smaller
    one is taken for that. At least 2.
    """
    spread = max(discordance, difference**2)
    reach = quantile(1 - alpha / 2) * math.sqrt(spread) + quantile(power) * math.sqrt(spread - difference**2)
    return max(2, math.ceil(reach**2 / difference**2 - 1e-9))


def detectable_difference(tasks: int, discordance: float, alpha: float, power: float) -> float | None:
    """Return the smallest true difference of mean reward that `tasks` tasks show with the chance `power`.

    The inverse of `required_tasks`. None where they are too few for any: n <= z_{1 - alpha/2}^2. Where the versions
    never differ (`discordance` 0), any difference would be seen: 0.
    """
    from scipy.optimize import brentq

    if discordance <= 0.0:
        return 0.0
    level, certain = quantile(1 - alpha / 2), quantile(power)
    largest = math.sqrt(discordance)
    if tasks <= level**2:
        return None

    def too_much(delta: float) -> float:
        return math.sqrt(tasks) * delta - level * largest - certain * math.sqrt(max(0.0, discordance - delta**2))

    return float(brentq(too_much, 0.0, largest))


def tasks_for_margin(margin: float, discordance: float, alpha: float, power: float) -> int:
    """Return on how many tasks a loss of more than `margin` is ruled out with the chance `power`, if there is no loss.

        n = (z_{1 - alpha/2} + z_power)^2 m / margin^2

    The sample size for non-inferiority of paired values: Julious (2004), "Sample sizes for clinical trials with normal
    data", Statistics in Medicine 23, 1921-1986, section on non-inferiority, for one sample of differences; alpha/2 is
    the one side on which a two-sided interval at 1 - alpha must clear the margin.
    """
    reach = quantile(1 - alpha / 2) + quantile(power)
    return max(2, math.ceil(reach**2 * discordance / margin**2 - 1e-9))


def share(number: int) -> float:
    """Return which share of the whole chance of error comparison `number` (from 1) may use: 6 / (pi number)^2."""
    return 6.0 / (math.pi * number) ** 2


def level(rules: GateSettings, confidence: float, number: int) -> float:
    """Return the chance of error, two-sided, that comparison `number` may have under `rules`."""
    return (1.0 - confidence) * (share(number) if rules.spending == "inverse-square" else 1.0)


def resamples_for(alpha: float, resamples: int) -> int:
    """Return how many resamples can tell a p-value below `alpha`: at least 20 / alpha, at most `MOST_RESAMPLES`."""
    return max(resamples, min(MOST_RESAMPLES, math.ceil(20.0 / alpha)))


def quantile(share: float) -> float:
    """Return below which value a `share` of the standard normal distribution lies."""
    from scipy.stats import norm

    return float(norm.ppf(share))
