"""What `sweetrl view` is asked for: a folder, the dialogues behind a registered version, or those of a tracked run.

Dialogues of the past are in DVC's cache under the hash that the version or run names. They are read from there, without
a checkout: links to the cached files are put into a folder that goes with the process.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from configparser import ConfigParser
from configparser import Error as ConfigError
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from sweetrl.errors import UserError
from sweetrl.io import read_json
from sweetrl.paths import (
    CRITIC,
    EVALUATION,
    EVALUATION_DIALOGUES,
    PREFERENCES,
    REPORT,
    RESULTS,
    RUNS,
    TRAJECTORIES,
)

if TYPE_CHECKING:
    from sweetrl.settings import Settings

WANTED = (EVALUATION_DIALOGUES, TRAJECTORIES, PREFERENCES, RESULTS, EVALUATION, REPORT, CRITIC)
_RUN = re.compile(r"[0-9a-f]{32}")
_HASH = re.compile(r"([0-9a-f]{2})([0-9a-f]{30}(?:\.dir)?)")


@dataclass(frozen=True)
class Target:
    """A folder laid out like a project's, what it is called, and the runs (by stage) that made what lies in it."""

    folder: Path
    title: str
    runs: Mapping[str, str] = field(default_factory=dict)


def find_target(name: str, settings: Settings, scratch: Path) -> Target:
    """Return what `name` means: a path, MODEL@ALIAS or MODEL/VERSION, or the id of a run; `scratch` takes links."""
    path = Path(name)
    if path.exists():
        return Target(path, path.resolve().name, _notes(path))
    if _RUN.fullmatch(name):
        return _of_run(name, settings, scratch)
    if "@" in name or re.fullmatch(r"[\w.-]+/\d+", name):
        from sweetrl.tracking.lineage import lineage

        found = lineage(name, settings.tracking)
        runs = {stage.name: stage.run_id for stage in found.stages}
        return Target(_linked(found.data, name, scratch), f"{found.model} version {found.version}", runs)
    raise UserError(f"{name}: there is no such folder; give a folder, a file, MODEL@ALIAS, or the id of a run.")


def _of_run(run_id: str, settings: Settings, scratch: Path) -> Target:
    """The project's folder where this run made what lies in it, else what the run has read."""
    here = Path()
    noted = _notes(here)
    if run_id in noted.values() or run_id in _notes(here, "parent_run_id").values():
        return Target(here, f"run {run_id[:8]}", noted)
    from sweetrl.tracking.lineage import Records

    found = Records(settings.tracking).run(run_id)
    if found is None:
        raise UserError(f"{run_id}: the tracking store knows no such run; `sweetrl lineage` names those of a version.")
    data = {one.path: one.hash for one in found.facts.inputs if one.path}
    return Target(_linked(data, f"run {run_id}", scratch), f"run {run_id[:8]} ({found.facts.name})")


def _notes(folder: Path, key: str = "run_id") -> dict[str, str]:
    notes = (read_json(path) for path in sorted((folder / RUNS).glob("*.json")))
    return {note["stage"]: note.get(key) or "" for note in notes if isinstance(note, dict) and "stage" in note}


def _linked(data: Mapping[str, str], name: str, scratch: Path) -> Path:
    """Link what of `data` (path -> DVC hash) the viewer reads into `scratch`; UserError where the cache lacks it."""
    wanted = {path: data[path.as_posix()] for path in WANTED if path.as_posix() in data}
    if not {EVALUATION_DIALOGUES, TRAJECTORIES, RESULTS} & wanted.keys():
        raise UserError(f"{name}: it names no dialogues; give a version that `sweetrl run` has registered.")
    cache = _cache()
    for path, found in wanted.items():
        content = _cached(cache, found, name, path)
        rows = [("", content)]
        if found.endswith(".dir"):
            rows = [(below, _cached(cache, md5, name, path)) for below, md5 in _listed(content, f"{name}: {path}")]
        for below, source in rows:
            target = scratch / path / below if below else scratch / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.symlink_to(source.resolve())
    return scratch


def _listed(listing: Path, where: str) -> list[tuple[str, str]]:
    """Read DVC's listing of a folder: paths below the folder, and hashes. It may be another's: no path leads out."""
    rows = read_json(listing)
    found = []
    for row in rows if isinstance(rows, list) else [None]:
        below, md5 = (row.get("relpath"), row.get("md5")) if isinstance(row, dict) else (None, None)
        parts = PurePosixPath(below).parts if isinstance(below, str) else ()
        if not isinstance(md5, str) or not parts or parts[0] == "/" or ".." in parts or "\0" in "".join(parts):
            raise UserError(f"{where}: DVC's listing {listing} is damaged; remove it, and `dvc fetch` it again.")
        found.append((str(below), md5))
    return found


def _cached(cache: Path, found: str, name: str, path: Path) -> Path:
    parts = _HASH.fullmatch(found)
    place = cache / parts[1] / parts[2] if parts else cache / "none"
    if not place.exists():
        raise UserError(f"{name}: {path} ({found}) is not in DVC's cache {cache}; `dvc fetch` at its commit brings it.")
    return place


def _cache() -> Path:
    """DVC's cache of the project that we stand in."""
    settings = ConfigParser()
    try:
        settings.read([".dvc/config", ".dvc/config.local"], encoding="utf-8")
        folder = settings.get("cache", "dir", fallback="cache")
    except (ConfigError, UnicodeDecodeError):
        folder = "cache"
    return Path(".dvc") / folder / "files" / "md5"
