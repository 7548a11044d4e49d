"""DVC's objects: which of them somebody may still ask for, and how the rest leaves the cache or the remote.

`dvc gc` knows branches, tags and one revision; here a version is kept whose commit is none of them or whose dvc.lock
only MLflow has, other worktrees share the cache, and what was made lately may belong to a run that is not recorded yet.
What was ever added by `dvc add` (ingested batches, data of yours) is in use for good; the results of stages are, where
a dvc.lock in use names them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.pipeline import open_repo
from tasks.workspace import git

if TYPE_CHECKING:
    from dvc_data.hashfile.db import HashFileDB

HASH = re.compile(r"md5: '?([0-9a-f]{32}(?:\.dir)?)\b")
RECORDED = ("*dvc.lock", "*.dvc")  # files that name DVC's objects


def hashes_in(text: str) -> set[str]:
    """Return the hashes that a dvc.lock or a .dvc file names."""
    return set(HASH.findall(text))


def hashes_in_git(home: Path, commits: Iterable[str], trees: Iterable[Path]) -> set[str]:
    """Return what the `commits` and the worktrees `trees`, as they lie here, name, and all that was ever added."""
    blobs, used = set[str](), hashes_in(git(home, "log", "--all", "--format=", "-p", "--", RECORDED[1]).stdout)
    for commit in commits:
        rows = git(home, "ls-tree", "-r", "-z", "--full-tree", commit).stdout.split("\0")
        blobs |= {row.split()[2] for row in rows if row.endswith(("dvc.lock", ".dvc"))}
    for blob in blobs:
        used |= hashes_in(git(home, "cat-file", "blob", blob).stdout)
    for tree in trees:
        shown = "--cached", "--others", "--exclude-standard"
        listed = git(tree, "ls-files", "-z", *shown, "--", *RECORDED).stdout.split("\0")
        for path in (tree / name for name in set(listed) - {""}):
            if path.is_file():
                used |= hashes_in(path.read_text(encoding="utf-8", errors="replace"))
    return used


class Objects:
    """The objects in the cache of the project at `home`, or in its default remote: what is not in `used` can go."""

    def __init__(self, home: Path, used: Collection[str], since: float, remote: bool = False) -> None:
        self.home, self.remote = home, remote
        self.paths: list[str] = []  # folders first: they refer to files
        self.size = 0
        with open_repo(home) as repo:
            here = repo.cache.local
            store = repo.cloud.get_remote_odb(None, "prune") if remote else here
            needed = set(used)
            for name in (name for name in used if name.endswith(".dir")):
                needed |= next((files for files in (_files(odb, name) for odb in (here, store)) if files), set())
            unneeded = sorted(set(store.all()) - needed, key=lambda name: (not name.endswith(".dir"), name))
            for path in map(store.oid_to_path, unneeded):
                facts = store.fs.info(path)
                if (made := _time(facts)) is not None and made < since:
                    self.paths.append(path)
                    self.size += facts["size"] or 0

    def remove(self) -> None:
        """Remove them."""
        from dvc.repo import lock_repo
        from dvc_data.hashfile.db import get_index

        with open_repo(self.home) as repo, lock_repo(repo):
            store = repo.cloud.get_remote_odb(None, "prune") if self.remote else repo.cache.local
            folders = [path for path in self.paths if path.endswith(".dir")]
            for paths in (folders, [path for path in self.paths if not path.endswith(".dir")]):
                if paths:
                    store.fs.remove(paths)
            if self.remote and self.paths:
                get_index(store).clear()


def _files(store: HashFileDB, name: str) -> set[str]:
    """The hashes of the files in a folder; nothing where `store` does not have it."""
    try:
        with store.fs.open(store.oid_to_path(name), "rb") as stream:
            return {row["md5"] for row in json.load(stream)}
    except FileNotFoundError:
        return set()


def _time(facts: dict[str, Any]) -> float | None:
    """When an object was stored, by whatever a file system says; None where it says nothing."""
    value = next((facts[key] for key in ("mtime", "LastModified", "last_modified", "updated") if key in facts), None)
    if isinstance(value, str):
        value = datetime.fromisoformat(value)
    return value.timestamp() if isinstance(value, datetime) else value
