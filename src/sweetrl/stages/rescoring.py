"""Recorded dialogues, scored again: where only the reward has changed, a stage plays no new ones.

dvc.lock says what the stage had read when they were played. DVC has taken them out of their place before the stage
runs, and hands them out of its cache or remote.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from sweetrl.colbench.domain import Domain
from sweetrl.colbench.store import TrajectoryStore
from sweetrl.config.overrides import value_of
from sweetrl.config.yaml_files import read_yaml
from sweetrl.console.progress import Meter
from sweetrl.file_hashes import dvc_hash
from sweetrl.rollout.context import scorer_of
from sweetrl.rollout.scored import scored, unscored
from sweetrl.stages.run import StageRun

SCORING = ("reward", "similarity")  # parameters that decide how dialogues are scored, and nothing of what is said


def recorded(run: StageRun, scratch: Path, out: Path, *results: Path) -> Path | None:
    """Return a copy, in `scratch`, of the folder `out` of dialogues as DVC has recorded it for the stage.

    None unless something has changed since, and nothing but how they are scored (SCORING, `sources.reward`) and the
    inputs `results`, which have no part in them; also None where DVC no longer has them.
    """
    lock = Path("dvc.lock")
    facts: dict[str, Any] | None = read_yaml(lock)["stages"].get(run.stage) if lock.exists() else None
    if facts is None:
        return None
    parameters, written = facts["params"]["params.yaml"], read_yaml(Path("params.yaml"))
    changed = {name for name in run.parameters if value_of(written, name) != parameters.get(name)}
    inputs = {Path(dep["path"]): dep["md5"] for dep in facts["deps"]}
    changed |= {str(path) for path, md5 in inputs.items() if not path.exists() or dvc_hash(path) != md5}
    may_change = {*SCORING, *map(str, results)}
    sources = run.settings.sources.model_dump()
    reward = Path(sources.pop("reward"))
    if not any(Path(other).is_relative_to(reward) for other in sources.values() if other):
        may_change.add(str(reward))
    if not changed or not changed <= may_change:
        return None
    copy = scratch / f"recorded{run.share.suffix}"
    shutil.rmtree(copy, ignore_errors=True)
    command = [sys.executable, "-m", "dvc", "get", "--quiet", ".", str(out), "--out", str(copy)]
    if subprocess.run(command, capture_output=True).returncode:
        return None
    return copy if dvc_hash(copy) in [each["md5"] for each in facts["outs"] if each["path"] == str(out)] else None


def score_again(run: StageRun, domain: Domain, dialogues: TrajectoryStore, store: TrajectoryStore) -> None:
    """Write `dialogues` into `store`, shard by shard, with the scores that the domain's settings give them now.

    Lost ones stay lost. Shards that are there already are left alone.
    """
    present = store.shards()
    with domain.open() as tools, Meter(run.stage, len(dialogues), "dialogues scored again") as meter:
        scorer = scorer_of(domain, tools)
        for index in dialogues.shards():
            members = [unscored(dialogue) for dialogue in dialogues.read_shard(index)]
            if index not in present and (run.mine is None or run.mine(index)):
                store.write_shard(index, scored(members, scorer))
            meter(len(members))
    print(f"{run.stage}: {len(dialogues)} dialogues scored again, none played", flush=True)
