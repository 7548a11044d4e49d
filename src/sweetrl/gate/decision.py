"""Whether a challenger becomes champion, and why, in sentences that need no book of statistics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sweetrl.errors import UserError
from sweetrl.evaluation.statistics import Estimate, paired_difference, paired_p_value, sign_flip_bound
from sweetrl.gate import costs, slices
from sweetrl.gate.costs import Extra, compare_costs
from sweetrl.gate.measured import Measured
from sweetrl.gate.power import detectable_difference, required_tasks
from sweetrl.gate.slices import Slice, compare_slices
from sweetrl.gate.spending import level, resamples_for
from sweetrl.settings import GateSettings


@dataclass(frozen=True)
class Decision:
    """Whether the challenger becomes champion, and why.

    `difference` is the mean of challenger minus champion over the `n` tasks that both attempted (rewards, less the
    prices of the gate where it has some), `interval` its two-sided BCa interval at `confidence`, `p_value` the
    two-sided paired permutation p, which must be below `alpha`. `reason` is the decision in one sentence, `notes` are
    the further ones: what was spent, what can be seen, slices, costs. `compared` is False where nothing was compared:
    there is no champion, or the tasks are too few.
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
    alpha: float = 0.05
    number: int = 1
    discordance: float = 0.0
    detectable: float | None = None
    slices: tuple[Slice, ...] = ()
    costs: tuple[Extra, ...] = ()
    notes: tuple[str, ...] = ()
    compared: bool = True

    def as_dict(self) -> dict[str, Any]:
        """The fields as plain JSON values."""
        extra = [asdict(one) | {"difference": one.difference, "over": one.over} for one in self.costs]
        return {
            **asdict(self),
            "interval": list(self.interval),
            "slices": [asdict(one) for one in self.slices],
            "costs": extra,
            "notes": list(self.notes),
        }

    @property
    def verdict(self) -> str:
        """The reason and the notes as one text."""
        return " ".join([self.reason, *self.notes])


@dataclass(frozen=True)
class Question:
    """A comparison that has not been made: both versions on the tasks that both attempted, in equal order."""

    champion: Measured
    challenger: Measured
    before: list[float]
    after: list[float]

    @property
    def discordance(self) -> float:
        """The mean squared difference on a task: how much the two differ, and not which of them is better."""
        return sum((new - old) ** 2 for old, new in zip(self.before, self.after, strict=True)) / len(self.before)


def question(champion: Measured, challenger: Measured, rules: GateSettings) -> Question:
    """Pair two versions on the tasks that both attempted; different tasks, or none, are a UserError.

    A dialogue lost to a failing engine or user has no reward and is nobody's failure: its task is left out for both.
    """
    if not challenger.rewards:
        raise UserError("the challenger has no results to decide on; run the evaluate stage first.")
    common = sorted(champion.rewards.keys() & challenger.rewards.keys())
    if not common:
        raise UserError(
            f"champion and challenger were evaluated on different tasks (for example {min(challenger.rewards)} and "
            f"{min(champion.rewards, default='none')}); evaluate both on the same tasks."
        )
    old, new = champion.on(common), challenger.on(common)
    worth = [one.worth(rules.turn_price, rules.token_price) for one in (old, new)]
    return Question(old, new, *([values[task] for task in common] for values in worth))


def first_decision(challenger: Measured, confidence: float = 0.95) -> Decision:
    """Decide where there is no champion yet: whoever comes first is it. No results: UserError."""
    if not challenger.rewards:
        raise UserError("the challenger has no results to decide on; run the evaluate stage first.")
    mean = sum(challenger.rewards.values()) / len(challenger.rewards)
    reason = f"promoted: there is no champion yet (the challenger's mean reward is {mean:.3f})."
    return Decision(
        True, reason, 0.0, (0.0, 0.0), len(challenger.rewards), 1.0, confidence, None, mean, 1.0 - confidence,
        compared=False,
    )  # fmt: skip


