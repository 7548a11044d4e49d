"""Stage `summary`: what `dvc metrics` and `dvc plots` show of an evaluation, to lay revisions side by side.

reports/evaluation.json, reports/results.parquet -> reports/metrics.json (a few headline numbers),
reports/plots/policies.csv (success by policy; the trained one is called after its method) and reports/plots/turns.csv
(the share of tasks solved within so many turns). Learning curves need no stage: they are in the run files.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

from sweetrl.config.settings import Settings
from sweetrl.evaluation.metrics import AFTER, BEFORE, paired, read_results
from sweetrl.io import publish, read_json, write_json, write_text
from sweetrl.paths import EVALUATION, METRICS, PLOTS, RESULTS
from sweetrl.stages.run import stage_main, stage_run
from sweetrl.types import Result

UNTRAINED = "untrained"
# Of evaluation.json's first level; `held_out_after` is there where some tasks are of domains without training tasks.
HEADLINE = ("success_before", "success_after", "success_difference", "reward_after", "held_out_after")


def summary(settings: Settings) -> None:
    """Write reports/metrics.json and reports/plots/; UserError where the evaluation is not there."""
    with stage_run("summary", settings, torch=False) as run:
        run.log_input("results", RESULTS)
        before, after = paired(read_results(RESULTS))
        comparison = read_json(EVALUATION)
        policies = comparison["policies"]
        numbers = {name: float(comparison[name]) for name in HEADLINE if name in comparison}
        numbers["turns_after"] = policies[AFTER]["turns"]["value"]  # a mean over the tasks
        folder = run.scratch(EVALUATION) / PLOTS.name
        rows = [policy_row(UNTRAINED, policies[BEFORE]), policy_row(settings.method, policies[AFTER])]
        write_text(folder / "policies.csv", table(rows))
        write_text(folder / "turns.csv", table(turn_rows(before, after)))
        publish(folder, PLOTS)
        write_json(METRICS, numbers)
        run.log_metrics(numbers)
        run.summary = f"{len(numbers)} numbers in {METRICS}, tables in {PLOTS}; `dvc metrics show`, `dvc plots show`"


def policy_row(name: str, policy: Mapping[str, Any]) -> dict[str, Any]:
    """Return a policy's success with its interval, mean reward, mean turns."""
    success, means = policy["success"], {key: policy[key]["value"] for key in ("reward", "turns")}
    return {"policy": name, "success": success["value"], "low": success["low"], "high": success["high"], **means}


def turn_rows(before: Sequence[Result], after: Sequence[Result]) -> list[dict[str, Any]]:
    """Return, for each number of turns up to the most, the share of the tasks that each policy has solved by then."""

    def solved(results: Sequence[Result], turns: int) -> float:
        return sum(result.success and result.turns <= turns for result in results) / len(results)

    turns = range(1, 1 + max((result.turns for result in (*before, *after)), default=0))
    return [{"turns": most, "before": solved(before, most), "after": solved(after, most)} for most in turns]


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows with equal keys as CSV with a header."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


if __name__ == "__main__":
    stage_main(summary)
