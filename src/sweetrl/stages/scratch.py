"""Scratch folders: what a stage has made so far, kept until its result is recorded; and shares of a stage's work.

A killed run finds its shards and checkpoints there. A stage that has ended well leaves its folder, too: DVC takes some
seconds to read and record what was made, and whoever interrupts it then would lose hours. By then the folder holds a
file `finished.json`, and it is removed as soon as a dvc.lock names the run file that the stage wrote, and DVC's cache
has all outputs beside that: in a fresh clone dvc.lock names them before anything is recorded.

`collect` and `evaluate` have shards, `rank` has blocks: parts whose bytes depend on nothing else. With
SWEETRL_SHARE=2/8 a stage makes every eighth part from number 2 on, leaves them in its scratch folder (which all
processes must see), and writes no result. The stage without that variable finds what is there, makes what is missing,
and writes the same bytes as if it had been alone.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import sweetrl
from sweetrl.config.yaml_files import read_yaml
from sweetrl.errors import UserError
from sweetrl.file_hashes import cached, dvc_hash, file_hash
from sweetrl.io import read_json, write_json
from sweetrl.paths import FINISHED, RUNS, SCRATCH

VARIABLE = "SWEETRL_SHARE"
SPREAD = ("collect", "rank", "evaluate")


@dataclass(frozen=True)
class Share:
    """Every `count`-th part from `index` (from 0) on; the default is all of them. Call it with a part's number."""

    index: int = 0
    count: int = 1

    def __call__(self, part: int) -> bool:
        """Whether `part` belongs to this share."""
        return part % self.count == self.index

    @property
    def is_all(self) -> bool:
        """Whether this share is all parts."""
        return self.count == 1

    @property
    def suffix(self) -> str:
        """The end of this share's file names, which keeps them apart from others'; empty for all parts."""
        return "" if self.is_all else f"-{self.index}-of-{self.count}"

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"


def current_share() -> Share:
    """Return the share that the environment asks for; UserError where it makes no sense."""
    text = os.environ.get(VARIABLE, "")
    if not text:
        return Share()
    index, slash, count = text.partition("/")
    if not (slash and index.isdecimal() and count.isdecimal() and int(index) < int(count)):
        raise UserError(f"{VARIABLE}={text}: this is no share; write INDEX/COUNT, as in 0/4 for the first of four.")
    return Share(int(index), int(count))


def keep_finished(stage: str, folders: Iterable[Path]) -> None:
    """Keep the scratch `folders` of a stage that has just ended well, and no others of that stage that have.

    Called in the project's folder, with the stage's run file written. Outside of a DVC project nobody records anything
    but that file, and nothing is kept.
    """
    own = set(folders)
    kept = own if Path("dvc.yaml").exists() else set()
    for folder in (own | {folder for folder, facts in _finished(Path()) if facts["stage"] == stage}) - kept:
        shutil.rmtree(folder, ignore_errors=True)
    for folder in kept:
        facts = {"stage": stage, "code": _code(), "run_file": file_hash(RUNS / f"{stage}.json")}
        write_json(folder / FINISHED, facts)


def remove_recorded(root: Path) -> None:
    """Remove finished scratch folders of `root` whose results DVC has recorded, or that other code has made."""
    for folder, facts in _finished(root):
        if facts["code"] != _code() or _recorded(root, facts["run_file"]):
            shutil.rmtree(folder, ignore_errors=True)


def _recorded(root: Path, run_file: str) -> bool:
    for path in (*root.glob("dvc.lock"), *root.glob("*/dvc.lock")):
        for stage in read_yaml(path).get("stages", {}).values():
            hashes = [out["md5"] for out in stage.get("outs", [])]
            if run_file in hashes and all(cached(each, root).exists() for each in hashes):
                return True
    return False


def _finished(root: Path) -> list[tuple[Path, dict[str, str]]]:
    return [(place.parent, read_json(place)) for place in sorted((root / SCRATCH).glob(f"*/{FINISHED}"))]


def _code() -> str:
    """The hash of the package that runs here."""
    return dvc_hash(Path(sweetrl.__file__).parent)
