"""What every policy did, task by task, in one file that git keeps: outcomes.parquet of a profile.

Folders of trained variants are large and are not in git; what they came to is small. The report writes this file, and
takes from it what is not in measured/ here: rows can be added on another day or machine, and intervals computed anew,
without training again. A row for each (variant, seed, file of measured/NAME/SEED/, task); the file's metadata
`sweetrl.parts` says the rest as JSON: {"parts": a list of {variant, seed, summary, training}, "claims": what
claims.yaml said, by the SHA-256 that a summary has in its place}.

From these to rows: every seed has tasks and a training of its own. Intervals are the hierarchical bootstrap's over
seeds and their tasks, with the t interval over the seeds' own values beside them; differences are paired by task.
"""

from __future__ import annotations

import json
import platform
import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

from sweetrl.errors import UserError
from sweetrl.evaluation.metrics import read_results, summarize_policy
from sweetrl.evaluation.statistics import paired_difference
from sweetrl.io import atomic_path, read_json
from sweetrl.reproduce.hierarchical import Hierarchical, hierarchical_mean
from sweetrl.reproduce.variants import Variant
from sweetrl.tracking.runs import git_state
from sweetrl.types import Result

OUTCOMES = Path("outcomes.parquet")
SUMMARY = "summary.json"
MEASURED = "measured"  # folder of what policies did, beside the folders of what was trained
_PARTS = b"sweetrl.parts"
FEW = 100  # resamples of intervals that rows replace by hierarchical ones
Key = tuple[str, int]  # of a variant, and a seed
_success, _reward = attrgetter("success"), attrgetter("reward")


class Condition(NamedTuple):
    """Under what a policy was measured: a temperature by name ("0", "0.5", "chosen"), and a user ("": the usual)."""

    temperature: str
    persona: str = ""


@dataclass(frozen=True)
class Outcome:
    """What one variant came to on one seed: both stages' summaries, and the results by the name of their file.

    `summary` says what each file is (`measured`), and `origin`, where it was measured.
    """

    summary: Mapping[str, Any]
    training: Mapping[str, Any]
    results: Mapping[str, Sequence[Result]]

    @property
    def stages(self) -> dict[str, Any]:
        """The facts of all stages by name."""
        return {**self.training["stages"], **self.summary["stages"]}

    def measured(self, condition: Condition) -> Mapping[str, Any] | None:
        """Return what `summary` says of the file of results under `condition`; None where there is none."""
        chosen = condition.temperature == "chosen"
        for row in self.summary["measured"]:
            at = row["temperature"]
            same = at == self.summary["chosen"] if chosen else f"{at:g}" == condition.temperature
            if same and row["persona"] == condition.persona:
                return row
        return None


def origin() -> dict[str, str]:
    """Return when, on which commit and on which processor this is measured."""
    processors = Path("/proc/cpuinfo")
    text = processors.read_text(encoding="utf-8") if processors.exists() else ""
    model = re.search(r"model name\s*:\s*(.*)", text)
    commit, changed = git_state()
    return {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "commit": commit[:12] + (" with changes" if changed else ""),
        "processor": model[1].strip() if model else platform.processor() or platform.machine(),
    }


def measured_outcome(variant: Variant, seed: int, folder: Path = Path()) -> Outcome | None:
    """Read what `variant` and `measure` have left in the profile's folder; None where nothing was measured."""
    trained = folder / variant.folder / variant.name / str(seed) / SUMMARY
    place = folder / MEASURED / variant.name / str(seed)
    if not (place / SUMMARY).exists():
        return None
    summary = read_json(place / SUMMARY)
    training = read_json(trained) if trained.exists() else {"stages": {}}
    files = [row["file"] for row in summary["measured"]]
    return Outcome(summary, training, {file: read_results(place / file) for file in files})


