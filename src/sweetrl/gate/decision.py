"""Whether a challenger becomes champion, and why, in sentences that need no book of statistics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sweetrl.config.settings import GateSettings
from sweetrl.errors import UserError
from sweetrl.evaluation.report import Tone, fill, harm, verdicts
from sweetrl.evaluation.statistics import Estimate, paired_difference, paired_p_value, sign_flip_bound, t_interval
from sweetrl.gate import slices
from sweetrl.gate.power import detectable_difference, level, required_tasks, resamples_for
from sweetrl.gate.slices import Slice, compare_slices

WORDS = {"safe": "ruled out", "loss": "shown", "unclear": "cannot be told"}  # of a slice's status, on the page


@dataclass(frozen=True)
class Measured:
    """One version on the test tasks, everything by task id: `rewards`, `turns` (the agent's), `tokens` (its own).

    `turns` and `tokens` are empty where they are not known. `groups`: column -> task id -> group, what can be sliced.
    `evaluation` is its evaluation.json, which compares it with its base.
    """

    rewards: Mapping[str, float]
    turns: Mapping[str, float] = field(default_factory=dict)
    tokens: Mapping[str, float] = field(default_factory=dict)
    groups: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    evaluation: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class CostDifference:
    """One cost a dialogue: `what` ("agent turns", ...), its means, and the ends of the difference's interval.

    `limit` is the most that is allowed (None: any), `over` whether more than that cannot be ruled out.
    """

    what: str
    key: str
    champion: float
    challenger: float
    low: float
    high: float
    limit: float | None
    difference: float
    over: bool


@dataclass(frozen=True)
class Decision:
    """Whether the challenger becomes champion, and why.

    `difference` is the mean reward of challenger minus champion over the `n` tasks that both attempted, `interval` its
    two-sided BCa interval at `confidence`, `p_value` the two-sided paired permutation p, which must be below `alpha`.
    `reason` is the decision in one sentence, `notes` are the further ones: the base, what was spent, what can be seen,
    slices, costs. `harm` are the changes of the measures in which the challenger is worse than its base.
    """

    promote: bool
    reason: str
    difference: float = 0.0
    interval: tuple[float, float] = (0.0, 0.0)
    n: int = 0
    p_value: float = 1.0
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
    harm: str = ""

    @property
    def tone(self) -> Tone:
        """What colour the decision has: red where the challenger is worse than its base or than the champion."""
        worse = self.harm or (self.interval[1] < 0.0 and self.p_value < self.alpha)
        return "better" if self.promote else "worse" if worse else "open"

    @property
    def verdict(self) -> str:
        """The reason and the notes as one text."""
        return " ".join([self.reason, *self.notes])


@dataclass(frozen=True)
class Pairing:
    """A comparison that has not been made: what both versions are worth (`before`, `after`) on their common `tasks`."""

    champion: Measured
    challenger: Measured
    tasks: list[str]
    before: list[float]
    after: list[float]

    @property
    def discordance(self) -> float:
        """The mean squared difference on a task: how much the two differ, and not which of them is better."""
        return sum((new - old) ** 2 for old, new in zip(self.before, self.after, strict=True)) / len(self.before)


def pair_versions(champion: Measured, challenger: Measured, rules: GateSettings) -> Pairing:
    """Pair two versions on the tasks that both attempted.

    A dialogue lost to a failing engine or user has no reward and is nobody's failure: its task is left out for both.
    UserError where no task is left, or where the gate counts tokens that are not known.
    """
    tasks = sorted(champion.rewards.keys() & challenger.rewards.keys())
    if not tasks:
        raise UserError("there is no test task that champion and challenger both finished; evaluate both again.")
    counted = champion.tokens.keys() & challenger.tokens.keys() >= set(tasks)
    if not counted and rules.extra_tokens is not None:
        raise UserError("params.yaml: tokens are not known for `gate.extra_tokens`; evaluate both.")
    before, after = ([version.rewards[task] for task in tasks] for version in (champion, challenger))
    return Pairing(champion, challenger, tasks, before, after)


def first_decision(challenger: Measured, confidence: float = 0.95) -> Decision:
    """Decide where there is no champion yet: then the base is the opponent."""
    count, mean = len(challenger.rewards), sum(challenger.rewards.values()) / len(challenger.rewards)
    reason = f"promoted: there is no champion yet (the challenger's mean reward is {mean:.3f})."
    facts: dict[str, Any] = {"confidence": confidence, "alpha": 1.0 - confidence, "challenger_mean": mean}
    return _against_base(Decision(True, reason, n=count, **facts), challenger.evaluation)


def decide(
    paired: Pairing,
    rules: GateSettings,
    confidence: float = 0.95,
    resamples: int = 10_000,
    seed: int = 0,
    number: int = 1,
) -> Decision:
    """Decide comparison `number` with a champion on these test tasks.

    The challenger wins if the BCa interval of the mean paired difference at 1 - alpha lies above zero and the paired
    permutation test agrees (p < alpha), with alpha as `gate.spending` has it; the second condition is what holds on
    few tasks, where a bootstrap is too sure. Who wins is not promoted where slices, costs or its base forbid it.
    """
    alpha, champion, challenger = level(rules, confidence, number), paired.champion, paired.challenger
    difference, p_value = compare_means(paired.before, paired.after, alpha, resamples, seed)
    common = {task: reward for task, reward in challenger.rewards.items() if task in champion.rewards}
    gaps = {task: reward - champion.rewards[task] for task, reward in common.items()}
    parts = compare_slices(gaps, challenger.groups, rules, confidence)
    costs = compare_costs(paired, rules, confidence)
    wins = difference.low > 0.0 and p_value < alpha
    refusals = _refusals(parts, costs, rules) if wins else []
    where = f"on the {difference.n:,} test tasks that both attempted"
    numbers = in_numbers(difference, p_value, where, "two equally good agents differ")
    numbers += f", and the limit is {alpha:.2g}"
    if refusals:
        why = " and ".join(refusals)
        reason = f"not promoted: the challenger beats the champion on the whole ({numbers}), but {why}."
    elif wins:
        reason = f"promoted: the challenger beats the champion ({numbers})."
    elif difference.high < 0.0 and p_value < alpha:
        reason = f"not promoted: the challenger is worse than the champion ({numbers})."
    else:
        reason = f"not promoted: the challenger is not shown to be better than the champion ({numbers})."
    notes = [*slices.sentences(parts, rules.slice_margin), *map(_cost_sentence, costs)]
    if not wins:
        notes.append(_sight(paired, rules, alpha))
    if rules.spending != "none":
        notes.append(_spent(alpha, level(rules, confidence, 1), number))
    decision = Decision(
        wins and not refusals,
        reason,
        difference.value,
        (difference.low, difference.high),
        len(paired.tasks),
        p_value,
        1.0 - alpha,
        champion_mean=sum(paired.before) / len(paired.before),
        challenger_mean=sum(paired.after) / len(paired.after),
        slices=parts,
        costs=costs,
        notes=tuple(notes),
        alpha=alpha,
        number=number,
        discordance=paired.discordance,
        detectable=detectable_difference(len(paired.tasks), paired.discordance, alpha, rules.power),
    )
    return _against_base(decision, challenger.evaluation)


def _against_base(decision: Decision, evaluation: Mapping[str, Any]) -> Decision:
    """Hold back a version that is worse than its base in any measure, or whose reward is not shown to be better.

    A champion may have become so without being better than its base, or on another base: winning is not enough.
    """
    reward = next((each for each in verdicts(evaluation) if each.measure == "reward"), None)
    better, change = reward is not None and reward.tone == "better", f" ({reward.change})" if reward else ""
    hurt = harm(evaluation)
    why = f"the challenger is {'better' if better else 'not shown to be better'} than its base{change}"
    if not hurt and (better or not decision.promote):
        return replace(decision, notes=(_capital(why), *decision.notes))
    why = f"the challenger is worse than its base: {hurt}" if hurt else why
    notes = (_capital(decision.reason.partition(": ")[2]), *decision.notes)
    reason = f"not promoted: {why}; `python -m flows.promote --accept REASON` makes it champion all the same."
    return replace(decision, promote=False, reason=reason, notes=notes, harm=hurt)


def _capital(words: str) -> str:
    """Words as a sentence."""
    return f"{words[:1].upper()}{words[1:].rstrip('.')}."


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


def compare_costs(paired: Pairing, rules: GateSettings, confidence: float) -> tuple[CostDifference, ...]:
    """Compare what is known of both versions' dialogues on the same tasks, with Student's intervals."""
    costs = []
    for key, what, limit in (
        ("turns", "agent turns", rules.extra_turns),
        ("tokens", "generated tokens", rules.extra_tokens),
    ):
        versions = getattr(paired.champion, key), getattr(paired.challenger, key)
        if not versions[0].keys() & versions[1].keys() >= set(paired.tasks):
            continue
        interval = t_interval([versions[1][task] - versions[0][task] for task in paired.tasks], confidence)
        assert interval is not None
        old, new = (sum(values[task] for task in paired.tasks) / len(paired.tasks) for values in versions)
        over = limit is not None and interval[1] > limit
        costs.append(CostDifference(what, key, old, new, *interval, limit, new - old, over))
    return tuple(costs)


def _cost_sentence(cost: CostDifference) -> str:
    """Say what a dialogue takes more or less."""
    text = f"A dialogue takes {cost.challenger:.2f} {cost.what}, {cost.difference:+.2f} against the champion"
    if cost.limit is None:
        return f"{text}."
    words = "is not shown to keep within" if cost.over else "keeps within"
    return f"{text}; that {words} gate.extra_{cost.key} ({cost.limit:g}: with all uncertainty it is {cost.high:+.2f})."


def _refusals(parts: Sequence[Slice], costs: Sequence[CostDifference], rules: GateSettings) -> list[str]:
    """Why a challenger that wins on all tasks together is not promoted."""
    refusals = []
    for status, sentence, asking in (
        ("loss", "it loses more than {:g} in {}", ("refuse-loss", "refuse-doubt")),
        ("unclear", "a loss of more than {:g} cannot be ruled out in {}", ("refuse-doubt",)),
    ):
        names = [part.name for part in parts if part.status == status]
        if names and rules.slice_rule in asking:
            refusal = sentence.format(rules.slice_margin, slices.few(names))
            refusals.append(f"{refusal} (gate.slice_rule: {rules.slice_rule})")
    return refusals + [
        f"it is not shown to take at most {cost.limit:g} more {cost.what} a dialogue (gate.extra_{cost.key})"
        for cost in costs
        if cost.over
    ]


def in_numbers(difference: Estimate, p_value: float, where: str, who: str) -> str:
    """The comparison in numbers, with the p-value in words."""
    return (
        f"mean reward {difference.value:+.3f} {where}, {100 * difference.confidence:.6g} % interval "
        f"{difference.low:+.3f} to {difference.high:+.3f}; {who} this much {times(p_value)}, p = {p_value:.2g}"
    )


def _spent(alpha: float, first: float, number: int) -> str:
    """Say which comparison this is, and what that costs."""
    return (
        f"This is comparison {number} with this champion on these test tasks: its limit is {alpha:.2g} (of the first "
        f"{first:.2g}), and it falls with each, because whoever tries often is lucky at some time; fresh test tasks "
        "(`tasks.test_first`) begin with the first limit again."
    )


def _sight(paired: Pairing, rules: GateSettings, alpha: float) -> str:
    """Say which difference these tasks can show, and how many the smallest one of interest needs."""
    count, spread = len(paired.tasks), paired.discordance
    if spread == 0.0:
        return f"The two versions reach the same on each of the {count:,} tasks."
    seen = detectable_difference(count, spread, alpha, rules.power)
    shown = (
        f"On {count:,} tasks a true difference of {seen:.3f} or more is seen with a chance of {100 * rules.power:.6g} %"
        if seen is not None
        else f"On {count:,} tasks no difference at all can be seen"
    )
    needed = required_tasks(rules.smallest_difference, spread, alpha, rules.power)
    return f"{shown}; {rules.smallest_difference:g} (gate.smallest_difference) needs about {needed:,} tasks."


def times(p_value: float) -> str:
    """A p-value in words: how often chance alone does as much."""
    if p_value >= 0.5:
        return "more often than not"
    if p_value < 1e-9:
        return "less than once in 1,000,000,000 comparisons"
    return f"about once in {round(1 / p_value):,} comparisons"


def as_row(decision: Decision) -> dict[str, Any]:
    """Return what is kept of a comparison with the champion's version: numbers, no sentences."""
    row = {name: getattr(decision, name) for name in ("promote", "difference", "p_value", "alpha", "discordance", "n")}
    return row | {name: round(row[name], 6) for name in ("difference", "discordance")}


def render(decision: Decision, rules: GateSettings, challenger: str, champion: str) -> str:
    """Return the page of a decision about version `challenger` against version `champion` as HTML."""
    values = {"decision": decision, "rules": rules, "challenger": challenger, "champion": champion, "words": WORDS}
    values["level"] = f"{100 * decision.confidence:.6g} %"
    return fill("gate.html", values, "sweetrl.gate")
