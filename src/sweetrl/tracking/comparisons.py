"""What was compared with a version, how often, and what the next comparison could see.

These are tags of that version, which no two processes write at once.

Each comparison (and each look at a champion) has a tag of its own, `gate.comparison.<id>` (`gate.look.<id>`), that is
written before the result is known. Its number is how many there are on the same test tasks once its own tag is there:
whoever writes as the n-th sees n of them at least, so of two that come at once neither can be first when it is not,
without a lock or a compare-and-swap, which MLflow does not have. At worst both count themselves as the later one, which
errs on the safe side.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from sweetrl.config.settings import GateSettings, TrackingSettings
from sweetrl.errors import UserError
from sweetrl.file_hashes import file_hash
from sweetrl.gate.decision import Measured
from sweetrl.gate.power import detectable_difference, level, required_tasks, tasks_for_margin
from sweetrl.io import read_json
from sweetrl.paths import EVALUATION, RESULTS, TEST_TASKS
from sweetrl.tracking.registry import (
    CHAMPION,
    DIALOGUES,
    Registry,
    answering,
    model_id,
    read_rewards,
    trained_rows,
    utc_now,
)
from sweetrl.tracking.store import embedded_database, tracking_enabled

if TYPE_CHECKING:
    from mlflow.entities.model_registry import ModelVersion

Kind = Literal["comparison", "look"]
BASELINE = "baseline"  # artifacts: <key>/results.parquet, the first measurement of a champion under an evaluation key
# Columns of the results that say what became of a dialogue, and so are no groups of tasks.
OUTCOMES = (
    *("task_id", "policy", "reward", "outcome", "success", "premature", "tests_passed", "turns", "questions"),
    *("repeated", "irrelevant", "unhinted", "untold", "forgotten", "mistaken"),
)
USER = "user"


def noted(registry: Registry, version: str, kind: Kind) -> dict[str, dict[str, Any]]:
    """Return what was compared with `version` so far, oldest first: id -> what is kept of it."""
    with answering(registry, f"say what was compared with version {version}"):
        tags = registry.client.get_model_version(registry.name, version).tags
    return entries(tags, kind)


def entries(tags: Mapping[str, str], kind: Kind) -> dict[str, dict[str, Any]]:
    """Return the comparisons (or looks) among the tags of a version, oldest first."""
    prefix = f"gate.{kind}."
    rows = {key.removeprefix(prefix): json.loads(text) for key, text in tags.items() if key.startswith(prefix)}
    return dict(sorted(rows.items(), key=lambda item: (item[1]["time"], item[1].get("number", len(rows)), item[0])))


def numbered(
    registry: Registry, version: str, kind: Kind, name: str, tasks: str, facts: Mapping[str, Any]
) -> dict[str, Any]:
    """Return what is kept of the comparison `name` with `version` on the test `tasks`: its `number`, from 1, and more.

    It is counted from now on, and keeps its number. `tasks` is what the test tasks are known by, `facts` is kept, too.
    """
    row = noted(registry, version, kind).get(name, {})
    if "number" not in row:
        row = {"tasks": tasks, "time": utc_now(), **facts, **row}
        note(registry, version, kind, name, row)
        row["number"] = sum(other["tasks"] == tasks for other in noted(registry, version, kind).values())
        note(registry, version, kind, name, row)
    return row


def note(registry: Registry, version: str, kind: Kind, name: str, row: Mapping[str, Any]) -> None:
    """Write what is kept of one comparison with `version`."""
    with answering(registry, f"note a comparison with version {version}"):
        registry.tag(version, {f"gate.{kind}.{name}": json.dumps(row)})


def measured(registry: Registry, version: ModelVersion, columns: Sequence[str] = ()) -> Measured:
    """Return what a version reached by its stored results, less lost dialogues, with the groups by `columns`."""
    with tempfile.TemporaryDirectory() as name:
        return read_measured(registry.download(version, "evaluation", Path(name)), columns)


def read_measured(folder: Path, columns: Sequence[str] = ()) -> Measured:
    """Read the results (and what is known of the dialogues) in `folder`."""
    rows = {row["task_id"]: row for row in trained_rows(folder / RESULTS.name)}
    facts = read_json(folder / DIALOGUES) if (folder / DIALOGUES).exists() else {}
    facts = {task: facts[task] for task in rows if task in facts}
    columns_there = next(iter(rows.values()), {}).keys() - set(OUTCOMES)
    words = {"True": "yes", "False": "no"}  # what is true of a task, or not
    groups = {
        column: {task: words.get(text := str(row[column]), text) for task, row in rows.items()}
        for column in columns
        if column in columns_there
    }
    if USER in columns and len(facts) == len(rows):
        groups[USER] = {task: dialogue["user"] for task, dialogue in facts.items()}
    return Measured(
        {task: float(row["reward"]) for task, row in rows.items()},
        {task: float(row["turns"]) for task, row in rows.items() if "turns" in row},
        {task: float(dialogue["tokens"]) for task, dialogue in facts.items() if dialogue["tokens"] is not None},
        groups,
        read_json(folder / EVALUATION.name),
    )


def baseline(registry: Registry, version: ModelVersion, key: str) -> dict[str, float] | None:
    """Return a champion's first measured rewards under the evaluation `key`; None where there is none."""
    if f"gate.baseline.{key}" not in version.tags:
        return None
    with tempfile.TemporaryDirectory() as name:
        return read_rewards(registry.download(version, f"{BASELINE}/{key}/{RESULTS.name}", Path(name)))