def write_outcomes(path: Path, outcomes: Mapping[Key, Outcome]) -> None:
    """Write them as Parquet (zstd), sorted: equal outcomes give equal bytes."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    ordered = sorted(outcomes.items())
    rows = [
        {"variant": variant, "seed": seed, "file": file, **asdict(result)}
        for (variant, seed), outcome in ordered
        for file, results in sorted(outcome.results.items())
        for result in results
    ]
    claims, parts = {}, []
    for (variant, seed), outcome in ordered:
        record = outcome.summary["claims"]
        claims[record["sha256"]] = record
        summary = {**outcome.summary, "claims": record["sha256"]}
        parts.append({"variant": variant, "seed": seed, "summary": summary, "training": outcome.training})
    metadata = json.dumps({"parts": parts, "claims": claims}, sort_keys=True)
    table = pa.Table.from_pylist(rows)
    with (
        atomic_path(path, shared=True) as temporary,
        pq.ParquetWriter(temporary, table.schema, compression="zstd", compression_level=19) as writer,
    ):
        writer.write_table(table)
        writer.add_key_value_metadata({_PARTS: metadata})  # as metadata of the table it would be stored twice


def read_outcomes(path: Path) -> dict[Key, Outcome]:
    """Return what a file holds, nothing if there is none; what is no such file is a UserError that names it."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not path.exists():
        return {}
    try:
        file = pq.ParquetFile(path)
        table, metadata = file.read(), json.loads(file.metadata.metadata[_PARTS])
        results: dict[Key, dict[str, list[Result]]] = {}
        names = [field.name for field in fields(Result)]
        for row in table.to_pylist():
            files = results.setdefault((row["variant"], row["seed"]), {})
            files.setdefault(row["file"], []).append(Result(**{name: row[name] for name in names}))
        outcomes = {}
        for part in metadata["parts"]:
            key, summary = (part["variant"], part["seed"]), part["summary"]
            claims = metadata["claims"][summary["claims"]]
            outcomes[key] = Outcome({**summary, "claims": claims}, part["training"], results.get(key, {}))
        return outcomes
    except (pa.ArrowException, OSError, KeyError, TypeError, ValueError) as error:
        raise UserError(f"{path}: these are no outcomes of a reproduction; restore the file from git.") from error


# Rows with intervals, and paired differences


@dataclass(frozen=True)
class Measured:
    """What the variants of one row came to, by seed."""

    variant: Variant
    outcomes: Mapping[int, Outcome]

    @property
    def stages(self) -> dict[int, dict[str, Any]]:
        """The facts of all stages."""
        return {seed: outcome.stages for seed, outcome in self.outcomes.items()}

    @property
    def claims(self) -> dict[int, Mapping[str, Any]]:
        """What claims.yaml said before the first test task."""
        return {seed: outcome.summary["claims"] for seed, outcome in self.outcomes.items()}

    def results(self, condition: Condition) -> dict[int, Sequence[Result]]:
        """Return the results under a condition, of the seeds that have some."""
        rows = {seed: outcome.measured(condition) for seed, outcome in sorted(self.outcomes.items())}
        return {seed: self.outcomes[seed].results[row["file"]] for seed, row in rows.items() if row}

    def scored(self, condition: Condition, held_out: bool = False) -> dict[int, list[Result]]:
        """Return the results that have a reward, of the seeds that have some; `held_out`: of held-out domains only."""
        scored = {
            seed: [each for each in results if each.reward is not None and (each.held_out or not held_out)]
            for seed, results in self.results(condition).items()
        }
        return {seed: results for seed, results in scored.items() if results}


