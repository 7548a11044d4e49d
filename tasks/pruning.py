"""Pruning: what nobody can ask for any more goes, in an order in which nothing refers to what is gone.

    versions -> their logged models -> runs -> worktrees -> branches -> journals, scratch -> DVC's objects

No list of it is kept: what goes is worked out from what is there. So whoever comes after a death works out the rest,
and a second run has nothing to do. `sweetrl restore N` works from the cache alone for each version that stays.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from sweetrl.config.settings import Settings, load_settings
from sweetrl.errors import UserError
from sweetrl.paths import FINISHED, SCRATCH
from sweetrl.tracking import retention
from sweetrl.tracking.registry import open_reference
from tasks.journal import DONE, Record, one_at_a_time, promoting, recorded
from tasks.objects import Objects, hashes_in, hashes_in_git
from tasks.pipeline import open_repo
from tasks.workspace import (
    BEFORE_RESTORE,
    close_worktree,
    git,
    git_remote,
    head,
    only_run,
    records_in_git,
    remote_name,
    worktree_folder,
)

if TYPE_CHECKING:
    from mlflow.entities.model_registry import ModelVersion

DAY = 86_400.0
THEIRS = "refs/sweetrl/remote"  # where refs of the remote lie here that are no branches
OURS = "retrain/"  # how the names of retrainings' branches begin
COMMITS = ("Retrain on the batch of ", "Merge what came while ")  # what retrainings commit there
OF_STAGES = re.compile(r"[a-z-]+-[0-9a-f]{16}|evaluate-version-.*")  # scratch folders


@dataclass(frozen=True)
class Item:
    """Something that can go: `count` things of one kind."""

    kind: str
    name: str
    size: int
    remove: Callable[[], object] = field(repr=False)
    count: int = 1


@dataclass(frozen=True)
class Plan:
    """What goes, in this order, and why the rest stays: (what, why)."""

    items: tuple[Item, ...]
    stays: tuple[tuple[str, str], ...]

    @property
    def size(self) -> int:
        """How many bytes it frees."""
        return sum(item.size for item in self.items)


def prune(
    home: Path,
    keep: int = 5,
    days: float = 14.0,
    remote: bool = False,
    dry_run: bool = False,
    say: Callable[[str], object] = print,
) -> Plan:
    """Remove what is older than `days` and rests on no version that stays; with `dry_run` only return the plan.

    `keep` of the last champions stay. With `remote`, git's and DVC's remotes are pruned, too.
    """
    settings = load_settings(home / "params.yaml")
    with contextlib.ExitStack() as stack:
        if not dry_run:  # no run here, no new retraining of this machine, no promotion
            stack.enter_context(promoting(home, say))  # first, as a retraining's end does
            stack.enter_context(only_run(home))
            with contextlib.suppress(UserError):
                stack.enter_context(one_at_a_time(home, "batches", say))
        plan = Pruning(settings, home, keep, time.time() - days * DAY, remote).plan()
        for item in () if dry_run else plan.items:
            item.remove()
            say(f"{item.kind} {item.name} removed ({in_mib(item.size)})")
    return plan


def in_mib(size: int) -> str:
    """Return a number of bytes as people read it."""
    return f"{size / 2**20:,.1f} MiB"


class Pruning:
    """Works out what goes: everything before `since` that nothing in use refers to."""

    def __init__(self, settings: Settings, home: Path, keep: int, since: float, remote: bool) -> None:
        self.settings, self.home, self.keep, self.since, self.remote = settings, home, keep, since, remote
        self.registry, _ = open_reference("", settings.tracking, home)
        self.versions = self.registry.versions()
        self.stays, self.journals = list[tuple[str, str]](), list[tuple[Record, bool]]()
        with contextlib.suppress(UserError):  # in no repository there are no retrainings
            self.journals += recorded(home)
        self.unfinished = [record for record, _ in self.journals if not _done(record)]
        self.origin = git_remote(home)
        if remote and self.origin:
            _fetch_all(home, self.origin)
        self.refs = _refs(home)
        self.prefixes = [f"refs/{place}/{OURS}" for place in ("heads", f"remotes/{self.origin}")]
        unfinished = {worktree_folder(home, record.branch) for record in self.unfinished}
        own, listed = home / SCRATCH / "worktrees", _worktrees(home)
        own_trees = sorted({*own.glob("*"), *(tree for tree in listed if tree.is_relative_to(own))} - unfinished)
        self.dead = [tree for tree in own_trees if not tree.is_dir() or _newest(tree) < since]
        self.trees = [tree for tree in listed if tree.is_dir() and tree not in self.dead]  # others' share the cache

    def plan(self) -> Plan:
        """Return what goes."""
        stripped = ((ref, ref.removeprefix(prefix)) for ref in self.refs for prefix in self.prefixes)
        own_refs = {ref: OURS + name for ref, name in stripped if name != ref}
        refs = {facts[0]: ref.partition("/")[2] for ref, facts in self.refs.items() if ref not in own_refs}
        tips = refs | {commit: tree.name for tree in self.trees if (commit := head(tree))}
        stays = self._versions_that_stay(tips)
        kept = [version for version in self.versions if str(version.version) in stays]
        branches = self._branches(own_refs, tips, {version.tags.get("git_commit", "") for version in kept})
        used = [*tips, *(self.refs[ref][0] for ref in own_refs if ref not in branches)]
        items = (
            *self._registered(stays, kept),
            *self._worktrees(),
            *(item for item in branches.values() if item is not None),
            *self._finished_journals(),
            *self._scratch(),
            *self._objects(used, kept),
        )
        return Plan(items, tuple(self.stays))

    def _versions_that_stay(self, tips: Mapping[str, str]) -> dict[str, str]:
        """Return version -> why it stays; `tips` are commits that are in use, and where."""
        places = dict[str, str]()
        for commit, where in tips.items():
            text = git(self.home, "show", f"{commit}:dvc.lock", check=False).stdout
            places |= dict.fromkeys(hashes_in(text), where)
        for file in (tree / "dvc.lock" for tree in self.trees):
            places |= dict.fromkeys(hashes_in(file.read_text(encoding="utf-8")) if file.exists() else (), str(file))
        stays = retention.reasons_to_stay(self.registry, self.versions, self.keep, self.since, places)
        for record in self.unfinished:
            stays[record.last("registered").get("version", "")] = "its retraining is unfinished"
        rules = self.settings.gate
        if rules.fresh_after_comparisons or rules.fresh_after_days:
            stays = dict.fromkeys(retention.newest_comparisons(self.versions), "the gate counts its tests") | stays
        stays = {number: stays[number] for version in self.versions if (number := str(version.version)) in stays}
        self.stays += [(f"version {number}", why) for number, why in stays.items()]
        return stays

    def _registered(self, stays: Collection[str], kept: list[ModelVersion]) -> Iterator[Item]:
        registry, store = self.registry, self.registry.store
        for version in self.versions:
            if str(version.version) not in stays:
                yield Item("version", str(version.version), 0, partial(retention.remove_version, registry, version))
        for model in retention.unused_models(registry, stays, self.since):
            size = retention.artifacts_size(model.artifact_location)
            yield Item("logged model", model.model_id, size, partial(retention.remove_model, store, model))
        named = {str(record.order.get("mark")) for record in self.unfinished}
        for tree in self.trees:
            named |= {run.info.run_id for run in store.stage_runs(tree).values()}
        for run in retention.unused_runs(registry, kept, named, self.since):
            size = retention.artifacts_size(run.info.artifact_uri)
            yield Item("run", f"{run.info.run_name} {run.info.run_id}", size, partial(retention.remove_run, store, run))

    def _worktrees(self) -> Iterator[Item]:
        for folder in self.dead:
            yield Item("worktree", folder.name, _size(folder), partial(close_worktree, self.home, folder))

    def _branches(
        self, own_refs: Mapping[str, str], tips: Iterable[str], lasting: Collection[str]
    ) -> dict[str, Item | None]:
        """The refs of our branches that are not in use: what only they hold was made for no version that stays.

        What removes it is None for one at a remote that is left alone.
        """
        branches, busy = dict[str, Item | None](), {record.branch for record in self.unfinished}
        busy |= {git(tree, "branch", "--show-current", check=False).stdout.strip() for tree in self.trees}
        for ref, branch in own_refs.items():
            commit, when = self.refs[ref]
            log = git(self.home, "log", "--format=%H %s", commit, "--not", *tips).stdout.splitlines()
            own = dict(line.split(" ", 1) for line in log)
            strange = [subject for subject in own.values() if not subject.startswith(COMMITS)]
            if strange:
                self.stays.append((branch, f"holds a commit that is no retraining's: {strange[0][:60]}"))
            if strange or branch in busy or when >= self.since or own.keys() & lasting:
                continue
            branches[ref] = self._branch(ref, branch, commit)
        return branches

    def _branch(self, ref: str, branch: str, commit: str) -> Item | None:
        if ref.startswith("refs/heads/"):
            return Item("branch", branch, 0, partial(git, self.home, "update-ref", "-d", ref, commit))
        if not self.remote:
            return None
        words = f"--force-with-lease=refs/heads/{branch}:{commit}", self.origin, f":refs/heads/{branch}"
        return Item(f"branch of {self.origin}", branch, 0, partial(git, self.home, "push", "-q", *words))

    def _finished_journals(self) -> Iterator[Item]:
        for record, _ in self.journals[:-1]:  # the newest one says what was done last
            path, facts = record.path, record.path.stat()
            if _done(record) and facts.st_mtime < self.since:
                yield Item("journal", path.stem, facts.st_size, path.unlink)

    def _scratch(self) -> Iterator[Item]:
        for folder in sorted((self.home / SCRATCH).glob("*/")):
            if OF_STAGES.fullmatch(folder.name) and _newest(folder) < self.since:
                what = "finished" if (folder / FINISHED).exists() else "unfinished"
                remove = partial(shutil.rmtree, folder, ignore_errors=True)
                yield Item(f"{what} scratch folder", folder.name, _size(folder), remove)

    def _objects(self, commits: Iterable[str], kept: Iterable[ModelVersion]) -> Iterator[Item]:
        home = self.home.resolve()
        with open_repo(home) as repo:
            here = Path(repo.cache.local_cache_dir).resolve()
        busy = (record.branch for record, at_work in self.journals if at_work and not _done(record))
        why = next((f"{branch} is at work" for branch in busy), "")
        if why or not head(home):
            self.stays.append(("DVC's cache", why or "there is no commit that says what is in use"))
            return
        used = hashes_in_git(home, commits, self.trees)
        for lock in (home / BEFORE_RESTORE).glob("*/dvc.lock"):
            if lock.stat().st_mtime >= self.since:
                used |= hashes_in(lock.read_text(encoding="utf-8"))
        for version in kept:
            used |= set(json.loads(version.tags.get("data", "{}")).values())
            with tempfile.TemporaryDirectory() as name:  # what `sweetrl restore` would take
                folder = Path(name)
                records = records_in_git(home, version.tags, folder)
                records = records or self.registry.download(version, "lineage", folder)
                used |= hashes_in((records / "dvc.lock").read_text(encoding="utf-8"))
        if here.is_relative_to(home):
            yield from _sweep("DVC's cache", Objects(home, used, self.since))
        else:
            self.stays.append(("DVC's cache", f"{here} may be shared with others"))
        if self.remote and remote_name(home):
            yield from _sweep("DVC's remote", Objects(home, used, self.since, remote=True))


def _sweep(where: str, objects: Objects) -> Iterator[Item]:
    if objects.paths:
        yield Item(f"objects of {where}", str(len(objects.paths)), objects.size, objects.remove, len(objects.paths))


def _done(record: Record) -> bool:
    """Whether a retraining has ended, or has never got as far as a batch."""
    return bool(record.last(DONE)) or not record.branch


def _fetch_all(home: Path, origin: str) -> None:
    """Bring all that uses data here: also where `home` is a clone of one branch, tags and DVC's experiments, too."""
    shallow = git(home, "rev-parse", "--is-shallow-repository").stdout.strip() == "true"
    places = {"heads": f"refs/remotes/{origin}", "tags": f"{THEIRS}/tags", "exps": f"{THEIRS}/exps"}
    named = (f"+refs/{kind}/*:{place}/*" for kind, place in places.items())
    git(home, "fetch", "-q", "--prune", "--no-tags", *(["--unshallow"] if shallow else []), origin, *named)


