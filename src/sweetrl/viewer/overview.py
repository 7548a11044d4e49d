"""What is said of all dialogues together, beside what the page computes from its table: runs, costs, curves, contrasts.

Costs are no part of dialogues (equal runs give equal files): the stages write them down as an artifact of their run.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from functools import cached_property
from operator import methodcaller
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from sweetrl.errors import UserError
from sweetrl.evaluation.metrics import AFTER, BEFORE
from sweetrl.evaluation.report import VIEWER, fault_rows, harm, p_value, percent, points, tone, verdicts
from sweetrl.io import read_json
from sweetrl.paths import EVALUATION, REPORT
from sweetrl.text import printable
from sweetrl.types import Trajectory
from sweetrl.viewer.sources import Source, Target

if TYPE_CHECKING:
    from sweetrl.colbench.domain import Domain
    from sweetrl.config.settings import Settings
    from sweetrl.rollout.ledger import DialogueCost
    from sweetrl.tracking.lineage import Records, RunFacts
    from sweetrl.viewer.index import Catalogue

Answer = TypeVar("Answer")

OWN = "data/"  # where the sources lie that the runs of a project's stages have made
COSTS = ("prompt_tokens", "cached_tokens", "generated_tokens", "seconds", "busy_seconds")
POINTS = 240  # of a curve, at most
# Metrics by training step that people look at, in this order: what each is called.
CURVES = {
    "loss": "loss",
    "accuracy": "pairs in the right order",
    "reward/margin": "margin of chosen over rejected",
    "reference_kl": "distance from the reference (KL)",
    "loss/nll": "likelihood of what was chosen (loss)",
    "success": "success",
    "reward": "mean reward",
}


class TrackedRuns:
    """The runs of `target` (by stage) in the tracking store, which is queried when it is needed, and once.

    What the store does not know, or where it does not answer, is left out.
    """

    def __init__(self, settings: Settings, target: Target) -> None:
        self.settings, self.target = settings, target

    def cost(self, source: Source, dialogue: Trajectory) -> dict[str, Any] | None:
        """Return tokens and seconds of one dialogue; None where nobody has noted them."""
        if not source.name.startswith(OWN):
            return None
        cost = self._costs.get((source.stage, source.method, dialogue.task.id, dialogue.attempt))
        return None if cost is None else {name: getattr(cost, name) for name in COSTS}

    def costs(self) -> list[dict[str, Any]]:
        """Return tokens and seconds by stage and method, with the number of dialogues."""
        totals: dict[tuple[str, str], dict[str, Any]] = {}
        for (stage, method, *_), cost in self._costs.items():
            empty: dict[str, Any] = {"stage": stage, "method": method, "dialogues": 0, **dict.fromkeys(COSTS, 0)}
            sums = totals.setdefault((stage, method), empty)
            sums["dialogues"] += 1
            for name in COSTS:
                sums[name] += getattr(cost, name)
        return list(totals.values())

    def runs(self) -> list[dict[str, Any]]:
        """Return the runs: stage, id, status, commit, seconds."""
        return [
            {"stage": stage} | {name: asdict(facts)[name] for name in ("run_id", "status", "commit", "seconds")}
            for stage, facts in self._facts.items()
        ]

    def parameters(self) -> dict[str, str]:
        """Return the parameters of all runs together."""
        return {name: value for facts in self._facts.values() for name, value in facts.params.items()}

    def curves(self) -> Iterator[dict[str, Any]]:
        """Yield the curves of the training runs: {stage, metric, label, points}."""
        training = {stage: run_id for stage, run_id in sorted(self._ids.items()) if stage.startswith("train-")}
        names = tuple(CURVES)
        histories = self._ask(
            lambda records: {stage: records.histories(run_id, names) for stage, run_id in training.items()}
        )
        for stage, metrics in (histories or {}).items():
            for metric, label in CURVES.items():
                points = metrics.get(metric, [])
                if len(points) > 1:
                    step = -(-len(points) // POINTS)
                    yield {"stage": stage, "metric": metric, "label": label, "points": points[::step]}

    def _ask(self, question: Callable[[Records], Answer]) -> Answer | None:
        from sweetrl.tracking.lineage import Records

        try:
            return question(Records(self.settings.tracking))
        except (UserError, ImportError):
            return None

    @cached_property
    def _facts(self) -> dict[str, RunFacts]:
        runs = self._ask(lambda records: {stage: records.run(run_id) for stage, run_id in self._ids.items()})
        return {stage: run for stage, run in (runs or {}).items() if run is not None}

    @cached_property
    def _ids(self) -> Mapping[str, str]:
        if self.target.runs is not None:
            return self.target.runs
        made = self._ask(lambda records: records.made(self.target.folder)) or {}
        return {stage: run.run_id for stage, run in made.items()}

    @cached_property
    def _costs(self) -> dict[tuple[str, str, str, int], DialogueCost]:
        """The costs by stage, method (of an evaluation), task and attempt; of a dialogue made twice the last one's."""
        from sweetrl.rollout.ledger import Ledger

        costs: dict[tuple[str, str, str, int], DialogueCost] = {}
        for stage in ("collect", "evaluate"):
            if stage not in self._ids:
                continue
            with tempfile.TemporaryDirectory(prefix="sweetrl-costs-") as scratch:
                ask = methodcaller("files", self._ids[stage], "costs", Path(scratch))
                # costs.jsonl, or costs-METHOD.jsonl; shares of a stage have a number behind it
                for path in self._ask(ask) or []:
                    parts = path.stem.split("-")
                    method = parts[1] if stage == "evaluate" and len(parts) > 1 else ""
                    for cost in Ledger(path).read():
                        costs[stage, method, cost.task, cost.attempt] = cost
        return costs


