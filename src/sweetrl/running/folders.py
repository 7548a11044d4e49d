"""A stage in a folder of its own: what the variants of a reproduction and the iterations after the first are made of.

Such a folder has a params.yaml and the inputs of its stages, and is worked in like a project. A finished stage is known
by its run file, an unfinished one by its scratch folder: whatever was killed goes on where it was.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from sweetrl.errors import UserError
from sweetrl.io import private_folder, write_text
from sweetrl.paths import ROOT_VARIABLE, RUNS
from sweetrl.running.share import VARIABLE
from sweetrl.tracking.runs import PARENT_VARIABLE


def prepare(folder: Path, tree: Mapping[str, Any]) -> Path:
    """Make (or find) `folder` with the parameters `tree`; what is left of other parameters is removed."""
    text = yaml.safe_dump(dict(tree), sort_keys=False)
    place = folder / "params.yaml"
    if not place.exists() or place.read_text(encoding="utf-8") != text:
        shutil.rmtree(folder, ignore_errors=True)
        write_text(place, text)
    return folder


def link(source: Path, place: Path) -> None:
    """Let `place` be what `source` is; a source that is not there is a UserError."""
    if place.is_symlink():
        return
    if not source.exists():
        raise UserError(f"{source}: there is nothing here yet; run the part that makes it (`dvc repro`) first.")
    private_folder(place.parent)
    place.symlink_to(source.resolve())


def finished(folder: Path, stage: str) -> bool:
    """Whether `stage` has ended well in `folder`."""
    return (folder / RUNS / f"{stage}.json").exists()


def run_stage_in(folder: Path, stage: str, parent: str | None = None, module: str = "", part: str = "") -> None:
    """Run one stage in `folder`, under the MLflow run `parent`; its words go to the terminal, and it ends with us.

    A stage that fails is a UserError that names `part`.
    """
    module = module or f"sweetrl.stages.{stage.replace('-', '_')}"
    environment = {**os.environ, "SWEETRL_DIE_WITH_PARENT": str(os.getpid()), "PYTHONUNBUFFERED": "1"}
    root = environment.setdefault(ROOT_VARIABLE, str(Path.cwd()))  # where the project's own plug-ins are found
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [environment.get("PYTHONPATH"), root]))
    environment.pop(VARIABLE, None)  # a share of the stage around it is not one of this
    if parent:
        environment[PARENT_VARIABLE] = parent
    done = subprocess.run([sys.executable, "-m", module], cwd=folder, env=environment)
    if done.returncode:
        raise UserError(f"{part or folder}: stage `{stage}` ended with {done.returncode}; what it said stands above.")


def absolute_tracking(tracking: Mapping[str, Any], root: Path) -> dict[str, Any]:
    """Return the section `tracking` with the embedded store of `root`, for a stage that runs in another folder."""
    uri, artifacts = str(tracking["uri"]), str(tracking["artifacts"])
    root = root.resolve()
    if uri.startswith("sqlite:///") and not uri.startswith("sqlite:////"):
        uri = f"sqlite:///{root / uri.removeprefix('sqlite:///')}"
    return {**tracking, "uri": uri, "artifacts": artifacts if "://" in artifacts else str(root / artifacts)}