def _refs(home: Path) -> dict[str, tuple[str, float]]:
    """Each ref, and each stash, -> its commit and when that was made."""
    lines = git(home, "for-each-ref", "--format=%(refname) %(objectname) %(committerdate:unix)", check=False).stdout
    lines += git(home, "stash", "list", "--format=refs/%gd %H %ct", check=False).stdout
    rows = (line.split() for line in lines.splitlines())
    return {ref: (commit, float(when[0]) if when else 0.0) for ref, commit, *when in rows}


def _worktrees(home: Path) -> list[Path]:
    """The folders of all worktrees of the repository, those that are gone, too, and `home`."""
    listed = git(home, "worktree", "list", "--porcelain", "-z", check=False).stdout.split("\0")
    folders = [Path(row.removeprefix("worktree ")) for row in listed if row.startswith("worktree ")]
    return [home, *(folder for folder in folders if folder != home)]


def _files(folder: Path) -> Iterator[os.stat_result]:
    """The facts of each file below a folder; of a link, of itself."""
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):  # it has gone meanwhile
                yield (Path(parent) / name).lstat()


def _size(folder: Path) -> int:
    """Return how many bytes the files below `folder` have."""
    return sum(facts.st_size for facts in _files(folder))


def _newest(folder: Path) -> float:
    """When something was last written in a folder."""
    return max([folder.stat().st_mtime, *(facts.st_mtime for facts in _files(folder))])
