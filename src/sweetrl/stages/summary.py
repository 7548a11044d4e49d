"""Stage `summary`: what `dvc metrics` and `dvc plots` show of an evaluation, to lay revisions side by side.

reports/evaluation.json, reports/results.parquet -> reports/metrics.json (a few headline numbers),
reports/plots/policies.csv (success by policy; the trained one is called after its method) and reports/plots/turns.csv
(the share of tasks solved within so many turns). Learning curves need no stage: they are in the run files.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sweetrl.config.settings import Settings
from sweetrl.errors import UserError
from sweetrl.io import publish, read_json, write_json, write_text
from sweetrl.paths import EVALUATION, METRICS, PLOTS, RESULTS
from sweetrl.stages.run import stage_main, stage_run

if TYPE_CHECKING:
    from sweetrl.types import Result

UNTRAINED = "untrained"
# Of evaluation.json's first level; `held_out_after` is there where some tasks are of domains without training tasks.
HEADLINE = ("success_before", "success_after", "success_difference", "reward_after", "held_out_after")


def summary(settings: Settings) -> None:
    """Write reports/metrics.json and reports/plots/; UserError where the evaluation is not there."""
    with stage_run("summary", settings, torch=False) as run:
        from sweetrl.evaluation.metrics import paired, read_results

        run.log_input("results", RESULTS)
        results = read_results(RESULTS)
        if not EVALUATION.exists():
            raise UserError(f"{EVALUATION}: there is no such file; run the stage `evaluate` first.")
        comparison = read_json(EVALUATION)
        before, after = paired(results)
        numbers = headline(comparison)
        folder = run.scratch(RESULTS, EVALUATION) / PLOTS.name
        write_text(folder / "policies.csv", table(policy_rows(comparison, settings.method)))
        write_text(folder / "turns.csv", table(turn_rows(before, after)))
        publish(folder, PLOTS)
        write_json(METRICS, numbers)
        run.log_metrics(numbers)
        run.summary = f"{len(numbers)} numbers in {METRICS}, tables in {PLOTS}; `dvc metrics show`, `dvc plots show`"


def headline(comparison: Mapping[str, Any]) -> dict[str, float]:
    """Return the few numbers of an evaluation by which runs are told apart; turns are a mean over the tasks."""
    found = {name: float(comparison[name]) for name in HEADLINE if name in comparison}
    return found | {"turns_after": comparison["policies"][_policies()[1]]["turns"]["value"]}


def policy_rows(comparison: Mapping[str, Any], method: str) -> list[dict[str, Any]]:
    """Return a row for each policy: success with its interval, mean reward, mean turns."""
    rows = []
    for key, name in zip(_policies(), (UNTRAINED, method), strict=True):
        one = comparison["policies"][key]
        success = one["success"]
        rows.append(
            {
                "policy": name,
                "success": success["value"],
                "low": success["low"],
                "high": success["high"],
                "reward": one["reward"]["value"],
                "turns": one["turns"]["value"],
            }
        )
    return rows


def turn_rows(before: Sequence[Result], after: Sequence[Result]) -> list[dict[str, Any]]:
    """Return, for each number of turns up to the most, the share of the tasks that each policy has solved by then."""
    most = max((one.turns for one in (*before, *after)), default=0)
    return [
        {
            "turns": turns,
            **{
                name: sum(one.success and one.turns <= turns for one in results) / len(results)
                for name, results in (("before", before), ("after", after))
            },
        }
        for turns in range(1, most + 1)
    ]


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows with equal keys as CSV with a header."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _policies() -> tuple[str, str]:
    from sweetrl.evaluation.metrics import AFTER, BEFORE

    return BEFORE, AFTER


if __name__ == "__main__":
    stage_main(summary)