def overview(catalogue: Catalogue, target: Target, runs: TrackedRuns) -> dict[str, Any]:
    """Return the runs with costs and curves, the critic's contrasts in words, harm, and whether there is a report."""
    return {
        "title": printable(target.title),
        **measured(target.folder / EVALUATION, catalogue.domains.of(catalogue.domains.settings.suite)),
        "curves": list(runs.curves()),
        "contrasts": [{**contrast, "verdict": verdict(contrast["share"])} for contrast in catalogue.contrasts()],
        "runs": runs.runs(),
        "parameters": runs.parameters(),
        "usage": runs.costs(),
        "report": (target.folder / REPORT).exists(),
    }


def measured(evaluation: Path, domain: Domain) -> dict[str, Any]:
    """Return in which measures there is harm, "" for none, and in words what the report says of each measure."""
    try:
        comparison = read_json(evaluation)
        return {"harm": printable(harm(comparison)), "evaluated": [*_measures(comparison, domain)]}
    except (UserError, AttributeError, KeyError, TypeError, ValueError):  # of no stage, but somebody else's file
        return {"harm": "", "evaluated": []}


def _measures(comparison: Mapping[str, Any], domain: Domain) -> Iterator[list[str]]:
    """Success and reward, harm first; parts of the reward; and what goes wrong, which has no interval."""
    rows = [
        (each.label, [comparison.get(f"{each.measure}_{when}") for when in ("before", "after")], change, each.tone)
        for each in verdicts(comparison)
        for change in [comparison["difference"][each.measure]]
    ]
    for name, part in comparison.get("parts", {}).items():
        values, change = [part[when]["value"] for when in (BEFORE, AFTER)], part["difference"]
        rows.append((f"part of the reward: {name}", values, change, tone(change, comparison["confidence"])))
    for label, values, change, how in rows:
        interval = f"{points(change['value'])} ({points(change['low'])} to {points(change['high'])})"
        shown = ["" if value is None else percent(value) for value in values]
        yield [label, *shown, interval, p_value(change["p_value"]), {"open": "no difference is shown"}.get(how, how)]
    more = [comparison, *(part for part in comparison.values() if isinstance(part, Mapping) and "policies" in part)]
    policies = {
        when: {key: value for part in more for key, value in part.get("policies", {}).get(when, {}).items()}
        for when in (BEFORE, AFTER)
    }
    for row in fault_rows(policies, domain.shown_labels.faults):
        yield [row["label"], *(percent(row[w]["value"]) for w in ("before", "after")), points(row["change"]), "", ""]


def verdict(share: float) -> str:
    """Say what a share of pairs in the right order means; 0.5 is chance."""
    steps = ((0.95, "knows them apart"), (0.8, "mostly right"), (0.6, "somewhat better than chance"), (0.4, "chance"))
    return next((words for least, words in steps if share >= least), "the wrong way round")


def linked_report(target: Target, link: str) -> str | None:
    """Return the report's page with its links leading to `link`, where the viewer is; None where there is no report."""
    path = target.folder / REPORT
    if not path.exists():
        return None
    page = path.read_text(encoding="utf-8").replace(f'"{VIEWER}#', f'"{link}#')
    return page.replace("<main>", f'<main>\n<p class="lead"><a href="{link}">All dialogues in the viewer</a></p>', 1)
