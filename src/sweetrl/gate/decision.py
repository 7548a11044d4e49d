"""Whether a challenger becomes champion, and why, in sentences that need no book of statistics."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from sweetrl.config.settings import GateSettings
from sweetrl.errors import UserError
from sweetrl.evaluation.report import fill
from sweetrl.evaluation.statistics import Estimate, paired_difference, paired_p_value, sign_flip_bound, t_interval
from sweetrl.gate import slices
from sweetrl.gate.power import detectable_difference, level, required_tasks, resamples_for
from sweetrl.gate.slices import Slice, compare_slices

WORDS = {"safe": "ruled out", "loss": "shown", "unclear": "cannot be told"}  # of a slice's status, on the page
AGAIN = "evaluate both again (`python -m flows.evaluate MODEL/VERSION`)"


@dataclass(frozen=True)
class Measured:
    """One version on the test tasks, everything by task id: `rewards`, `turns` (the agent's), `tokens` (its own).

    `turns` and `tokens` are empty where they are not known. `groups`: column -> task id -> group, what can be sliced.
    """

    rewards: Mapping[str, float]
    turns: Mapping[str, float] = field(default_factory=dict)
    tokens: Mapping[str, float] = field(default_factory=dict)
    groups: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def on(self, tasks: Collection[str]) -> Measured:
        """Return the same on some of the tasks."""
        kept = set(tasks)

        def some(values: Mapping[str, Any]) -> dict[str, Any]:
            return {task: value for task, value in values.items() if task in kept}

        groups = {column: some(group_of) for column, group_of in self.groups.items()}
        return Measured(some(self.rewards), some(self.turns), some(self.tokens), groups)

    def worth(self, turn_price: float, token_price: float) -> dict[str, float]:
        """Return each task's reward less the price of its dialogue; `token_price` is for 1,000 tokens.

        A price of what is not known is a UserError.
        """
        for price, values, name in ((turn_price, self.turns, "turn"), (token_price, self.tokens, "token")):
            if price and not values.keys() >= self.rewards.keys():
                raise UserError(
                    f"params.yaml: `gate.{name}_price` is {price:g}, and how many {name}s the dialogues of both "
                    f"versions took is not known; {AGAIN}, or set the price to 0."
                )
        return {
            task: reward
            - (turn_price * self.turns[task] if turn_price else 0.0)
            - (token_price * self.tokens[task] / 1000.0 if token_price else 0.0)
            for task, reward in self.rewards.items()
        }


@dataclass(frozen=True)
class CostDifference:
    """One cost a dialogue: `what` ("agent turns", ...), its means, and the mean difference with its interval's ends.

    `limit` is the most that is allowed (None: any), `over` whether more than that cannot be ruled out.
    """

    what: str
    key: str
    champion: float
    challenger: float
    low: float
    high: float
    limit: float | None

    @property
    def difference(self) -> float:
        """How many more the challenger takes."""
        return self.challenger - self.champion

    @property
    def over(self) -> bool:
        """Whether the challenger is not shown to stay within the limit."""
        return self.limit is not None and self.high > self.limit


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
    costs: tuple[CostDifference, ...] = ()
    notes: tuple[str, ...] = ()
    compared: bool = True

    def as_dict(self) -> dict[str, Any]:
        """The fields as plain JSON values."""
        costs = [asdict(cost) | {"difference": cost.difference, "over": cost.over} for cost in self.costs]
        return asdict(self) | {"costs": costs}

    @property
    def verdict(self) -> str:
        """The reason and the notes as one text."""
        return " ".join([self.reason, *self.notes])


@dataclass(frozen=True)
class Pairing:
    """A comparison that has not been made: both versions on the tasks that both attempted, in equal order."""

    champion: Measured
    challenger: Measured
    before: list[float]
    after: list[float]

    @property
    def discordance(self) -> float:
        """The mean squared difference on a task: how much the two differ, and not which of them is better."""
        return sum((new - old) ** 2 for old, new in zip(self.before, self.after, strict=True)) / len(self.before)


def pair_versions(champion: Measured, challenger: Measured, rules: GateSettings) -> Pairing:
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
    worth = [version.worth(rules.turn_price, rules.token_price) for version in (old, new)]
    return Pairing(old, new, *([values[task] for task in common] for values in worth))


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


def too_few(paired: Pairing, rules: GateSettings, confidence: float, number: int) -> Decision | None:
    """Refuse to compare on too few tasks, where `rules.few_tasks` says so; None where they are enough.

    How much the versions differ from task to task is looked at, which of them is better is not, so that nothing is
    spent: a challenger that wins on few tasks wins by more than it is worth (Gelman & Carlin (2014), "Beyond power
    calculations", Perspectives on Psychological Science 9, 641-651).
    """
    alpha, count = level(rules, confidence, number), len(paired.before)
    seen = detectable_difference(count, paired.discordance, alpha, rules.power)
    if rules.few_tasks == "tell" or (seen is not None and seen <= rules.smallest_difference):
        return None
    reason = f"not promoted: nothing was compared, because there are too few test tasks. {_sight(paired, rules, alpha)}"
    return Decision(
        False, reason, 0.0, (0.0, 0.0), count, 1.0, 1.0 - alpha, None, None, alpha, number, paired.discordance, seen,
        notes=("Raise `tasks.test` and `evaluate.tasks` in params.yaml.",), compared=False,
    )  # fmt: skip


def decide(
    paired: Pairing,
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
    difference, p_value = compare_means(paired.before, paired.after, alpha, resamples, seed)
    gaps = {task: reward - paired.champion.rewards[task] for task, reward in paired.challenger.rewards.items()}
    parts = compare_slices(gaps, paired.challenger.groups, rules, confidence)
    extras = compare_costs(paired.champion, paired.challenger, rules, confidence)
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
        *cost_sentences(extras),
        *([] if wins else [_sight(paired, rules, alpha)]),
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
        sum(paired.before) / len(paired.before),
        sum(paired.after) / len(paired.after),
        alpha,
        number,
        paired.discordance,
        detectable_difference(len(paired.before), paired.discordance, alpha, rules.power),
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


def compare_costs(
    champion: Measured, challenger: Measured, rules: GateSettings, confidence: float
) -> tuple[CostDifference, ...]:
    """Compare what is known of both versions' dialogues, on the same tasks, with Student's interval of the difference.

    A limit on what is not known of one of them is a UserError.
    """
    found = []
    for key, what, before, after, limit in (
        ("turns", "agent turns", champion.turns, challenger.turns, rules.extra_turns),
        ("tokens", "generated tokens", champion.tokens, challenger.tokens, rules.extra_tokens),
    ):
        tasks = sorted(challenger.rewards)
        if len(tasks) < 2 or not all(values.keys() >= set(tasks) for values in (before, after)):
            if limit is not None:
                raise UserError(
                    f"params.yaml: `gate.extra_{key}` is {limit:g}, and how many {what} the dialogues of both versions "
                    f"took is not known; {AGAIN}, or leave it empty."
                )
            continue
        interval = t_interval([after[task] - before[task] for task in tasks], confidence)
        assert interval is not None
        old, new = (sum(values[task] for task in tasks) / len(tasks) for values in (before, after))
        found.append(CostDifference(what, key, old, new, *interval, limit))
    return tuple(found)


def cost_sentences(costs: Sequence[CostDifference]) -> list[str]:
    """Say what a dialogue takes more or less."""
    said = []
    for cost in costs:
        if cost.difference == 0.0:
            text = f"A dialogue takes as many {cost.what} as with the champion ({cost.champion:.2f})"
        else:
            change = f"{abs(cost.difference):.2f} {'more' if cost.difference > 0 else 'fewer'}"
            means = f"{cost.challenger:.2f}, not {cost.champion:.2f}"
            text = f"A dialogue takes {change} {cost.what} than with the champion ({means})"
        if cost.limit is not None:
            words = "is not shown to keep within" if cost.over else "keeps within"
            uncertain = f"with all uncertainty it is {cost.high:+.2f}"
            text += f"; that {words} gate.extra_{cost.key} ({cost.limit:g}: {uncertain})"
        said.append(text + ".")
    return said


def _refusals(parts: Sequence[Slice], extras: Sequence[CostDifference], rules: GateSettings) -> list[str]:
    """Why a challenger that wins on the whole is not promoted."""
    found = []
    lost = [part.name for part in parts if part.status == "loss"]
    unsure = [part.name for part in parts if part.status == "unclear"]
    if lost and rules.slice_rule != "tell":
        found.append(
            f"it loses more than {rules.slice_margin:g} in {slices.few(lost)} (gate.slice_rule: {rules.slice_rule})"
        )
    if unsure and rules.slice_rule == "refuse-doubt":
        where = f"{slices.few(unsure)} (gate.slice_rule: refuse-doubt)"
        found.append(f"a loss of more than {rules.slice_margin:g} cannot be ruled out in {where}")
    found += [
        f"it is not shown to take at most {cost.limit:g} more {cost.what} a dialogue (gate.extra_{cost.key})"
        for cost in extras
        if cost.over
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


def _sight(paired: Pairing, rules: GateSettings, alpha: float) -> str:
    """Say which difference these tasks can show, and how many the smallest one of interest needs."""
    count, spread = len(paired.before), paired.discordance
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


def render(decision: Decision, rules: GateSettings, challenger: str, champion: str) -> str:
    """Return the page of a decision about version `challenger` against version `champion` as HTML."""
    values = {"decision": decision, "rules": rules, "challenger": challenger, "champion": champion, "words": WORDS}
    values |= {"level": percent(decision.confidence), "tone": "better" if decision.promote else "open"}
    return fill("gate.html", values, "sweetrl.gate")