def too_few(asked: Question, rules: GateSettings, confidence: float, number: int) -> Decision | None:
    """Refuse to compare on too few tasks, where `rules.few_tasks` says so; None where they are enough.

    How much the versions differ from task to task is looked at, which of them is better is not, so that nothing is
    spent: a challenger that wins on few tasks wins by more than it is worth (Gelman & Carlin (2014), "Beyond power
    calculations", Perspectives on Psychological Science 9, 641-651).
    """
    alpha, count = level(rules, confidence, number), len(asked.before)
    seen = detectable_difference(count, asked.discordance, alpha, rules.power)
    if rules.few_tasks == "tell" or (seen is not None and seen <= rules.smallest_difference):
        return None
    reason = f"not promoted: nothing was compared, because there are too few test tasks. {_sight(asked, rules, alpha)}"
    return Decision(
        False, reason, 0.0, (0.0, 0.0), count, 1.0, 1.0 - alpha, None, None, alpha, number, asked.discordance, seen,
        notes=("Raise `tasks.test` and `evaluate.tasks` in params.yaml.",), compared=False,
    )  # fmt: skip


def decide(
    asked: Question,
    rules: GateSettings | None = None,
    confidence: float = 0.95,
    resamples: int = 10_000,
    seed: int = 0,
    number: int = 1,
) -> Decision:
    """Decide comparison `number` with a champion on these test tasks.

    The challenger wins if the BCa interval of the mean paired difference at 1 - alpha lies above zero and the paired
    permutation test agrees (p < alpha), with alpha as `gate.spending` has it; the second condition is what holds on
    few tasks, where a bootstrap is too sure. Who wins is not promoted where slices or costs forbid it.
    """
    rules = rules or GateSettings()
    alpha = level(rules, confidence, number)
    difference, p_value = compare_means(asked.before, asked.after, alpha, resamples, seed)
    gaps = {task: reward - asked.champion.rewards[task] for task, reward in asked.challenger.rewards.items()}
    parts = compare_slices(gaps, asked.challenger.groups, rules, confidence)
    extras = compare_costs(asked.champion, asked.challenger, rules, confidence)
    wins = difference.low > 0.0 and p_value < alpha
    refusals = _refusals(parts, extras, rules) if wins else []
    numbers = _numbers(difference, p_value, alpha)
    if refusals:
        why = " and ".join(refusals)
        reason = f"not promoted: the challenger beats the champion on the whole ({numbers}), but {why}."
    elif wins:
        reason = f"promoted: the challenger beats the champion ({numbers})."
    elif difference.high < 0.0 and p_value < alpha:
        reason = f"not promoted: the challenger is worse than the champion ({numbers})."
    else:
        reason = f"not promoted: the challenger is not shown to be better than the champion ({numbers})."
    notes = [
        *slices.sentences(parts, rules.slice_margin, confidence),
        *costs.sentences(extras),
        *([] if wins else [_sight(asked, rules, alpha)]),
        *_spent(rules, alpha, confidence, number),
    ]
    return Decision(
        wins and not refusals,
        reason,
        difference.value,
        (difference.low, difference.high),
        difference.n,
        p_value,
        difference.confidence,
        sum(asked.before) / len(asked.before),
        sum(asked.after) / len(asked.after),
        alpha,
        number,
        asked.discordance,
        detectable_difference(len(asked.before), asked.discordance, alpha, rules.power),
        parts,
        extras,
        tuple(notes),
    )


def compare_means(
    before: Sequence[float], after: Sequence[float], alpha: float, resamples: int, seed: int
) -> tuple[Estimate, float]:
    """Return the mean paired difference with its BCa interval at 1 - alpha, and the two-sided permutation p.

    A small alpha needs many resamples to be told apart from a smaller one. They are taken where `resamples` of them do
    not say already that p is far above it. An alpha that the most resamples never come below (from comparison 124 on at
    95 %) is met by a bound of the exact p, which is larger, so that the chance of error stays below alpha.
    """
    enough = resamples_for(alpha, resamples)
    p_value = paired_p_value(before, after, resamples, seed)
    if enough > resamples and p_value < 5 * alpha + 10 / resamples:
        p_value = paired_p_value(before, after, enough, seed)
    if alpha <= 2 / (enough + 1):
        p_value = min(p_value, sign_flip_bound(before, after))
    # With fewer, the interval would be that of a larger alpha: its ends are single resamples.
    return paired_difference(before, after, 1.0 - alpha, enough, seed), p_value


