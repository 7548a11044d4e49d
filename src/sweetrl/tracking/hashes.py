"""DVC's content hashes, computed without DVC, so that a run names its data by the same hash as dvc.lock.

Like DVC, we read a large file again only if it has changed (sweetrl.file_hashes).
"""

from __future__ import annotations

import hashlib
import json
from fnmatch import fnmatchcase
from pathlib import Path

from sweetrl.file_hashes import file_hash

# What DVC leaves out of folders, by itself and by the project's .dvcignore.
IGNORED = (".git", ".hg", ".dvc", "__pycache__", "*.pyc", ".*.part", ".gitignore", ".cache")


def dvc_hash(path: Path) -> str:
    """Return the hash that dvc.lock has for a file (`md5`) or a folder (MD5 of its listing, with the suffix `.dir`)."""
    path = Path(path)
    if not path.is_dir():
        return file_hash(path)
    files = [
        found for found in path.rglob("*") if found.is_file() and not any(map(_ignored, found.relative_to(path).parts))
    ]
    rows = [{"md5": file_hash(found), "relpath": found.relative_to(path).as_posix()} for found in files]
    listing = json.dumps(sorted(rows, key=lambda row: row["relpath"]), sort_keys=True)
    return hashlib.md5(listing.encode(), usedforsecurity=False).hexdigest() + ".dir"


def _ignored(name: str) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in IGNORED)
