"""What `sweetrl view` shows, and which dialogues are there.

It shows a folder, the dialogues behind a registered version, or those of a tracked run. Dialogues of the past are
in DVC's cache under the hash that the version or run names. They are read from there, without a checkout: links to the
cached files are put into a folder that goes with the process.

In a folder there are shards, official trajectory files, and measured results that are numbers only.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Literal

from sweetrl.bounded import LONGEST_ROW, lines, open_parquet
from sweetrl.colbench.store import GROWING, TrajectoryStore
from sweetrl.errors import UserError
from sweetrl.file_hashes import cached
from sweetrl.io import read_json
from sweetrl.paths import (
    CRITIC,
    EVALUATION,
    EVALUATION_DIALOGUES,
    PREFERENCES,
    REPORT,
    RESULTS,
    SCRATCH,
    TRAJECTORIES,
)

if TYPE_CHECKING:
    from sweetrl.config.settings import Settings

Kind = Literal["shards", "file", "results"]

SKIPPED = {"models", "mlartifacts", "node_modules", "__pycache__", "figures", "data-docs", "wandb", "tensorboard"}
RANKING, PAIRS = "candidates.parquet", "preferences.parquet"
FIRST = "sweet"  # of several rankings of one source the one that the list shows
SUMMARY = "summary.json"  # beside measured results: what each file is
# What is read of a project's files.
READ = (EVALUATION_DIALOGUES, TRAJECTORIES, PREFERENCES, RESULTS, EVALUATION, REPORT, CRITIC)
_RUN = re.compile(r"[0-9a-f]{32}")
_HASH = re.compile(r"[0-9a-f]{32}(\.dir)?")


@dataclass(frozen=True)
class Ranking:
    """Candidates at the turns of a source's dialogues: the folder that `rank` writes, and what it is called."""

    name: str
    folder: Path


@dataclass(frozen=True)
class Source:
    """Dialogues that belong together. `name` is the path below the folder that is looked at: part of addresses.

    `stage` says what they were made for. `method` is who acted, empty where each dialogue says it. `seed` is the
    training's (studies), `round` the iteration. `temperature` and `persona` are those of measured results.
    `total` is how many dialogues it will have where a stage is still making them, else 0.
    """

    name: str
    path: Path
    kind: Kind
    stage: str
    method: str = ""
    seed: str = ""
    temperature: float | None = None
    persona: str = ""
    round: int = 1
    total: int = 0
    rankings: tuple[Ranking, ...] = ()

    @cached_property
    def files(self) -> list[Path]:
        """The files that decide what the index of this source holds."""
        own = sorted(self.path.glob("shard-*.parquet")) if self.kind == "shards" else [self.path]
        ranked = [ranking.folder / name for ranking in self.rankings[:1] for name in (RANKING, PAIRS)]
        return own + [path for path in ranked if path.exists()]


def find_sources(folder: Path) -> list[Source]:
    """Return what dialogues `folder` (or a single file) has, in a fixed order; none is a UserError.

    Of a project (a folder with params.yaml) that is what its stages have written, data/ and reports/, and what those
    that run now have finished.
    """
    folder = Path(folder)
    if not folder.exists():
        raise UserError(f"{folder}: there is no such folder or file; name one with dialogues, a run or MODEL@ALIAS.")
    if folder.is_file():
        if (kind := _kind_of(folder)) is None:
            raise UserError(
                f"{folder}: this is neither an official trajectory file (.jsonl) nor results of an evaluation "
                "(.parquet); name one, or a folder of shards."
            )
        return [Source(folder.name, folder, kind, "dialogues", folder.stem)]
    roots = [folder]
    if (folder / "params.yaml").exists() and (folder / "data").is_dir():
        roots = [root for root in (folder / "data", folder / "reports") if root.is_dir()]
    sources = [source for root in roots for source in _below(root, folder)]
    running = [_shards(mark.parent, folder) for mark in sorted((folder / SCRATCH).rglob(GROWING))]
    sources += [source for source in running if source.total]  # who was killed writes no more
    rankings = _rankings([source.path for source in sources], folder)
    spoken = {source.path.parent for source in sources if source.kind == "shards"}
    sources = [
        replace(source, rankings=tuple(rankings.get(source.path, ())))
        for source in sources
        # The numbers of dialogues that are there themselves would be there twice.
        if source.kind != "results" or source.path.parent.parent / "data/evaluation" not in spoken
    ]
    if not sources:
        raise UserError(
            f"{folder}: there are no dialogues here (shards or official trajectory files); run `sweetrl run`, or name "
            "another folder."
        )
    return sources


