"""From the variants' results to rows: rates with intervals that know tasks and trainings, and paired differences.

Every seed has tasks and a training of its own. Intervals are the hierarchical bootstrap's over seeds and their tasks,
with the t interval over the seeds' own values beside them; a difference is paired by (seed, task).
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from sweetrl.evaluation.metrics import summarize_policy
from sweetrl.evaluation.statistics import paired_difference
from sweetrl.reproduce.hierarchical import (
    Hierarchical,
    hierarchical_difference,
    hierarchical_mean,
    hierarchical_ratio,
)
from sweetrl.reproduce.outcomes import Outcome
from sweetrl.reproduce.variants import Variant
from sweetrl.types import Result

FEW = 100  # resamples of intervals that rows replace by hierarchical ones


class Condition(NamedTuple):
    """Under what a policy was measured: a temperature by name ("0", "0.5", "chosen"), and a user ("": the usual)."""

    temperature: str
    persona: str = ""


@dataclass(frozen=True)
class Measured:
    """What the variants of one row came to, by seed: results under each condition, and the stages' facts.

    `claims` is what claims.yaml said before the first test task; `validation` the rates on validation tasks by
    temperature, of which `chosen` was taken; `tokens` of a mean reply under each condition; `dialogues` learnt from,
    for variants that go on collecting.
    """

    variant: Variant
    results: Mapping[int, Mapping[Condition, Sequence[Result]]]
    stages: Mapping[int, Mapping[str, Any]]
    dialogues: Mapping[int, int] = field(default_factory=dict)
    chosen: Mapping[int, float] = field(default_factory=dict)
    validation: Mapping[int, Mapping[str, Mapping[str, float]]] = field(default_factory=dict)
    tokens: Mapping[int, Mapping[Condition, float]] = field(default_factory=dict)
    claims: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)

    def scored(self, condition: Condition, held_out: bool = False) -> dict[int, list[Result]]:
        """Return the results that have a reward, of the seeds that have some; `held_out`: of held-out domains only."""
        found = {
            seed: [
                one for one in results.get(condition, ()) if one.reward is not None and (one.held_out or not held_out)
            ]
            for seed, results in sorted(self.results.items())
        }
        return {seed: some for seed, some in found.items() if some}


def together(variant: Variant, outcomes: Mapping[int, Outcome]) -> Measured:
    """Put the outcomes of a variant on several seeds together."""
    found: dict[str, dict[int, Any]] = {name: {} for name in Measured.__dataclass_fields__ if name != "variant"}
    for seed, one in outcomes.items():
        summary = one.summary
        files = {
            Condition(name, said["persona"]): said
            for said in summary["measured"]
            for name in (f"{said['temperature']:g}", *(["chosen"] if said["temperature"] == summary["chosen"] else []))
        }
        found["results"][seed] = {condition: one.results[said["file"]] for condition, said in files.items()}
        found["tokens"][seed] = {condition: said["reply_tokens"] for condition, said in files.items()}
        found["stages"][seed] = {**one.training["stages"], **summary["stages"]}
        for name in ("chosen", "validation", "claims"):
            found[name][seed] = summary[name]
        if "dialogues" in one.training:
            found["dialogues"][seed] = int(one.training["dialogues"])
    return Measured(variant, **found)


def row_of(
    one: Measured, against: Measured | None, conditions: Sequence[Condition], confidence: float, resamples: int
) -> dict[str, Any]:
    """Sum a variant up; `against` is the row that it is compared with, on the seeds that both have."""
    if against is not None and against.variant.name == one.variant.name:
        against = None
    row: dict[str, Any] = {
        "variant": one.variant.name,
        "label": one.variant.label,
        "table": one.variant.table,
        "paper": list(one.variant.paper),
        "paper_pages": list(one.variant.pages),
        "seeds": sorted(one.results),
        "chosen": {seed: one.chosen[seed] for seed in sorted(one.chosen)},
        "validation": _validation(one),
        "training": _training(one),
        "at": {},
        "personas": {},
    }
    for condition in conditions:
        found = _measured_at(one, against, condition, confidence, resamples)
        if found and condition.persona:
            shown = {key: found[key] for key in ("tasks", "success", "reward", "questions")}
            row["personas"].setdefault(condition.persona, {})[condition.temperature] = shown
        elif found:
            row["at"][condition.temperature] = found
    if one.dialogues:
        row["dialogues"] = statistics.fmean(one.dialogues.values())
        row["on_the_way"] = _on_the_way(one)
    return row


def _measured_at(
    one: Measured, against: Measured | None, condition: Condition, confidence: float, resamples: int
) -> dict[str, Any] | None:
    """Everything that is told of a variant under one condition; None where it was not measured."""
    seeds = one.scored(condition)
    pooled = [result for some in seeds.values() for result in some]
    if len(pooled) < 2:
        return None

    def mean(value: Callable[[Result], float], held_out: bool = False) -> dict[str, Any] | None:
        groups = one.scored(condition, held_out).values()
        if sum(map(len, groups)) < 2:
            return None
        return told(hierarchical_mean([[value(each) for each in some] for some in groups], confidence, resamples))

    found = summarize_policy(pooled, confidence, FEW, 0) | {
        "tasks": len(pooled),
        "lost": sum(len(some.get(condition, ())) for some in one.results.values()) - len(pooled),
        "success": mean(_success),
        "reward": mean(_reward),
        "turns": mean(lambda result: result.turns),
        "questions": mean(lambda result: result.questions),
        "by_seed": {
            seed: {"success": _mean(map(_success, some)), "reward": _mean(map(_reward, some))}
            for seed, some in seeds.items()
        },
        "reply_tokens": statistics.fmean([some[condition] for some in one.tokens.values() if condition in some] or [0]),
    }
    if "premature_answers" in found:
        found["premature_answers"] = mean(lambda result: bool(result.premature))
    if any(result.questions for result in pooled):
        asked = [[(_success(each), float(each.questions)) for each in some] for some in seeds.values()]
        found["success_per_question"] = told(hierarchical_ratio(asked, confidence, resamples))
    if any(result.held_out for result in pooled):
        found["held_out"] = {"success": mean(_success, True), "reward": mean(_reward, True)}
    for place, held_out in ((found, False), (found.get("held_out", {}), True)):
        gap = difference(one, against, condition, confidence, resamples, held_out) if against and place else None
        if gap:
            place["difference"] = {name: value.as_dict() for name, value in gap.items()}
    return found


def difference(
    one: Measured,
    other: Measured,
    condition: Condition,
    confidence: float,
    resamples: int,
    held_out: bool = False,
) -> dict[str, Hierarchical] | None:
    """`one` minus `other` in success and reward, on the seeds and tasks that both finished; None for fewer than 2."""
    mine, theirs = one.scored(condition, held_out), other.scored(condition, held_out)
    pairs = []
    for seed in mine:
        other_by_task = {result.task_id: result for result in theirs.get(seed, ())}
        both = [(result, other_by_task[result.task_id]) for result in mine[seed] if result.task_id in other_by_task]
        if both:
            pairs.append(both)
    if sum(map(len, pairs)) < 2:
        return None

    def gap(value: Callable[[Result], float]) -> Hierarchical:
        sides = [[[value(pair[side]) for pair in some] for some in pairs] for side in (1, 0)]
        return hierarchical_difference(sides[0], sides[1], confidence, resamples)

    return {"success": gap(_success), "reward": gap(_reward)}


def told(estimate: Hierarchical) -> dict[str, Any]:
    """What a report says of a mean: no p-value, because nobody asks whether it is 0."""
    return {key: value for key, value in estimate.as_dict().items() if key not in ("confidence", "groups", "p_value")}


def _success(result: Result) -> float:
    return float(result.success)


def _reward(result: Result) -> float:
    return result.reward or 0.0


def _validation(one: Measured) -> dict[str, dict[str, float]]:
    """Success and reward on validation tasks at each temperature of the grid: means over the seeds."""
    names = list(dict.fromkeys(name for tried in one.validation.values() for name in tried))
    return {
        name: {key: _mean(tried[name][key] for tried in one.validation.values() if name in tried) for key in _RATES}
        for name in sorted(names, key=float)
    }


_RATES = ("success", "reward", "questions")
# What is shown of a variant's training: name -> (stage, metric), each the mean over the seeds.
_SHOWN = {
    "critic_accuracy": ("train-critic", "final/accuracy"),
    "needed_over_hinted": ("rank", "ranked/needed_over_hinted"),
    "needed_over_plausible": ("rank", "ranked/needed_over_plausible"),
    "needed_over_irrelevant": ("rank", "ranked/needed_over_irrelevant"),
    "needed_over_repeated": ("rank", "ranked/needed_over_repeated"),
    "needed_over_premature": ("rank", "ranked/needed_over_premature"),
    "better_over_worse": ("rank", "ranked/better_over_worse"),
    "pairs": ("train-policy", "pairs"),
    "policy_accuracy": ("train-policy", "final/accuracy"),
}


def _training(one: Measured) -> dict[str, float]:
    found = {}
    for name, (stage, metric) in _SHOWN.items():
        values = [facts[stage]["metrics"][metric] for facts in one.stages.values() if metric in _metrics(facts, stage)]
        if values:
            found[name] = _mean(values)
    spent = [{stage: float(said["seconds"]) for stage, said in facts.items()} for facts in one.stages.values()]
    found["seconds"] = _mean(sum(seconds.values()) for seconds in spent)
    found["measuring_seconds"] = _mean(seconds.get("evaluate", 0.0) for seconds in spent)
    return found


def _on_the_way(one: Measured) -> list[float]:
    """Mean success on training tasks over the seeds: at the start of each later iteration, or in GRPO's last fifth."""
    found = []
    for facts in one.stages.values():
        metrics = {**_metrics(facts, "train-policy"), **_metrics(facts, "iterate")}
        iterations = sorted(name for name in metrics if name.startswith("iteration_") and name.endswith("/success"))
        found.append([metrics[name] for name in iterations or ["final/success"] if name in metrics])
    return [statistics.fmean(values) for values in zip(*found, strict=False)]


def _metrics(facts: Mapping[str, Any], stage: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = facts.get(stage, {}).get("metrics", {})
    return found


def _mean(values: Iterable[float]) -> float:
    return statistics.fmean([float(value) for value in values] or [0.0])


def picking_gap(
    better: Iterable[Mapping[str, Any]], worse: Iterable[Mapping[str, Any]], confidence: float, resamples: int
) -> dict[str, Any]:
    """How much more often one critic's picks succeed than another's: the mean over all N > 1, paired by task.

    The points are those of Best-of-N; tasks that either lost at any N are left out.
    """
    mine, theirs = _picked(better), _picked(worse)
    tasks = [task for task in mine if task in theirs]
    before, after = ([statistics.fmean(one[task]) for task in tasks] for one in (theirs, mine))
    return paired_difference(before, after, confidence, resamples, 0).as_dict()


def _picked(points: Iterable[Mapping[str, Any]]) -> dict[str, list[bool]]:
    """By task the successes at N > 1."""
    known = list(points)
    lost = {one["task_id"] for one in known if one["reward"] is None}
    found: dict[str, list[bool]] = {}
    for one in known:
        if one["n"] > 1 and one["task_id"] not in lost:
            found.setdefault(one["task_id"], []).append(one["success"])
    return found