def row_of(
    measured: Measured, against: Measured | None, conditions: Sequence[Condition], confidence: float, resamples: int
) -> dict[str, Any]:
    """Sum a variant up; `against` is the row that it is compared with, on the seeds that both have."""
    variant, outcomes = measured.variant, sorted(measured.outcomes.items())
    if against is not None and against.variant.name == variant.name:
        against = None
    row: dict[str, Any] = {
        "variant": variant.name,
        "label": variant.label,
        "table": variant.table,
        "paper": list(variant.paper),
        "paper_pages": list(variant.pages),
        "seeds": [seed for seed, _ in outcomes],
        "chosen": {seed: outcome.summary["chosen"] for seed, outcome in outcomes},
        "validation": _validation(measured),
        "training": _training(measured),
        "at": {},
        "personas": {},
    }
    for condition in conditions:
        rates = _rates_at(measured, against, condition, confidence, resamples)
        if rates and condition.persona:
            shown = {key: rates[key] for key in ("tasks", "success", "reward", "questions")}
            row["personas"].setdefault(condition.persona, {})[condition.temperature] = shown
        elif rates:
            row["at"][condition.temperature] = rates
    trained = [outcome.training for _, outcome in outcomes if "dialogues" in outcome.training]
    if trained:
        row |= {"dialogues": _mean(training["dialogues"] for training in trained), "on_the_way": _on_the_way(measured)}
    return row


def _rates_at(
    measured: Measured, against: Measured | None, condition: Condition, confidence: float, resamples: int
) -> dict[str, Any] | None:
    """Everything that a report says of a variant under one condition; None where it was not measured."""
    seeds, rows = measured.scored(condition), [outcome.measured(condition) for outcome in measured.outcomes.values()]
    pooled = [result for results in seeds.values() for result in results]
    if len(pooled) < 2:
        return None

    def mean(value: Callable[[Result], float], held_out: bool = False) -> dict[str, Any] | None:
        groups = measured.scored(condition, held_out).values()
        if sum(map(len, groups)) < 2:
            return None
        values = [[value(result) for result in results] for results in groups]
        return reported(hierarchical_mean(values, confidence, resamples))

    rates = summarize_policy(pooled, confidence, FEW, 0) | {
        "tasks": len(pooled),
        "lost": sum(map(len, measured.results(condition).values())) - len(pooled),
        "success": mean(_success),
        "reward": mean(_reward),
        "turns": mean(lambda result: result.turns),
        "questions": mean(lambda result: result.questions),
        "by_seed": {
            seed: {"success": _mean(map(_success, results)), "reward": _mean(map(_reward, results))}
            for seed, results in seeds.items()
        },
        "reply_tokens": _mean(row["reply_tokens"] for row in rows if row),
    }
    if "premature_answers" in rates:
        rates["premature_answers"] = mean(lambda result: bool(result.premature))
    if any(result.questions for result in pooled):
        successes = [[(_success(each), float(each.questions)) for each in results] for results in seeds.values()]
        rates["success_per_question"] = reported(hierarchical_mean(successes, confidence, resamples))
    if any(result.held_out for result in pooled):
        rates["held_out"] = {"success": mean(_success, True), "reward": mean(_reward, True)}
    for place, held_out in ((rates, False), (rates.get("held_out", {}), True)):
        gap = difference(measured, against, condition, confidence, resamples, held_out) if against and place else None
        if gap:
            place["difference"] = {name: value.as_dict() for name, value in gap.items()}
    return rates


def difference(
    better: Measured,
    worse: Measured,
    condition: Condition,
    confidence: float,
    resamples: int,
    held_out: bool = False,
) -> dict[str, Hierarchical] | None:
    """`better` minus `worse` in success and reward, on the seeds and tasks that both have; None for fewer than 2."""
    minuends, subtrahends = better.scored(condition, held_out), worse.scored(condition, held_out)
    seeds = []
    for seed, results in minuends.items():
        by_task = {result.task_id: result for result in subtrahends.get(seed, ())}
        if pairs := [(result, by_task[result.task_id]) for result in results if result.task_id in by_task]:
            seeds.append(pairs)
    if sum(map(len, seeds)) < 2:
        return None

    def gap(value: Callable[[Result], float]) -> Hierarchical:
        gaps = [[value(minuend) - value(subtrahend) for minuend, subtrahend in pairs] for pairs in seeds]
        return hierarchical_mean(gaps, confidence, resamples)

    return {"success": gap(_success), "reward": gap(_reward)}


