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
"""

from __future__ import annotations

import shutil
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from sweetrl.config.settings import parse_settings
from sweetrl.config.yaml_files import read_yaml
from sweetrl.errors import UserError
from sweetrl.file_hashes import dvc_hash
from sweetrl.io import digest, read_json
from sweetrl.reproduce.evaluate import OUT
from sweetrl.reproduce.outcomes import SUMMARY
from sweetrl.reproduce.run import Profile, inputs, run_plan, train, workspace
from sweetrl.reproduce.variants import VARIANTS, merged

TUNING = Path("tuning.yaml")


def tune(profile: Profile, name: str, seed: int) -> None:
    """Run what of the grid of a variant has not been run yet, on the data of one seed; no test task is touched."""
    one = profile.variant(name)
    grid = profile.values.get("tuning", {}).get(name)
    if not grid:
        raise UserError(f"params.yaml: `tuning.{name}` lists no settings to try; write it as a list of sets of them.")
    path = profile.folder / TUNING
    data = inputs(profile, one, seed)
    tasks_hash = dvc_hash(profile.folder / "seed-data" / str(seed) / "tasks")
    count = int(profile.values.get("tuning_tasks", profile.values["choose"]["tasks"]))
    choose = {"grid": profile.temperatures, "tasks": count}
    plan = {"temperatures": [], "choose": choose, "personas": [], "opening": one.opening}
    for number, changes in enumerate(grid, start=1):
        tree = merged(profile.tree(seed, one.settings), changes)
        settings, base = profile.decisive(one, tree)
        mark = digest(settings, plan, [base, tasks_hash])
        if any(run["digest"] == mark for run in read_tuning(path)):
            print(f"tune {name} {seed}: {number} of {len(grid)} is in {path}", flush=True)
            continue
        folder = workspace(profile, f"tune-{name}-{seed}-{mark}", tree, made_of=data)
        train(profile, folder, one, parse_settings(tree, f"tuning of {name}"), f"tune {name}")
        run_plan(profile, folder, plan, seed, f"tune {name}")
        tried = read_json(folder / OUT / SUMMARY)["validation"]
        rates = {at: {key: round(value, 4) for key, value in means.items()} for at, means in tried.items()}
        tasks = int(min(means.pop("tasks") for means in rates.values()))
        run = {"variant": name, "seed": seed, "settings": dict(changes), "tasks": tasks, "at": rates, "digest": mark}
        with path.open("a", encoding="utf-8") as file:  # in one piece: several may be under way
            file.write(yaml.safe_dump([run], sort_keys=False, default_flow_style=None, allow_unicode=True))
        shutil.rmtree(folder)
        print(f"tune {name} {seed}: {number} of {len(grid)} is done; {path}", flush=True)


def read_tuning(path: Path) -> list[dict[str, Any]]:
    """Return the runs of a file, none if there is no file."""
    return (read_yaml(path) or []) if path.exists() else []


def budgets(runs: Sequence[Mapping[str, Any]], measure: str) -> list[dict[str, Any]]:
    """Return what was tried for each variant: how many runs, and the best and the median at each temperature."""
    rows = []
    for name in [name for name in VARIANTS if any(run["variant"] == name for run in runs)]:
        own = [run for run in runs if run["variant"] == name]
        at: dict[str, dict[str, Any]] = {}
        for temperature in sorted({one for run in own for one in run["at"]}, key=float):
            tried = [(run["at"][temperature][measure], run["settings"]) for run in own if temperature in run["at"]]
            best, settings = max(tried, key=lambda pair: pair[0])
            values = sorted(value for value, _ in tried)
            spread = {"best": best, "median": statistics.median(values), "values": values}
            at[temperature] = {"runs": len(values), **spread, "settings": settings}
        rows.append({"variant": name, "label": VARIANTS[name].label, "runs": len(own), "at": at})
    return rows