def _refusals(parts: Sequence[Slice], extras: Sequence[Extra], rules: GateSettings) -> list[str]:
    """Why a challenger that wins on the whole is not promoted."""
    found = []
    lost = [one.name for one in parts if one.status == "loss"]
    unsure = [one.name for one in parts if one.status == "unclear"]
    if lost and rules.slice_rule != "tell":
        found.append(
            f"it loses more than {rules.slice_margin:g} in {slices.few(lost)} (gate.slice_rule: {rules.slice_rule})"
        )
    if unsure and rules.slice_rule == "refuse-doubt":
        where = f"{slices.few(unsure)} (gate.slice_rule: refuse-doubt)"
        found.append(f"a loss of more than {rules.slice_margin:g} cannot be ruled out in {where}")
    found += [
        f"it is not shown to take at most {one.limit:g} more {one.what} a dialogue (gate.extra_{one.key})"
        for one in extras
        if one.over
    ]
    return found


def _numbers(difference: Estimate, p_value: float, alpha: float) -> str:
    """The comparison in numbers, with the p-value in words."""
    return (
        f"mean reward {difference.value:+.3f} on the {difference.n:,} test tasks that both attempted, "
        f"{percent(difference.confidence)} interval {difference.low:+.3f} to {difference.high:+.3f}; two equally good "
        f"agents differ this much {times(p_value)}, p = {p_value:.2g}, and the limit is {alpha:.2g}"
    )


def _spent(rules: GateSettings, alpha: float, confidence: float, number: int) -> list[str]:
    """Say which comparison this is, and what that costs."""
    if rules.spending == "none":
        return []
    start = f"This is comparison {number} with this champion on these test tasks"
    if number == 1:
        return [f"{start}; each further one has a lower limit, so that luck does not win in the end."]
    return [
        f"{start}: its limit is {alpha:.2g} and not the first one's {level(rules, confidence, 1):.2g}, because "
        "whoever tries often is lucky at some time; fresh test tasks (`tasks.test_first`) begin with the first limit "
        "again."
    ]


def _sight(asked: Question, rules: GateSettings, alpha: float) -> str:
    """Say which difference these tasks can show, and how many the smallest one of interest needs."""
    count, spread = len(asked.before), asked.discordance
    if spread == 0.0:
        return f"The two versions reach the same on each of the {count:,} tasks."
    seen = detectable_difference(count, spread, alpha, rules.power)
    shown = (
        f"On {count:,} tasks a true difference of {seen:.3f} or more is seen with a chance of {100 * rules.power:.6g} %"
        if seen is not None
        else f"On {count:,} tasks no difference at all can be seen"
    )
    wanted = required_tasks(rules.smallest_difference, spread, alpha, rules.power)
    return f"{shown}; {rules.smallest_difference:g} (gate.smallest_difference) needs about {wanted:,} tasks."


def times(p_value: float) -> str:
    """A p-value in words: how often chance alone does as much."""
    if p_value >= 0.5:
        return "more often than not"
    if p_value < 1e-9:
        return "less than once in 1,000,000,000 comparisons"
    return f"about once in {round(1 / p_value):,} comparisons"


def percent(confidence: float) -> str:
    """A level of confidence as people write it, with the digits that tell it from 100 %."""
    digits = 0
    while digits < 6 and round(100 * confidence, digits) >= 100:
        digits += 1
    return f"{100 * confidence:.{digits}f} %"


def as_row(decision: Decision) -> dict[str, Any]:
    """Return what is kept of a comparison with the champion's version: numbers, no sentences."""
    return {
        "promote": decision.promote,
        "difference": round(decision.difference, 6),
        "p_value": decision.p_value,
        "alpha": decision.alpha,
        "discordance": round(decision.discordance, 6),
        "n": decision.n,
    }
