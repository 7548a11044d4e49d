"""Stage `iterate`: collecting, checking, critic, ranking and policy again, with the policy of the iteration before.

models/policy (iteration 1, which the pipeline has made) -> data/iterations/N/ (trajectories, pairs, preferences) and
models/iterations/N/ (critic, policy) for every further iteration N, and models/iterations/policy, all iterations'
adapters as one.  An iteration is the ordinary stages in a folder of their own (sweetrl.stages.launch). Its base model
is the start of the iteration: the base with the policies of all iterations before it merged. So collecting and ranking
sample from the current policy, the critic and the policy are adapters on it, and it is the reference of both. The
iteration's seed is derived from (seed, iteration); its tasks are those behind the tasks of the iteration before. It
samples dialogues even where the first one took them from files.
Unfinished iterations lie in the scratch folder.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import yaml

from sweetrl.colbench.store import TrajectoryStore
from sweetrl.config.settings import Settings
from sweetrl.console.printing import in_words
from sweetrl.errors import UserError
from sweetrl.evaluation.metrics import over_tasks
from sweetrl.io import private_folder, publish, read_json
from sweetrl.lm.adapters import stack_adapters
from sweetrl.methods.base import find_method
from sweetrl.paths import ITERATION_BASE, ITERATIONS_DATA, ITERATIONS_MODELS, LAST_POLICY, POLICY, RUNS, TASKS
from sweetrl.seeds import part_seed
from sweetrl.stages.launch import absolute_tracking, finished, link, link_named, prepare, run_stage_in
from sweetrl.stages.parameters import with_values
from sweetrl.stages.run import StageRun, stage_main, stage_run

STAGES = ("collect", "validate", "train-critic", "rank", "train-policy")
# What is kept of an iteration, in ITERATIONS_DATA and in ITERATIONS_MODELS.
KEPT = {
    "data": ("data/trajectories", "data/pairs.parquet", "data/preferences", "reports/validation.json"),
    "models": ("models/critic", "models/policy"),
}
SHOWN = {"collect": "success", "train-critic": "final/accuracy", "train-policy": "final/loss"}


def iterate(settings: Settings) -> None:
    """Make the iterations after the first; finished stages of unfinished iterations survive a kill."""
    with stage_run("iterate", settings) as run:
        if why := why_once(settings):
            for out in (ITERATIONS_DATA, ITERATIONS_MODELS):
                run.skip(out, why)
            return
        for name, path in (("tasks", TASKS), ("base", settings.model.base), ("policy", POLICY)):
            run.log_input(name, path)
        scratch = run.scratch()
        out = scratch / "out"
        shutil.rmtree(out, ignore_errors=True)
        policies, start = [POLICY], settings.model.base
        for number in range(2, settings.iterations + 1):
            folder = make_iteration(settings, number, scratch / str(number), start, policies[-1], run)
            keep(folder, out, number, settings)
            policies.append(folder / "models/policy")
            start = str(folder / ITERATION_BASE)

        stack_adapters(policies, out / "models" / LAST_POLICY.name, settings.model.base)
        publish(out / "data", ITERATIONS_DATA)
        publish(out / "models", ITERATIONS_MODELS)
        begun = [ITERATIONS_DATA / str(number) / "trajectories" for number in range(2, settings.iterations + 1)]
        shown = [in_words(over_tasks(TrajectoryStore(place).outlines()).get("success")) for place in begun]
        run.summary = (
            f"{settings.iterations} iterations; success on the {settings.collect.tasks} tasks that begin iterations 2 "
            f"to {settings.iterations}: {', '.join(shown)} (95\u00a0% intervals); the policy of all: {LAST_POLICY}"
        )


def why_once(settings: Settings) -> str | None:
    """Why there is nothing to do after the first iteration, or None."""
    if settings.iterations == 1:
        return "`iterations` in params.yaml is 1"
    if why := find_method(settings.method).once:
        return why
    if settings.engine.kind == "openai" or settings.engine.urls.strip():
        raise UserError("engine: each iteration is a new model; use `kind: transformers`, or `vllm` without `urls`.")
    return None


def iteration_settings(settings: Settings, number: int) -> Settings:
    """Return the settings of iteration `number` (from 2)."""
    changes = {
        "seed": part_seed(settings.seed, "round", number),  # the word is part of what is hashed
        "iterations": 1,
        "model.base": str(ITERATION_BASE),
        "collect.source": "sampled",
        "collect.first": settings.collect.first + (number - 1) * settings.collect.tasks,
    }
    return with_values(settings, changes)


def make_iteration(settings: Settings, number: int, folder: Path, start: str, policy: Path, run: StageRun) -> Path:
    """Run the stages of an iteration in `folder`; it starts from the model `start` with the adapter `policy` merged."""
    prepare_stages(folder, iteration_settings(settings, number), {TASKS: TASKS})
    if not (folder / ITERATION_BASE).exists():
        from sweetrl.base_agent.warm_start import merge_adapter

        fresh = folder / "start.new"
        shutil.rmtree(fresh, ignore_errors=True)
        merge_adapter(start, policy, fresh, settings.model.dtype)
        private_folder((folder / ITERATION_BASE).parent)
        fresh.rename(folder / ITERATION_BASE)
    for stage in STAGES:
        if not finished(folder, stage):
            print(f"iterations: iteration {number} of {settings.iterations}, {stage}", flush=True)
            run_stage_in(folder, stage, run.log.open(), part=f"iteration {number}")
        metrics = read_json(folder / RUNS / f"{stage}.json")["metrics"]
        if (name := SHOWN.get(stage)) in metrics:
            run.log_metrics({f"iteration_{number}/{name}": metrics[name]}, step=number)
    return folder


def prepare_stages(folder: Path, settings: Settings, inputs: Mapping[Path, Path]) -> None:
    """Make `folder` ready for stages: params.yaml, `inputs` (place there -> what lies here), files of the settings."""
    tree = settings.model_dump(mode="json", by_alias=True)
    tree["tracking"] = absolute_tracking(tree["tracking"], Path())
    prepare(folder, tree)
    link_named(settings, folder)
    for place, source in inputs.items():
        link(source, folder / place)


def keep(folder: Path, out: Path, number: int, settings: Settings) -> None:
    """Copy what is kept of an iteration to `out`, with the parameters it was made with."""
    for kind, names in KEPT.items():
        place = private_folder(out / kind / str(number))
        for source in (folder / name for name in names):
            copy = shutil.copytree if source.is_dir() else shutil.copy
            copy(source, place / source.name)
    tree = iteration_settings(settings, number).model_dump(mode="json", by_alias=True)
    (out / "data" / str(number) / "params.yaml").write_text(yaml.safe_dump(tree, sort_keys=False), encoding="utf-8")


if __name__ == "__main__":
    stage_main(iterate)
