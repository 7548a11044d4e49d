"""Content hashes of files, each computed once: a large file that has not changed since is not read again.

A hash is remembered by the file's device, inode, size, modification and change times (nanoseconds), in the process and,
within a project, in `.cache/hashes/`. Whatever writes to a file, replaces it or puts its old time back changes one of
these, so it is read again. Two writes within one tick of the file system's clock could look alike: a hash is remembered
only if the file has been left alone for `SETTLED_NS` before it is read.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from configparser import ConfigParser
from fnmatch import fnmatchcase
from pathlib import Path

from sweetrl.errors import UserError
from sweetrl.io import digest, write_text
from sweetrl.paths import HASHES, project_cache

# Smaller files are read each time: that costs less than to look them up safely.
LARGE = 2**20
SETTLED_NS = 2 * 10**9
# What DVC leaves out of folders, by itself and by the project's .dvcignore.
IGNORED = (".git", ".hg", ".dvc", "__pycache__", "*.pyc", ".*.part", ".gitignore", ".cache")

_hashes: dict[str, str] = {}  # by the names of their files in `.cache/hashes/`


def file_hash(path: Path) -> str:
    """Return the MD5 of the file's bytes, 32 hex digits; a large file is read only if it has changed (see above)."""
    path = Path(path)
    before = identity(path)
    if path.stat().st_size < LARGE:
        return _read(path)
    key, folder = digest(os.fsencode(path.resolve()).hex(), before), project_cache(HASHES)
    note = None if folder is None else folder / key
    if key not in _hashes and note is not None and note.exists():
        _hashes[key] = note.read_text(encoding="utf-8")
    if key in _hashes:
        return _hashes[key]
    started = time.time_ns()
    content = _read(path)
    if identity(path) == before and started - max(before[-2:]) > SETTLED_NS:
        _hashes[key] = content
        if note is not None:
            with contextlib.suppress(OSError, UserError):  # a cache that cannot be written costs time, no more
                write_text(note, content)
    return content


def dvc_hash(path: Path) -> str:
    """Return the hash that dvc.lock has for a file (`md5`) or a folder (MD5 of its listing, with the suffix `.dir`).

    It is computed without DVC, whose import takes seconds.
    """
    path = Path(path)
    if not path.is_dir():
        return file_hash(path)
    rows = [
        {"md5": file_hash(file), "relpath": file.relative_to(path).as_posix()}
        for file in path.rglob("*")
        if file.is_file()
        if not any(fnmatchcase(name, pattern) for name in file.relative_to(path).parts for pattern in IGNORED)
    ]
    listing = json.dumps(sorted(rows, key=lambda row: row["relpath"]), sort_keys=True)
    return hashlib.md5(listing.encode(), usedforsecurity=False).hexdigest() + ".dir"


def cached(content_hash: str, root: Path = Path()) -> Path:
    """Return where DVC's cache of the project in `root` keeps what has this hash, as its configuration there says."""
    settings = ConfigParser(interpolation=None)
    settings.read([root / ".dvc/config", root / ".dvc/config.local"], encoding="utf-8")
    cache = root / ".dvc" / Path(settings.get("cache", "dir", fallback="cache")).expanduser()
    return cache / "files/md5" / content_hash[:2] / content_hash[2:]


def identity(path: Path) -> tuple[int, ...]:
    """Return what changes when the file `path` does: device, inode, size, times of modification and change in ns."""
    state = Path(path).stat()
    return (state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns)


def _read(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
