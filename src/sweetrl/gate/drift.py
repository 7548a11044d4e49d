"""Whether the champion is still what it was: the same tasks attempted again, and every look paid for.

The tasks, seeds and rules are equal, so that what differs comes from outside: another user simulator or engine behind
the same address, another machine. Look n at a champion has the share of the chance of error that comparison n has at
the gate (sweetrl.gate.power): however often one looks, a champion that has not changed is called worse with the
chance 1 - `evaluate.confidence` at most. A group-sequential test whose looks nobody has to plan (Jennison & Turnbull
(2000), "Group sequential methods with applications to clinical trials", chapter 7).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sweetrl.config.settings import GateSettings
from sweetrl.gate.decision import compare_means, in_numbers
from sweetrl.gate.power import detectable_difference, level


@dataclass(frozen=True)
class Look:
    """Look `number` at a champion: whether it `drifted` (got worse), and in which words.

    `difference` is the mean reward now less that of the first measurement, on the `n` tasks of both.
    """

    drifted: bool
    sentence: str
    number: int
    difference: float = 0.0
    p_value: float = 1.0
    alpha: float = 0.0
    n: int = 0


def look(
    first: Mapping[str, float],
    now: Mapping[str, float],
    rules: GateSettings,
    confidence: float,
    resamples: int,
    seed: int,
    number: int,
) -> Look:
    """Compare a champion's rewards `now` with its `first` ones, by task id. Fewer than two common tasks: UserError."""
    tasks = sorted(first.keys() & now.keys())
    before, after = [first[task] for task in tasks], [now[task] for task in tasks]
    alpha = level(rules, confidence, number)
    difference, p_value = compare_means(before, after, alpha, resamples, seed)
    spread = sum((new - old) ** 2 for old, new in zip(before, after, strict=True)) / len(tasks)
    where = f"against its first measurement on {difference.n:,} tasks"
    numbers = in_numbers(difference, p_value, where, "an agent that has not changed differs")
    numbers += f", and the limit of look {number} is {alpha:.2g}"
    drifted = p_value < alpha and difference.high < 0.0
    if spread == 0.0:
        same = f"the champion does exactly what it did, on all of {len(tasks):,} tasks"
        sentence = f"{same} (look {number}): nothing to do."
    elif drifted:
        sentence = f"the champion has got worse: {numbers}. Retrain now: `python -m flows.retrain`."
    elif p_value < alpha and difference.low > 0.0:
        sentence = f"the champion has got better without training: {numbers}. Look at what has changed around it."
    else:
        seen = detectable_difference(len(tasks), spread, alpha, rules.power)
        sight = f"; a drop of {seen:.3f} or more is seen with a chance of {100 * rules.power:.6g} %" if seen else ""
        sentence = f"the champion is not shown to have changed: {numbers}{sight}. No need to retrain for it."
    return Look(drifted, sentence, number, difference.value, p_value, alpha, len(tasks))
