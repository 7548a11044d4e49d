"""Stage `evaluate-iterations`: the policy of all iterations on held-out tasks, against the base and iteration one.

models/iterations/policy -> reports/iterations/: evaluation.json, results.parquet and report.html as `evaluate` writes
them, and comparison.json, the last iteration minus the first, paired by task.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from sweetrl.config.settings import Settings
from sweetrl.errors import UserError
from sweetrl.evaluation.metrics import AFTER, BEFORE, compare, read_results
from sweetrl.evaluation.report import verdicts, without_viewer
from sweetrl.io import publish, write_json, write_text
from sweetrl.paths import (
    EVALUATION,
    ITERATIONS_MODELS,
    ITERATIONS_REPORT,
    LAST_POLICY,
    POLICY,
    REPORT,
    RESULTS,
    SKIPPED,
    TEST_TASKS,
)
from sweetrl.stages.iterate import prepare_stages, why_once
from sweetrl.stages.launch import finished, run_stage_in
from sweetrl.stages.run import stage_main, stage_run

COMPARISON = "comparison.json"


def evaluate_iterations(settings: Settings) -> None:
    """Evaluate models/iterations/policy like any policy, and compare it with the first iteration's."""
    with stage_run("evaluate-iterations", settings) as run:
        if why := why_once(settings):
            run.skip(ITERATIONS_REPORT, why)
            return
        if (ITERATIONS_MODELS / SKIPPED).exists() or not LAST_POLICY.exists():
            raise UserError(f"{LAST_POLICY}: there is no policy of several iterations here; run `make iterations`.")
        base = Path(settings.model.base)
        inputs = {"test-tasks": TEST_TASKS, "base": base, "policy": LAST_POLICY, "iteration-one": RESULTS}
        for name, path in inputs.items():
            run.log_input(name, path)
        folder = run.scratch() / "evaluate"
        places = {TEST_TASKS: TEST_TASKS, POLICY: LAST_POLICY}
        places |= {base: base} if base.exists() and not base.is_absolute() else {}
        prepare_stages(folder, settings.model_copy(update={"iterations": 1}), places)
        if not finished(folder, "evaluate"):
            run_stage_in(folder, "evaluate", run.log.open())
        comparison = compared(RESULTS, folder / RESULTS, settings)
        out = folder / "out"
        write_json(out / COMPARISON, comparison)
        for file in (EVALUATION, RESULTS):
            shutil.copy(folder / file, out / file.name)
        write_text(out / REPORT.name, without_viewer((folder / REPORT).read_text(encoding="utf-8")))
        publish(out, ITERATIONS_REPORT)
        difference = {name: comparison[name] for name in ("success", "reward")}
        run.log_metrics({f"difference/{name}": change["value"] for name, change in difference.items()})
        against = comparison | {"confidence": settings.evaluate.confidence, "difference": difference}
        changes = " ".join(each.sentence for each in verdicts(against))
        run.summary = f"{settings.iterations} iterations against one: {changes} {ITERATIONS_REPORT / REPORT.name}"


def compared(first: Path, last: Path, settings: Settings) -> dict[str, Any]:
    """The last iteration's policy minus the first's, on tasks that both have finished; under 2 is a UserError."""
    before, after = ([row for row in read_results(path) if row.policy == AFTER] for path in (first, last))
    ruler = settings.evaluate.confidence, settings.evaluate.resamples, settings.seed
    comparison = compare([*(replace(row, policy=BEFORE) for row in before), *after], *ruler)
    return {"iterations": settings.iterations, "tasks": comparison["tasks"], **comparison["difference"]}


if __name__ == "__main__":
    stage_main(evaluate_iterations)