def _below(root: Path, folder: Path) -> Iterator[Source]:
    seen = set[Path]()  # links are followed, each to a folder that has not been read: results may lie on another disk
    for place, folders, names in os.walk(root, followlinks=True):
        here = Path(place)
        if (real := here.resolve()) in seen:
            folders.clear()
            continue
        seen.add(real)
        folders[:] = sorted(name for name in folders if name not in SKIPPED and not name.startswith("."))
        if any(re.fullmatch(r"shard-\d{5,}\.parquet", name) for name in names):
            yield _shards(here, folder)
            folders.clear()
            continue
        measured = _measured(here / SUMMARY) if SUMMARY in names else {}
        for name in sorted(names):
            path = here / name
            kind = _kind_of(path)
            if kind == "results":
                yield _results(path, folder, measured)
            elif kind == "file":
                yield Source(_name(path, folder), path, "file", "dialogues", path.stem)


def _shards(path: Path, folder: Path) -> Source:
    """Name a folder of shards by where it lies, as stages and studies lay theirs."""
    parts = path.resolve().parts
    after = dict(pairwise(parts))  # by a folder's name that of the one in it
    iteration = after.get("iterations", "")
    stage, method = "dialogues", "" if path == folder else path.name
    if path.name == "trajectories":
        stage, method = "collect", ""
    elif path.parent.name == "evaluation":
        stage = "evaluate"
    if SCRATCH.name in after:  # evaluate-0f1e2d3c4b5a6978/dialogues/trained
        stage = after[SCRATCH.name].rpartition("-")[0]
        method = path.name if stage == "evaluate" else ""
    if total := TrajectoryStore(path).growing_to():
        stage += ", running"  # no evaluation yet: nothing is compared with it
    number = int(iteration) if iteration.isdecimal() else 1
    seed = after.get("seed-data", "")
    return Source(_name(path, folder), path, "shards", stage, method, seed, round=number, total=total)


def _measured(path: Path) -> dict[str, tuple[float, str]]:
    """By a file's name its temperature and user, as a study's summary says; one of another form says nothing."""
    try:
        return {
            row["file"]: (float(row["temperature"]), row["persona"]) for row in read_json(path, LONGEST_ROW)["measured"]
        }
    except (KeyError, TypeError, ValueError):
        return {}


def _results(path: Path, folder: Path, measured: Mapping[str, tuple[float, str]]) -> Source:
    """Measured results: METHOD/SEED/t0.25-terse.parquet, and beside them what each file is."""
    own = (path.parent.parent.name, path.parent.name, *measured[path.name]) if path.name in measured else ()
    return Source(_name(path, folder), path, "results", "evaluate", *own)


def _rankings(paths: list[Path], folder: Path) -> dict[Path, list[Ranking]]:
    """Rankings by the folder of the dialogues that they rank: beside it, or a study's variants of one seed."""
    rankings: dict[Path, list[Ranking]] = {}
    for path in paths:
        beside = path.parent / "preferences"
        if path.name == "trajectories" and (beside / RANKING).exists():
            rankings.setdefault(path, []).append(Ranking("the ranking", beside))
        if path.parent.parent.name == "seed-data":
            variants = path.parent.parent.parent / "variants"
            for candidates in sorted(variants.glob(f"*/{path.parent.name}/preferences/{RANKING}")):
                method = candidates.parent.parent.parent.name
                rankings.setdefault(path, []).append(Ranking(method, candidates.parent))
    return {path: sorted(some, key=lambda each: (each.name != FIRST, each.name)) for path, some in rankings.items()}


def _name(path: Path, folder: Path) -> str:
    return path.relative_to(folder).as_posix() if path != folder else path.resolve().name