def keep_baseline(registry: Registry, version: ModelVersion, key: str) -> None:
    """Keep the results that are stored with a version as its first ones under the evaluation `key`."""
    number = str(version.version)
    with tempfile.TemporaryDirectory() as name, answering(registry, f"keep the first results of version {number}"):
        folder = registry.download(version, "evaluation", Path(name))
        registry.client.log_model_artifact(model_id(version), str(folder / RESULTS.name), f"{BASELINE}/{key}")
        registry.tag(number, {f"gate.baseline.{key}": utc_now()})


@dataclass(frozen=True)
class Plan:
    """The next comparison with the `champion` (None: there is none yet) on `tasks` test tasks.

    It is comparison `number` and may be wrong with the chance `alpha`. `discordance` is the mean squared difference on
    a task, as `seen` comparisons with this champion have shown (0: assumed). On these tasks a difference of
    `detectable` is seen with the chance `power` (None: none at all); to see `difference` takes `needed` tasks, and to
    rule out a loss of `margin` in a slice takes `slice_needed`.
    """

    champion: str | None
    tasks: int
    number: int
    alpha: float
    discordance: float
    seen: int
    detectable: float | None
    power: float
    difference: float
    needed: int
    margin: float
    slice_needed: int

    def rows(self) -> Iterator[tuple[str, str]]:
        """Yield the plan as (what, value)."""
        who = "none yet: the first to beat its base" if self.champion is None else f"version {self.champion}"
        yield "champion", who
        yield "test tasks", f"{self.tasks:,}"
        yield "comparison", f"number {self.number} on these tasks; it may be wrong with a chance of {self.alpha:.2g}"
        shown = f"as {self.seen} comparison{'s have' if self.seen > 1 else ' has'} shown"
        source = shown if self.seen else "assumed: gate.discordance, or --discordance"
        yield "versions differ", f"by {self.discordance:.3g} (mean square on a task; {source})"
        chance = f"with a chance of {100 * self.power:.0f} %"
        seen = "nothing" if self.detectable is None else f"a difference of {self.detectable:.3f} or more, {chance}"
        yield "these tasks show", seen
        yield f"{self.difference:g} needs", f"about {self.needed:,} tasks, {chance}"
        yield "a slice needs", f"about {self.slice_needed:,} tasks to rule out a loss of more than {self.margin:g}"


def plan(
    rules: GateSettings,
    tracking: TrackingSettings,
    confidence: float,
    tasks: int,
    root: Path,
    difference: float | None = None,
    discordance: float | None = None,
) -> Plan:
    """Plan the next comparison on `tasks` test tasks in the project at `root`; no store is made for it.

    What is not given is as the gate's `rules` and the registry say; `confidence` is that of evaluations. A registry
    that does not answer, and a `difference` or `discordance` that cannot be, are a UserError.
    """
    difference = rules.smallest_difference if difference is None else difference
    for name, value in (("--difference", difference), ("--discordance", discordance)):
        if value is not None and not 0.0 < value <= 1.0:
            raise UserError(f"{name}: {value:g} cannot be; give a number above 0 and at most 1.")
    champion, rows, path = None, list[dict[str, float | str]](), root / TEST_TASKS
    database = embedded_database(tracking, root)
    if tracking_enabled() and (database is None or database.exists()):
        registry = Registry(tracking, root)
        if champion := registry.aliases().get(CHAMPION):
            rows = list(noted(registry, champion, "comparison").values())
    here = file_hash(path) if path.exists() else ""
    number = 1 + sum(row["tasks"] == here for row in rows)
    alpha = level(rules, confidence, number)
    seen = [float(row["discordance"]) for row in rows if row.get("discordance")] if discordance is None else []
    spread = sum(seen) / len(seen) if seen else discordance or rules.discordance
    power, margin = rules.power, rules.slice_margin
    seen_difference = detectable_difference(tasks, spread, alpha, power)
    needed = required_tasks(difference, spread, alpha, power)
    in_slice = tasks_for_margin(margin, spread, 1.0 - confidence, power)
    facts = champion, tasks, number, alpha, spread, len(seen)
    return Plan(*facts, seen_difference, power, difference, needed, margin, in_slice)
