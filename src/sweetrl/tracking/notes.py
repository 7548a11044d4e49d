"""What MLflow's pages say about runs and versions: the result and the gate's verdict in words, as Markdown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

NOTE = "mlflow.note.content"  # the tag that MLflow's pages show as a run's or an experiment's description
# MLflow's pages have two faces; the one that they open with, for prompts and traces, hides runs and the registry. The
# kind says which one is meant to those that go by it; in MLflow 3.17 the address or the reader says it.
EXPERIMENT = {
    "mlflow.experimentKind": "custom_model_development",
    NOTE: "Choose **Model training** at the top left to see the runs and the model registry. Each run `train` is a "
    "whole pipeline run: its page has the gate's verdict, the results, the stages' runs and the report.",
}
GUESSED = "_inferred"  # how a kind ends that MLflow's pages have guessed themselves
UNKNOWN = "no_inferred_type"


def missing_tags(tags: Mapping[str, str]) -> dict[str, str]:
    """Return what an experiment with `tags` lacks of EXPERIMENT; what a person has set stays."""
    guessed = {key for key, value in tags.items() if value.endswith(GUESSED) or value == UNKNOWN}
    return {key: value for key, value in EXPERIMENT.items() if key not in tags or key in guessed}


def result(evaluation: Mapping[str, Any]) -> str:
    """Return the headline of an evaluation (the first level of evaluation.json) as a table; "" where there is none."""
    rows = []
    for key, label in (("success", "tasks solved"), ("reward", "mean reward")):
        before, after = evaluation.get(f"{key}_before"), evaluation.get(f"{key}_after")
        if before is not None and after is not None:
            shown = [f"{100 * value:.1f} %" if key == "success" else f"{value:.3f}" for value in (before, after)]
            rows.append(f"| **{label}** | {shown[0]} | **{shown[1]}** |")
    if not rows:
        return ""
    tasks = evaluation.get("tasks")
    head = f"| on {tasks:,} held-out tasks | before | after |" if tasks else "| held-out tasks | before | after |"
    return "\n".join([head, "|---|---|---|", *rows])


def run_note(evaluation: Mapping[str, Any], reason: str = "", version: str = "", report: str = "") -> str:
    """Return the description of a pipeline run: the gate's verdict, result, version, report, those that there are."""
    parts = [f"**Gate:** {reason}"] if reason else []
    parts += [result(evaluation)]
    parts += [f"**Registered as** {version}"] if version else []
    parts += [f"**Report:** `{report}`, under Artifacts"] if report else []
    return "\n\n".join(filter(None, parts))


def version_note(before: str, evaluation: Mapping[str, Any], gate: Mapping[str, Any] | None) -> str:
    """Return a version's description: what the gate decided (its tag `gate`), the result, and what the version is.

    What it is, is the last paragraph of the description `before`.
    """
    verdict = f"**Gate:** {gate['reason']}" if gate else ""
    if gate and gate["promote"] and not gate["promoted"]:
        verdict += " (It has yet to become champion.)"
    parts = [verdict, result(evaluation), before.rpartition("\n\n")[2]]
    return "\n\n".join(filter(None, parts))
