"""What is said of all dialogues together, beside what the page computes from its table: curves, contrasts, facts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from sweetrl.errors import UserError
from sweetrl.evaluation.report import VIEWER
from sweetrl.paths import REPORT
from sweetrl.text import printable

if TYPE_CHECKING:
    from sweetrl.settings import Settings
    from sweetrl.viewer.index import Catalogue
    from sweetrl.viewer.targets import Target
    from sweetrl.viewer.usage import Usage

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


def overview(catalogue: Catalogue, settings: Settings, target: Target, usage: Usage | None) -> dict[str, Any]:
    """Return curves of the training runs, the critic's contrasts in words, and whether there is a report.

    Curves, runs and costs are those of the runs that made the results, from the tracking store; where it does not know
    them there are none.
    """
    contrasts = [{**one, "verdict": verdict(one["share"])} for one in catalogue.contrasts()]
    return {
        "title": printable(target.title),
        "curves": list(curves(settings, target.runs)),
        "contrasts": contrasts,
        "runs": usage.runs() if usage else [],
        "parameters": usage.parameters() if usage else {},
        "usage": usage.totals() if usage else [],
        "report": (target.folder / REPORT).exists(),
        "labels": {"reward": catalogue.domains.of(settings.suite).shown_labels.reward},
        "max_turns": settings.agent.max_turns,
    }


def verdict(share: float) -> str:
    """Say what a share of pairs in the right order means; 0.5 is chance."""
    steps = ((0.95, "knows them apart"), (0.8, "mostly right"), (0.6, "somewhat better than chance"), (0.4, "chance"))
    return next((words for least, words in steps if share >= least), "the wrong way round")


def curves(settings: Settings, runs: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """Yield the curves of the training runs among `runs` (by stage): {stage, metric, label, points}."""
    training = {stage: run_id for stage, run_id in runs.items() if stage.startswith("train-") and run_id}
    if not training:
        return
    from sweetrl.tracking.lineage import Records

    try:
        records = Records(settings.tracking)
        found = {stage: records.histories(run_id, tuple(CURVES)) for stage, run_id in training.items()}
    except (UserError, ImportError):
        return
    for stage, metrics in sorted(found.items()):
        for metric, label in CURVES.items():
            points = metrics.get(metric, [])
            if len(points) > 1:
                step = -(-len(points) // POINTS)
                yield {"stage": stage, "metric": metric, "label": label, "points": points[::step]}


def linked_report(target: Target, link: str) -> str | None:
    """Return the report's page with its links leading to `link`, where the viewer is; None where there is no report."""
    path = target.folder / REPORT
    if not path.exists():
        return None
    page = path.read_text(encoding="utf-8").replace(f'"{VIEWER}#', f'"{link}#')
    return page.replace("<main>", f'<main>\n<p class="lead"><a href="{link}">All dialogues in the viewer</a></p>', 1)
