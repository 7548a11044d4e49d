"""How much each method was tuned: runs on validation tasks, kept in the profile's tuning.yaml, which is in git.

`python -m sweetrl.reproduce tune NAME SEED` trains the variant NAME once for each set of settings that params.yaml
lists under `tuning: NAME:`, lets the policy attempt validation tasks (`tuning_tasks`, else `choose.tasks`) at the
profile's temperatures, and adds a run to the file:

    - variant: rft
      seed: 101
      settings: {rft.epochs: 8.0}
      tasks: 100
      at:
        '0': {success: 0.41, reward: 0.52, questions: 4.1}
        '1': {success: 0.35, reward: 0.47, questions: 4.3}
      digest: 0f3a...          # of all settings, the base and the tasks: what is there already is not run again

Runs that differ in the policy's settings alone share critic and ranked replies; those that differ in how these are
ranked, too, share the critic.
"""

from __future__ import annotations

import shutil
import statistics
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from sweetrl.config.settings import parse_settings
from sweetrl.config.yaml_files import read_yaml
from sweetrl.errors import UserError
from sweetrl.file_hashes import dvc_hash
from sweetrl.io import digest, private_folder, read_json
from sweetrl.paths import CRITIC, PREFERENCES, RUNS
from sweetrl.reproduce.evaluate import OUT
from sweetrl.reproduce.outcomes import SUMMARY
from sweetrl.reproduce.run import WORK, Profile, inputs, run_plan, train, workspace
from sweetrl.reproduce.variants import VARIANTS, merged
from sweetrl.stages.launch import finished, link

TUNING = Path("tuning.yaml")
# What runs may share: what a stage makes, and the sections of settings that it does not depend on.
SHARED = {"train-critic": (CRITIC, {"rank", "judge", "policy"}), "rank": (PREFERENCES, {"policy"})}


def tune(profile: Profile, name: str, seed: int) -> None:
    """Run what of the grid of a variant has not been run yet, on the data of one seed; no test task is touched."""
    variant = profile.variant(name)
    grid = profile.values.get("tuning", {}).get(name)
    if not grid:
        raise UserError(f"params.yaml: `tuning.{name}` lists no settings to try; write it as a list of sets of them.")
    path = profile.folder / TUNING
    data = inputs(profile, variant, seed)
    tasks_hash = dvc_hash(profile.folder / "seed-data" / str(seed) / "tasks")
    count = int(profile.values.get("tuning_tasks", profile.values["choose"]["tasks"]))
    choose = {"grid": profile.temperatures, "tasks": count}
    plan = {"temperatures": [], "choose": choose, "personas": [], "opening": variant.opening}
    before: list[tuple[Path, Mapping[str, Any]]] = []
    for number, changes in enumerate(grid, start=1):
        tree = merged(profile.tree(seed, variant.settings), changes)
        settings, base = profile.decisive(variant, tree)
        mark = digest(settings, plan, [base, tasks_hash])
        part = f"tune-{name}-{seed}-{mark}"
        done = any(run["digest"] == mark for run in read_tuning(path))
        if done:
            print(f"tune {name} {seed}: {number} of {len(grid)} is in {path}", flush=True)
            if not (profile.folder / WORK / part).exists():
                continue
        folder = workspace(profile, part, tree, made_of=data)
        before.append((folder, settings))
        if done:
            continue
        _share(before[:-1], folder, settings)
        train(profile, folder, variant, parse_settings(tree, f"tuning of {name}"), f"tune {name}")
        run_plan(profile, folder, plan, seed, f"tune {name}")
        tried = read_json(folder / OUT / SUMMARY)["validation"]
        rates = {at: {key: round(value, 4) for key, value in means.items()} for at, means in tried.items()}
        tasks = int(min(means.pop("tasks") for means in rates.values()))
        run = {"variant": name, "seed": seed, "settings": dict(changes), "tasks": tasks, "at": rates, "digest": mark}
        with path.open("a", encoding="utf-8") as file:  # in one piece: several may be under way
            file.write(yaml.safe_dump([run], sort_keys=False, default_flow_style=None, allow_unicode=True))
        print(f"tune {name} {seed}: {number} of {len(grid)} is done; {path}", flush=True)
    for folder, _ in before:
        shutil.rmtree(folder)


def _share(before: Sequence[tuple[Path, Mapping[str, Any]]], folder: Path, settings: Mapping[str, Any]) -> None:
    """Let `folder` have what earlier runs have made with the same settings, as far as a stage depends on them."""
    for stage, (place, later) in SHARED.items():
        for other, other_settings in before:
            alike = _without(later, other_settings) == _without(later, settings)
            if alike and finished(other, stage) and not finished(folder, stage):
                link(other / place, folder / place)
                shutil.copy2(other / RUNS / f"{stage}.json", private_folder(folder / RUNS))


def _without(later: Collection[str], settings: Mapping[str, Any]) -> dict[str, Any]:
    kept = {name: values for name, values in settings.items() if name not in later}
    return kept | {"ranks": settings["rank"]["critic"]} if "rank" in settings else kept  # whether a critic is trained


def read_tuning(path: Path) -> list[dict[str, Any]]:
    """Return the runs of a file, none if there is no file."""
    return (read_yaml(path) or []) if path.exists() else []


def budgets(runs: Sequence[Mapping[str, Any]], measure: str) -> list[dict[str, Any]]:
    """Return what was tried for each variant: how many runs, and the best and the median at each temperature."""
    rows = []
    for name in [name for name in VARIANTS if any(run["variant"] == name for run in runs)]:
        own = [run for run in runs if run["variant"] == name]
        at: dict[str, dict[str, Any]] = {}
        for temperature in sorted({name for run in own for name in run["at"]}, key=float):
            tried = [(run["at"][temperature][measure], run["settings"]) for run in own if temperature in run["at"]]
            best, settings = max(tried, key=lambda pair: pair[0])
            values = sorted(value for value, _ in tried)
            spread = {"best": best, "median": statistics.median(values), "values": values}
            at[temperature] = {"runs": len(values), **spread, "settings": settings}
        rows.append({"variant": name, "label": VARIANTS[name].label, "runs": len(own), "at": at})
    return rows
