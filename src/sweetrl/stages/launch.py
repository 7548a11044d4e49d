"""Stages that are started from here: one in several processes, which train together as `torchrun`'s do or each make a
share of its parts, and one in a folder of its own.

`model.processes` is the number of processes; on several machines torchrun starts a stage itself (docs/performance.md).

The variants of a reproduction and the iterations after the first run their stages in folders of their own: such a
folder has a params.yaml and the inputs of its stages, and is worked in like a project. A finished stage is known by its
run file, an unfinished one by its scratch folder: whatever was killed goes on where it was.
"""

from __future__ import annotations

import ctypes
import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from sweetrl.config.settings import ModelSettings, Settings
from sweetrl.errors import UserError
from sweetrl.io import private_folder, write_text
from sweetrl.paths import ROOT_VARIABLE, RUNS
from sweetrl.stages.scratch import VARIABLE, Share
from sweetrl.tracking.runs import PARENT_VARIABLE

logger = logging.getLogger("sweetrl")
LAUNCHED = "WORLD_SIZE"  # in the environment of every process that torchrun, accelerate or `launch` has started
STARTER = "SWEETRL_DIE_WITH_PARENT"  # the process that has started this one, and which this one is to end with
_LIBRARY = ctypes.CDLL(None)  # loaded here: between fork and exec it must not be


def end_with_starter() -> None:
    """Let this process end when its parent does, however that ends (Linux); now, if its starter has ended already."""
    if sys.platform == "linux":
        _LIBRARY.prctl(1, signal.SIGTERM)  # 1: PR_SET_PDEATHSIG
        starter = os.environ.get(STARTER)
        if starter and not Path("/proc", starter).exists():  # it ended while this process was still importing
            sys.exit(128 + signal.SIGTERM)


def wants_processes(settings: ModelSettings) -> bool:
    """Whether a stage is to start others of its kind: not where a launcher has started it, nor for a single one."""
    return LAUNCHED not in os.environ and settings.processes > 1 and processes_of(settings)[0] > 1


def processes_of(settings: ModelSettings) -> tuple[int, list[str]]:
    """Return how many processes a stage starts, and the GPU of each: as many as there are, if GPUs are used.

    Where one is named (`cuda:1`) there is one process: others would have to share it, and see no GPU of that number.
    """
    import torch

    if settings.device.startswith("cuda:"):
        return 1, []
    if not (settings.device.startswith("cuda") or (settings.device == "auto" and torch.cuda.is_available())):
        return settings.processes, []
    visible = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(torch.cuda.device_count())))
    gpus = visible.split(",")[: settings.processes]
    if len(gpus) < settings.processes:
        logger.info("model.processes: %d of %d, one for each GPU", len(gpus), settings.processes)
    return len(gpus), gpus


def launch(settings: ModelSettings) -> int:
    """Run this very command in so many processes (`processes_of`), and return their exit status.

    They end together: where one fails the others are ended, and where this one is ended so are they. A killed stage
    goes on from its last checkpoint; with another number of processes, which gives other bytes, it begins anew.
    """
    from torch.distributed.elastic.multiprocessing.api import DefaultLogsSpecs, SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    count, _ = processes_of(settings)
    # Its reports of a failed process are tables; the process itself has said in a sentence what was wrong.
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    if settings.sharding == "fsdp2":
        os.environ["ACCELERATE_USE_FSDP"] = "true"
    os.environ[STARTER] = str(os.getpid())
    os.environ.setdefault("OMP_NUM_THREADS", str(settings.threads))
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=count,
        run_id="sweetrl",
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,
        logs_specs=DefaultLogsSpecs(),
    )
    try:
        elastic_launch(config, sys.executable)(*sys.orig_argv[1:])
    except ChildFailedError as error:
        rank, failed = error.get_first_failure()
        if failed.exitcode > 0:
            return failed.exitcode
        say = f"process {rank} of {count} {_ended(failed.exitcode)}; run the same command again to go on."
        print(f"error: {say}", file=sys.stderr)
        return 128 - failed.exitcode
    except SignalException as error:
        return 128 + error.sigval
    return 0


