"""Stage `evaluate-iterations`: the policy of all iterations on held-out tasks, against the base and iteration one.

models/iterations/policy -> reports/iterations/: evaluation.json, results.parquet and report.html as `evaluate` writes
them, and comparison.json, the last iteration minus the first, paired by task.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from sweetrl.config.settings import Settings
from sweetrl.errors import UserError
from sweetrl.evaluation.report import without_viewer
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
from sweetrl.stages.iterate import own_files, why_once
from sweetrl.stages.launch import absolute_tracking, finished, link, prepare, run_stage_in
from sweetrl.stages.run import skip_stage, stage_main, stage_run

COMPARISON = "comparison.json"


def evaluate_iterations(settings: Settings) -> None:
    """Evaluate models/iterations/policy like any policy, and compare it with the first iteration's."""
    with stage_run("evaluate-iterations", settings) as run:
        if why := why_once(settings):
            skip_stage(run, ITERATIONS_REPORT, why)
            return
        if (ITERATIONS_MODELS / SKIPPED).exists() or not LAST_POLICY.exists():
            raise UserError(f"{LAST_POLICY}: there is no policy of several iterations here; run `make iterations`.")
        for name, path in (("test-tasks", TEST_TASKS), ("policy", LAST_POLICY), ("iteration-one", RESULTS)):
            run.log_input(name, path)
        folder = run.scratch(TEST_TASKS, settings.model.base, LAST_POLICY, RESULTS) / "evaluate"
        tree = settings.model_dump(mode="json", by_alias=True) | {"iterations": 1}
        tree["tracking"] = absolute_tracking(tree["tracking"], Path())
        prepare(folder, tree)
        link(TEST_TASKS, folder / TEST_TASKS)
        link(LAST_POLICY, folder / POLICY)
        for path in (Path(settings.model.base), *own_files(settings)):
            if path.exists() and not path.is_absolute():
                link(path, folder / path)
        if not finished(folder, "evaluate"):
            run_stage_in(folder, "evaluate", run.log.open())
        comparison = compared(RESULTS, folder / RESULTS, settings)
        out = folder / "out"
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir()
        for file in (EVALUATION, RESULTS):
            shutil.copy(folder / file, out / file.name)
        write_text(out / REPORT.name, without_viewer((folder / REPORT).read_text(encoding="utf-8")))
        write_json(out / COMPARISON, comparison)
        publish(out, ITERATIONS_REPORT)
        difference = comparison["success"]
        run.log_metrics({f"difference/{name}": comparison[name]["value"] for name in ("success", "reward")})
        run.summary = (
            f"{comparison['tasks']} tasks, success after {settings.iterations} iterations minus after one: "
            f"{difference['value']:+.1%}, interval {difference['low']:+.1%} to {difference['high']:+.1%} "
            f"(p = {difference['p_value']:.2g}); {ITERATIONS_REPORT / REPORT.name}"
        )


def compared(first: Path, last: Path, settings: Settings) -> dict[str, Any]:
    """The last iteration's policy minus the first's, on tasks that both have finished; under 2 is a UserError."""
    from sweetrl.evaluation.metrics import AFTER, read_results
    from sweetrl.evaluation.statistics import mcnemar_exact, paired_difference

    def trained(path: Path) -> dict[str, Any]:
        return {one.task_id: one for one in read_results(path) if one.policy == AFTER and one.reward is not None}

    before, after = trained(first), trained(last)
    shared = [(before[task], after[task]) for task in before if task in after]
    if len(shared) < 2:
        raise UserError(f"{first}: it has hardly a task in common with {last}; run `dvc repro evaluate` again.")
    level, many = settings.evaluate.confidence, settings.evaluate.resamples
    wins = [a.success for a, _ in shared], [b.success for _, b in shared]
    rewards = [float(a.reward) for a, _ in shared], [float(b.reward) for _, b in shared]
    return {
        "iterations": settings.iterations,
        "tasks": len(shared),
        "success": paired_difference(*wins, level, many, settings.seed).as_dict()
        | {"p_value": mcnemar_exact(*wins).p_value},
        "reward": paired_difference(*rewards, level, many, settings.seed).as_dict(),
    }


if __name__ == "__main__":
    stage_main(evaluate_iterations)
