"""Stage `rounds`: collecting, checking, critic, ranking and policy again, with the policy of the round before.

models/policy (round 1, which the pipeline has made) -> data/rounds/N/ (trajectories, pairs, preferences) and
models/rounds/N/ (critic, policy) for every further round N, and models/rounds/policy, all rounds' adapters as one.

A round is the ordinary stages in a folder of their own (sweetrl.running.folders). Its base model is the start of the
round: the base with the policies of all rounds before it merged. So collecting and ranking sample from the policy so
far, the critic and the policy are adapters on it, and it is the reference of both. The round's seed is derived from
(seed, round); its tasks are those behind the tasks of the round before. Unfinished rounds lie in the scratch folder.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import yaml

from sweetrl.errors import UserError
from sweetrl.io import publish, read_json
from sweetrl.paths import LAST_POLICY, POLICY, ROUND_BASE, ROUNDS_DATA, ROUNDS_MODELS, RUNS, TASKS
from sweetrl.plugins import load_method
from sweetrl.running.folders import absolute_tracking, finished, link, prepare, run_apart
from sweetrl.running.stage import StageRun, leave_out, stage_main, stage_run
from sweetrl.seeds import part_seed
from sweetrl.settings import Settings

STAGES = ("collect", "validate", "train-critic", "rank", "train-policy")
# What is kept of a round, in ROUNDS_DATA and in ROUNDS_MODELS.
KEPT = {
    "data": ("data/trajectories", "data/pairs.parquet", "data/preferences", "reports/validation.json"),
    "models": ("models/critic", "models/policy"),
}
SHOWN = {"collect": "success", "train-critic": "final/accuracy", "train-policy": "final/loss"}


def rounds(settings: Settings) -> None:
    """Make the rounds after the first; finished stages of unfinished rounds survive a kill."""
    with stage_run("rounds", settings) as run:
        if why := why_one_round(settings):
            for out in (ROUNDS_DATA, ROUNDS_MODELS):
                leave_out(run, out, why)
            return
        for name, path in (("tasks", TASKS), ("base", settings.model.base), ("policy", POLICY)):
            run.log_input(name, path)
        scratch = run.scratch(TASKS / "train.parquet", settings.model.base, POLICY)
        out = scratch / "out"
        shutil.rmtree(out, ignore_errors=True)
        policies, start = [POLICY], settings.model.base
        for number in range(2, settings.rounds + 1):
            folder = make_round(settings, number, scratch / str(number), start, policies[-1], run)
            keep(folder, out, number, settings)
            policies.append(folder / "models/policy")
            start = str(folder / ROUND_BASE)
        from sweetrl.learning.stacking import stack_adapters

        stack_adapters(policies, out / "models" / LAST_POLICY.name, settings.model.base)
        publish(out / "data", ROUNDS_DATA)
        publish(out / "models", ROUNDS_MODELS)
        shown = [f"{run.last_metrics[f'round_{n}/success']:.1%}" for n in range(2, settings.rounds + 1)]
        run.summary = (
            f"{settings.rounds} rounds; success on the tasks collected at the start of rounds 2 to {settings.rounds}: "
            f"{', '.join(shown)}; all rounds' policy in {LAST_POLICY}"
        )


def why_one_round(settings: Settings) -> str | None:
    """Why there is nothing to do after the first round, or None."""
    if settings.rounds == 1:
        return "`rounds` in params.yaml is 1"
    if why := load_method(settings).once:
        return why
    if settings.engine.kind == "openai" or settings.engine.urls.strip():
        raise UserError(
            "engine: rounds after the first need another model in every round, and the server named in params.yaml has "
            "one; use `kind: transformers`, or `kind: vllm` without `urls`."
        )
    return None


def round_settings(settings: Settings, number: int) -> Settings:
    """Return the settings of round `number` (from 1); those of round 1 are `settings`."""
    if number == 1:
        return settings
    first = settings.collect.first + (number - 1) * settings.collect.tasks
    return settings.model_copy(
        update={
            "seed": part_seed(settings.seed, "round", number),
            "rounds": 1,
            "model": settings.model.model_copy(update={"base": str(ROUND_BASE)}),
            "collect": settings.collect.model_copy(update={"first": first}),
        }
    )


def make_round(settings: Settings, number: int, folder: Path, start: str, policy: Path, run: StageRun) -> Path:
    """Run the stages of a round in `folder`; it starts from the model `start` with the adapter `policy` merged."""
    tree = round_settings(settings, number).model_dump(mode="json", by_alias=True)
    tree["tracking"] = absolute_tracking(tree["tracking"], Path())
    prepare(folder, tree)
    link(TASKS, folder / TASKS)
    for path in own_files(settings):
        link(path, folder / path)
    if not (folder / ROUND_BASE).exists():
        merge(settings, start, policy, folder / ROUND_BASE)
    for stage in STAGES:
        if not finished(folder, stage):
            print(f"rounds: round {number} of {settings.rounds}, {stage}", flush=True)
            run_apart(folder, stage, run.log.open(), part=f"round {number}")
        facts = read_json(folder / RUNS / f"{stage}.json")
        metrics = {name: value for name, value in facts["metrics"].items() if name == SHOWN.get(stage)}
        run.log_metrics({f"round_{number}/{name}": value for name, value in metrics.items()}, step=number)
    return folder


def own_files(settings: Settings) -> list[Path]:
    """Files of the user's that the settings name by a relative path: a round's folder has them at the same place."""
    names = (settings.agent.prompt, settings.simulator.prompt, settings.simulator.recording, settings.judge.prompt)
    found = [Path(name) for name in (*names, settings.judge.model) if name]
    return [path for path in dict.fromkeys(found) if path.exists() and not path.is_absolute()]


def merge(settings: Settings, start: str, policy: Path, out: Path) -> None:
    """Write the model `start` with the adapter `policy` in its weights: computed in float32, kept in model.dtype."""
    import torch

    from sweetrl.engines.transformers import load_model
    from sweetrl.models import load_tokenizer

    model = load_model(start, policy, "float32", "cpu")
    fresh = out.with_name(f".{out.name}.new")
    shutil.rmtree(fresh, ignore_errors=True)
    model.to(getattr(torch, settings.model.dtype)).save_pretrained(fresh)
    load_tokenizer(start).save_pretrained(fresh)
    fresh.rename(out)


def keep(folder: Path, out: Path, number: int, settings: Settings) -> None:
    """Copy what is kept of a round to `out`, with the parameters it was made with."""
    for kind, names in KEPT.items():
        place = out / kind / str(number)
        place.mkdir(parents=True, exist_ok=True)
        for name in names:
            source = folder / name
            if source.is_dir():
                shutil.copytree(source, place / source.name)
            else:
                shutil.copy(source, place / source.name)
    tree: dict[str, Any] = round_settings(settings, number).model_dump(mode="json", by_alias=True)
    (out / "data" / str(number) / "params.yaml").write_text(yaml.safe_dump(tree, sort_keys=False), encoding="utf-8")


def main() -> None:
    """Run the stage with the parameters in params.yaml."""
    stage_main(rounds)


if __name__ == "__main__":
    main()