def reported(estimate: Hierarchical) -> dict[str, Any]:
    """What a report says of a mean: no p-value, because nobody asks whether it is 0."""
    return {key: value for key, value in estimate.as_dict().items() if key not in ("confidence", "groups", "p_value")}


def _validation(measured: Measured) -> dict[str, dict[str, float]]:
    """Success and reward on validation tasks at each temperature of the grid: means over the seeds."""
    seeds = [outcome.summary["validation"] for outcome in measured.outcomes.values()]
    names = sorted({name for tried in seeds for name in tried}, key=float)
    return {
        name: {key: _mean(tried[name][key] for tried in seeds if name in tried) for key in _RATES} for name in names
    }


WORSE = ("hinted", "plausible", "irrelevant", "repeated", "premature")  # than needed, among verdicts on replies
_RATES = ("success", "reward", "questions")
# What is shown of a variant's training: name -> (stage, metric), each the mean over the seeds.
_SHOWN = {
    "critic_accuracy": ("train-critic", "final/accuracy"),
    **{f"needed_over_{other}": ("rank", f"ranked/needed_over_{other}") for other in WORSE},
    "better_over_worse": ("rank", "ranked/better_over_worse"),
    "pairs": ("train-policy", "pairs"),
    "policy_accuracy": ("train-policy", "final/accuracy"),
}


def _training(measured: Measured) -> dict[str, float]:
    means, seeds = {}, measured.stages.values()
    for name, (stage, metric) in _SHOWN.items():
        values = [_metrics(facts, stage)[metric] for facts in seeds if metric in _metrics(facts, stage)]
        if values:
            means[name] = _mean(values)
    spent = [{stage: float(facts["seconds"]) for stage, facts in stages.items()} for stages in seeds]
    means["seconds"] = _mean(sum(seconds.values()) for seconds in spent)
    means["measuring_seconds"] = _mean(seconds.get("evaluate", 0.0) for seconds in spent)
    return means


def _on_the_way(measured: Measured) -> list[float]:
    """Mean success on training tasks over the seeds: at the start of each later iteration, or in GRPO's last fifth."""
    seeds = []
    for facts in measured.stages.values():
        metrics = _metrics(facts, "train-policy") | _metrics(facts, "iterate")
        iterations = [name for name in metrics if name.startswith("iteration_") and name.endswith("/success")]
        iterations.sort(key=lambda name: int(name.removeprefix("iteration_").removesuffix("/success")))
        seeds.append([metrics[name] for name in iterations or ["final/success"] if name in metrics])
    return [statistics.fmean(values) for values in zip(*seeds, strict=False)]


def _metrics(facts: Mapping[str, Any], stage: str) -> dict[str, Any]:
    return dict(facts.get(stage, {}).get("metrics", {}))


def _mean(values: Iterable[float]) -> float:
    return statistics.fmean([float(value) for value in values] or [0.0])


def picking_gap(
    better: Iterable[Mapping[str, Any]], worse: Iterable[Mapping[str, Any]], confidence: float, resamples: int
) -> dict[str, Any]:
    """How much more often one critic's picks succeed than another's: the mean over all N > 1, paired by task.

    The points are those of Best-of-N; tasks that either lost at any N are left out.
    """
    minuend, subtrahend = _picked(better), _picked(worse)
    tasks = [task for task in minuend if task in subtrahend]
    before, after = ([_mean(successes[task]) for task in tasks] for successes in (subtrahend, minuend))
    return paired_difference(before, after, confidence, resamples, 0).as_dict()


def _picked(points: Iterable[Mapping[str, Any]]) -> dict[str, list[bool]]:
    """By task the successes at N > 1."""
    rows = list(points)
    lost = {row["task_id"] for row in rows if row["reward"] is None}
    successes: dict[str, list[bool]] = {}
    for row in rows:
        if row["n"] > 1 and row["task_id"] not in lost:
            successes.setdefault(row["task_id"], []).append(row["success"])
    return successes
