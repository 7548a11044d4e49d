"""From the variants' results to rows: rates with intervals over all seeds' tasks, and paired differences.

Every seed has tasks of its own, so the tasks of all seeds are pooled; a difference is paired by (seed, task). The
values of the single seeds stand beside the interval, which knows the tasks' spread and not that of training.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sweetrl.evaluation.metrics import Result, read_results, summarize_policy
from sweetrl.evaluation.statistics import mcnemar_exact, paired_difference
from sweetrl.io import read_json
from sweetrl.reproduce.run import RESULTS, SUMMARY
from sweetrl.reproduce.variants import Variant


@dataclass(frozen=True)
class Measured:
    """What the variants of one row came to: results by seed, and the stages' facts by seed.

    `dialogues` learnt from, by seed: for variants that go on collecting.
    """

    variant: Variant
    results: Mapping[int, Sequence[Result]]
    stages: Mapping[int, Mapping[str, Any]]
    dialogues: Mapping[int, int] = field(default_factory=dict)


def read_variant(variant: Variant, seeds: Iterable[int], folder: Path = Path()) -> Measured:
    """Read the seeds of a variant that are there, in the profile's folder."""
    results, stages, dialogues = {}, {}, {}
    for seed in seeds:
        place = folder / variant.folder / variant.name / str(seed)
        if (place / SUMMARY).exists():
            summary = read_json(place / SUMMARY)
            results[seed] = read_results(place / RESULTS)
            stages[seed] = summary["stages"]
            if "dialogues" in summary:
                dialogues[seed] = int(summary["dialogues"])
    return Measured(variant, results, stages, dialogues)


def row_of(one: Measured, against: Measured | None, confidence: float, resamples: int) -> dict[str, Any]:
    """Sum a variant up; `against` is the row that it is compared with, on the seeds that both have."""
    scored = {seed: [r for r in results if r.reward is not None] for seed, results in one.results.items()}
    pooled = [result for seed in sorted(scored) for result in scored[seed]]
    row: dict[str, Any] = {
        "variant": one.variant.name,
        "label": one.variant.label,
        "table": one.variant.table,
        "paper": list(one.variant.paper),
        "seeds": sorted(scored),
        "tasks": len(pooled),
        "lost": sum(len(results) for results in one.results.values()) - len(pooled),
    }
    if not pooled:
        return row
    row |= summarize_policy(pooled, confidence, resamples, 0)
    row["success_by_seed"] = {seed: _mean(r.success for r in scored[seed]) for seed in sorted(scored)}
    row["reward_by_seed"] = {seed: _mean(r.reward or 0.0 for r in scored[seed]) for seed in sorted(scored)}
    row["training"] = _training(one)
    if one.dialogues:
        row["dialogues"] = statistics.fmean(one.dialogues.values())
        row["on_the_way"] = _on_the_way(one)
    if against is not None and against.variant.name != one.variant.name:
        row["difference"] = difference(one, against, confidence, resamples)
    return row


def difference(one: Measured, other: Measured, confidence: float, resamples: int) -> dict[str, Any] | None:
    """`one` minus `other` on the tasks that both finished: success (BCa over tasks, exact McNemar) and tests passed."""
    pairs = [
        (mine, theirs)
        for seed in sorted(one.results.keys() & other.results.keys())
        for mine, theirs in _paired(one.results[seed], other.results[seed])
    ]
    if len(pairs) < 2:
        return None
    mine, theirs = [a for a, _ in pairs], [b for _, b in pairs]
    wins = [r.success for r in theirs], [r.success for r in mine]
    rewards = [r.reward or 0.0 for r in theirs], [r.reward or 0.0 for r in mine]
    return {
        "tasks": len(pairs),
        "success": paired_difference(*wins, confidence, resamples, 0).as_dict()
        | {"p_value": mcnemar_exact(*wins).p_value},
        "reward": paired_difference(*rewards, confidence, resamples, 0).as_dict(),
    }


