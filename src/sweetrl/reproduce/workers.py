"""All parts of a profile, several at a time: each is a stage of dvc.yaml, run by `dvc` as a program.

DVC runs one stage after the other; the variants of a reproduction do not need each other and use one core each.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from graphlib import TopologicalSorter
from pathlib import Path

from sweetrl.console.progress import Meter
from sweetrl.errors import UserError
from sweetrl.io import OWNER_UMASK, private_file, private_folder
from sweetrl.reproduce.run import WORK, Profile
from sweetrl.stages.launch import STARTER, end_with_starter

LOGS = WORK / "logs"
MOST = 8  # workers by default: each takes some GiB
# A variant's folder, and its stages in dvc.yaml: training, and what its policy does then.
_STAGES = {
    "variants": ("variant", "measure"),
    "large": ("large", "measure-large"),
    "online": ("online", "measure-online"),
}


def parts(profile: Profile, names: Sequence[str] = ()) -> dict[str, set[str]]:
    """Return what can be run side by side (all but the report): the name of a stage, and those that it needs.

    With `names`, of these variants alone. One that the profile does not list is a UserError.
    """
    if other := set(names) - {variant.name for variant in profile.variants}:
        raise UserError(f"params.yaml: the profile lists no variant `{min(other)}`; add it to its `variants`.")
    variants = [each for each in profile.variants if not names or each.name in names]
    first = {"warm-start"} if profile.settings["warm_start"]["base"] else set[str]()
    first |= {"base"} if "base_settings" in profile.values else set()
    needs_of: dict[str, set[str]] = {name: set() for name in first}
    needs_of |= {f"seed-data@{seed}": first for seed in profile.seeds}
    if any(variant.folder == "large" for variant in variants):
        needs_of["base-large"] = set()
    for variant in variants:
        for seed in profile.seeds_of(variant):
            needs = {f"seed-data@{seed}", *(["base-large"] if variant.folder == "large" else [])}
            training, measuring = (f"{stage}@{variant.name}-{seed}" for stage in _STAGES[variant.folder])
            needs_of |= {training: needs, measuring: {*needs, training}}
    for name in [each for each in profile.values["critics"] if not names or each in names]:
        for seed in profile.values["best_of_n_seeds"]:
            needs_of[f"best-of-n@{name}-{seed}"] = {f"seed-data@{seed}", f"variant@{name}-{seed}"}
    return needs_of


def default_workers(profile: Profile) -> int:
    """Return how many parts the processors are enough for, by the threads that each is given (0: all of them)."""
    threads = int(profile.settings["model"]["threads"])
    return max(1, min(MOST, (os.cpu_count() or 1) // threads)) if threads else 1


def run_all(profile: Profile, workers: int, program: Sequence[str] = ("dvc",), names: Sequence[str] = ()) -> None:
    """Run every part (or those of the variants `names`) in `workers` workers, then the report.

    UserError names the parts that failed.

    What a failed part was needed for is not begun. What is finished stays finished: the same call goes on after a
    failure, or after this process was ended.
    """
    logs = private_folder(profile.folder / LOGS)
    needs = parts(profile, names)
    waiting = TopologicalSorter(needs)
    waiting.prepare()
    failed: list[str] = []
    running: dict[Future[bool], str] = {}
    print(f"{len(needs)} parts, {workers} at a time; what they say is in {logs}", file=sys.stderr)
    with Meter("reproduce", len(needs), "parts") as meter, ThreadPoolExecutor(workers) as pool:
        try:
            while True:
                running |= {pool.submit(_run, part, profile.folder, program): part for part in waiting.get_ready()}
                if not running:
                    break
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    part = running.pop(future)
                    if future.result():
                        waiting.done(part)
                    else:
                        failed.append(part)
                    meter(1)
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)  # the programs under way got the signal, too
            raise
    if failed:
        raise UserError(
            f"reproduce: {', '.join(failed)} failed; {logs / failed[0]}.log says why. What is finished is kept: run "
            "the same command to go on."
        )
    # A profile may list nothing of a kind (`large: []`); DVC wants the folder that the report would read of it.
    for folder in (*_STAGES, "best-of-n", "measured"):
        (profile.folder / folder).mkdir(exist_ok=True)
    # The report alone: dvc.yaml has every variant on every seed, and not all of them are wanted.
    report = [*program, "repro", "--single-item", "dvc.yaml:report"]
    if subprocess.run(report, cwd=profile.folder, check=False).returncode:
        raise UserError("reproduce: the report failed, as said above; run the same command to go on.")


def _run(part: str, folder: Path, program: Sequence[str]) -> bool:
    """Run one part, which writes into a log of its own; return whether it went well."""
    # Two workers meet at DVC's own lock for a moment, before and after a stage.
    command = [*program, "--wait-for-lock", "repro", "--single-item", f"dvc.yaml:{part}"]
    with private_file(folder / LOGS / f"{part}.log").open("wb") as log:
        status = subprocess.run(
            command,
            cwd=folder,
            env={**os.environ, STARTER: str(os.getpid())},
            stdout=log,
            stderr=subprocess.STDOUT,
            check=False,
            umask=OWNER_UMASK,
            preexec_fn=end_with_starter,  # else the next `all` finds what it makes locked
        ).returncode
    return status == 0