def _kind_of(path: Path) -> Kind | None:
    """Say what a file is by its columns, or by its first line that is not blank; None where it has no dialogues."""
    from sweetrl.types import Result

    try:
        if path.suffix == ".parquet":
            with open_parquet(path) as file:
                return "results" if {column.name for column in fields(Result)} <= set(file.schema_arrow.names) else None
        row = json.loads(next(filter(bytes.strip, lines(path)), b"")) if path.suffix == ".jsonl" else None
    except (UserError, OSError, ValueError, RecursionError):
        return None
    return "file" if isinstance(row, dict) and "dialogue_history" in row and "task" in row else None


@dataclass(frozen=True)
class Target:
    """A folder laid out like a project's, its title, and its runs by stage (None: the tracking store says them)."""

    folder: Path
    title: str
    runs: Mapping[str, str] | None = None


def find_target(name: str, settings: Settings, scratch: Path) -> Target:
    """Return what `name` means: a path, MODEL@ALIAS or MODEL/VERSION, or the id of a run; `scratch` takes links."""
    path = Path(name)
    if path.exists():
        return Target(path, path.resolve().name)
    if _RUN.fullmatch(name):
        return _of_run(name, settings, scratch)
    if "@" in name or re.fullmatch(r"[\w.-]+/\d+", name):
        from sweetrl.tracking.lineage import lineage

        registered = lineage(name, settings.tracking)
        runs = {stage.name: stage.run_id for stage in registered.stages}
        return Target(_linked(registered.data, name, scratch), f"{registered.model} version {registered.version}", runs)
    raise UserError(f"{name}: there is no such folder; give a folder, a file, MODEL@ALIAS, or the id of a run.")


def _of_run(run_id: str, settings: Settings, scratch: Path) -> Target:
    """The project's folder where this run made what lies in it, else what the run has read."""
    from sweetrl.tracking.lineage import Records

    records = Records(settings.tracking)
    facts, here = records.run(run_id), records.made(Path())
    if any(run_id in (run.run_id, run.parent) for run in here.values()):
        return Target(Path(), f"run {run_id[:8]}", {stage: run.run_id for stage, run in here.items()})
    if facts is None:
        raise UserError(f"{run_id}: the tracking store knows no such run; `sweetrl lineage` names those of a version.")
    data = {file.path: file.hash for file in facts.inputs}
    return Target(_linked(data, f"run {run_id}", scratch), f"run {run_id[:8]} ({facts.name})", {})


def _linked(data: Mapping[str, str], name: str, scratch: Path) -> Path:
    """Link what of `data` (path -> DVC hash) the viewer reads into `scratch`; UserError where the cache lacks it."""
    hashes = {path: data[path.as_posix()] for path in READ if path.as_posix() in data}
    if not {EVALUATION_DIALOGUES, TRAJECTORIES, RESULTS} & hashes.keys():
        raise UserError(f"{name}: it names no dialogues; give a version that `sweetrl run` has registered.")
    for path, content_hash in hashes.items():
        content = _cached(content_hash, f"{name}: {path}")
        files = _listed(content, f"{name}: {path}") if content_hash.endswith(".dir") else [("", content_hash)]
        for below, md5 in files:
            target = scratch / path / below
            target.parent.mkdir(parents=True, exist_ok=True)
            target.symlink_to(_cached(md5, f"{name}: {path}").resolve())
    return scratch


def _listed(listing: Path, where: str) -> list[tuple[str, str]]:
    """Read DVC's listing of a folder: paths below the folder, and hashes. It may be another's: no path leads out."""
    rows, files = read_json(listing), list[tuple[str, str]]()
    for row in rows if isinstance(rows, list) else [None]:
        below, md5 = (row.get("relpath"), row.get("md5")) if isinstance(row, dict) else (None, None)
        parts = PurePosixPath(below).parts if isinstance(below, str) else ()
        if not isinstance(md5, str) or not parts or parts[0] == "/" or ".." in parts or "\0" in "".join(parts):
            raise UserError(f"{where}: DVC's listing {listing} is damaged; remove it, and `dvc fetch` it again.")
        files.append((str(below), md5))
    return files


def _cached(content_hash: str, where: str) -> Path:
    """Return the file with this hash in the DVC cache of the project that we stand in."""
    place = cached(content_hash)
    if not _HASH.fullmatch(content_hash) or not place.exists():
        raise UserError(f"{where} ({content_hash}) is not in DVC's cache; `dvc fetch` at its commit brings it.")
    return place
