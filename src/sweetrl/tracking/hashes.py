"""DVC's content hashes, computed without DVC, so that a run names its data by the same hash as dvc.lock.

Like DVC, we read a large file again only if it has changed (sweetrl.file_hashes).
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from sweetrl.file_hashes import file_hash

IGNORED = ("__pycache__", ".git", ".dvc")  # what .dvcignore leaves out of folders


def dvc_hash(path: Path) -> str:
    """Return the hash that dvc.lock has for a file (`md5`) or a folder (MD5 of its listing, with the suffix `.dir`)."""
    path = Path(path)
    if not path.is_dir():
        return file_hash(path)
    files = [
        found for found in path.rglob("*") if found.is_file() and not set(found.relative_to(path).parts) & set(IGNORED)
    ]
    rows = [{"md5": file_hash(found), "relpath": found.relative_to(path).as_posix()} for found in files]
    listing = json.dumps(sorted(rows, key=lambda row: row["relpath"]), sort_keys=True)
    return hashlib.md5(listing.encode(), usedforsecurity=False).hexdigest() + ".dir"