def _paired(mine: Sequence[Result], theirs: Sequence[Result]) -> list[tuple[Result, Result]]:
    known = {r.task_id: r for r in theirs if r.reward is not None}
    return [(r, known[r.task_id]) for r in mine if r.reward is not None and r.task_id in known]


# What is shown of a variant's training: name -> (stage, metric), each the mean over the seeds.
_SHOWN = {
    "critic_accuracy": ("train-critic", "final/accuracy"),
    "needed_over_plausible": ("rank", "ranked/needed_over_plausible"),
    "needed_over_irrelevant": ("rank", "ranked/needed_over_irrelevant"),
    "needed_over_repeated": ("rank", "ranked/needed_over_repeated"),
    "needed_over_premature": ("rank", "ranked/needed_over_premature"),
    "better_over_worse": ("rank", "ranked/better_over_worse"),
    "pairs": ("train-policy", "pairs"),
    "policy_accuracy": ("train-policy", "final/accuracy"),
    "reply_tokens": ("evaluate", "reply_tokens"),
}


def _training(one: Measured) -> dict[str, float]:
    found = {}
    for name, (stage, metric) in _SHOWN.items():
        values = [facts[stage]["metrics"][metric] for facts in one.stages.values() if metric in _metrics(facts, stage)]
        if values:
            found[name] = statistics.fmean(values)
    found["seconds"] = statistics.fmean(
        [sum(stage["seconds"] for stage in facts.values()) for facts in one.stages.values()] or [0.0]
    )
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


# The paper's claims: (better, worse, in words).
CLAIMS = (
    ("sweet", "multi-turn-dpo", "SWEET-RL is above Multi-Turn DPO"),
    ("multi-turn-dpo", "rft", "Multi-Turn DPO is above Rejection Fine-Tuning"),
    ("rft", "zero-shot", "Rejection Fine-Tuning is above zero-shot"),
    ("sweet", "no-information", "training-time information helps the critic"),
    ("sweet", "regression-head", "log-ratios are above a regression head"),
    ("sweet", "value-head", "a turn-wise advantage is above a value function"),
    ("sweet", "no-normalisation", "normalising by length is needed"),
    ("sweet", "random", "the ranking matters: SWEET-RL is above a random ranking"),
    ("oracle", "sweet", "a better critic would help: an oracle's ranking is above the critic's"),
    ("sweet-third", "dpo-third", "with a third of the tasks, too, SWEET-RL is above Multi-Turn DPO"),
    ("large-sweet", "large-multi-turn-dpo", "on a small model's data, too, SWEET-RL is above Multi-Turn DPO"),
    ("large-sweet", "large-zero-shot", "a small model's data make a larger one better"),
    ("sweet-iterations", "sweet", "beyond the paper: further iterations with the policy so far help"),
    ("sweet", "grpo", "beyond the paper: SWEET-RL is above on-policy GRPO with as many dialogues"),
)


def claims(
    found: Mapping[str, Measured], confidence: float, resamples: int, measure: str = "success"
) -> list[dict[str, Any]]:
    """Each claim with the paired difference (better minus worse) in `measure` and what it says of the claim."""
    rows = []
    for better, worse, words in CLAIMS:
        if better in found and worse in found:
            measured = difference(found[better], found[worse], confidence, resamples)
            rows.append({"claim": words, "difference": measured, "verdict": verdict(measured, measure)})
    return rows


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
            # Points of an earlier version have a reward only, and 1 was success.
            found.setdefault(one["task_id"], []).append(one.get("success", one["reward"] >= 1.0))
    return found


def verdict(found: Mapping[str, Any] | None, measure: str = "success") -> str:
    """What a paired difference in `measure` ("success", or "reward": the reward) says of "it is above zero"."""
    if found is None:
        return "not measured"
    gap = found[measure]
    if gap["low"] > 0:
        return "confirmed"
    return "refuted" if gap["high"] < 0 else "open"


__all__ = ["CLAIMS", "Measured", "claims", "difference", "picking_gap", "read_variant", "row_of", "verdict"]