def make_shares(stage: str, settings: ModelSettings) -> None:
    """Make the parts of `stage` in so many shares (`processes_of`, sweetrl.stages.scratch) side by side.

    Where one fails the others are ended and a UserError says so. Finished parts stay.
    """
    own = {**os.environ, STARTER: str(os.getpid()), "SWEETRL_TRACKING": "off"}
    own.setdefault("OMP_NUM_THREADS", str(settings.threads))
    command = [sys.executable, "-m", f"sweetrl.stages.{stage}"]
    count, gpus = processes_of(settings)
    shares = list[subprocess.Popen[bytes]]()
    try:
        for index in range(count):
            own[VARIABLE] = str(Share(index, count))
            if gpus:
                own["CUDA_VISIBLE_DEVICES"] = gpus[index]
            shares.append(subprocess.Popen(command, env=own, start_new_session=True))
        while None in (ended := [share.poll() for share in shares]) and not any(ended):
            time.sleep(0.05)
    finally:
        for share in shares:
            share.terminate()
            share.wait()
    for index, status in enumerate(ended):
        if status:
            raise UserError(f"{stage}: share {index} of {count} {_ended(status)}; run the same command again to go on.")


def _ended(status: int) -> str:
    """How a process with this exit status ended; -n is the signal n, which has killed it."""
    if status >= 0:
        return f"ended with {status}"
    return f"was killed (signal {-status}{', perhaps for lack of memory' if status == -9 else ''})"


def prepare(folder: Path, tree: Mapping[str, Any]) -> None:
    """Make (or find) `folder` with the parameters `tree`; what is left of other parameters is removed."""
    text = yaml.safe_dump(dict(tree), sort_keys=False)
    place = folder / "params.yaml"
    if not place.exists() or place.read_text(encoding="utf-8") != text:
        shutil.rmtree(folder, ignore_errors=True)
        write_text(place, text)


def link(source: Path, place: Path) -> None:
    """Let `place` be what `source` is; a source that is not there is a UserError."""
    if place.is_symlink():
        return
    if not source.exists():
        raise UserError(f"{source}: there is nothing here yet; run the part that makes it (`dvc repro`) first.")
    private_folder(place.parent)
    place.symlink_to(source.resolve())


def link_named(settings: Settings, folder: Path, root: Path | None = None) -> None:
    """Let the prompts, recording and judge that `settings` name by relative paths be those of `root` in `folder`."""
    prompts = (settings.agent.prompt, settings.simulator.prompt, settings.judge.prompt)
    for name in filter(None, (*prompts, settings.simulator.recording, settings.judge.model)):
        if (source := (root or Path()) / name).exists() and not Path(name).is_absolute():
            link(source, folder / name)


def finished(folder: Path, stage: str) -> bool:
    """Whether `stage` has ended well in `folder`."""
    return (folder / RUNS / f"{stage}.json").exists()


def run_stage_in(folder: Path, stage: str, parent: str | None = None, module: str = "", part: str = "") -> None:
    """Run one stage in `folder`, under the MLflow run `parent`; where it fails, a UserError names `part`."""
    module = module or f"sweetrl.stages.{stage.replace('-', '_')}"
    environment = {**os.environ, STARTER: str(os.getpid()), "PYTHONUNBUFFERED": "1"}
    environment.setdefault(ROOT_VARIABLE, str(Path.cwd()))  # where the project's own plug-ins are found
    environment.pop(VARIABLE, None)  # the outer stage's share is not this stage's
    if parent:
        environment[PARENT_VARIABLE] = parent
    done = subprocess.run([sys.executable, "-m", module], cwd=folder, env=environment)
    if status := done.returncode:
        now = "what it said stands above" if status > 0 else "run the same command again to go on"
        raise UserError(f"{part or folder}: stage `{stage}` {_ended(status)}; {now}.")


def absolute_tracking(tracking: Mapping[str, Any], root: Path) -> dict[str, Any]:
    """Return the section `tracking` with the embedded store of `root`, for a stage that runs in another folder."""
    uri, artifacts = str(tracking["uri"]), str(tracking["artifacts"])
    root = root.resolve()
    if uri.startswith("sqlite:///") and not uri.startswith("sqlite:////"):
        uri = f"sqlite:///{root / uri.removeprefix('sqlite:///')}"
    return {**tracking, "uri": uri, "artifacts": artifacts if "://" in artifacts else str(root / artifacts)}
