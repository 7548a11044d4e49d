"""Side effects on files, done so that nothing half-written is ever seen under its final name.

Dialogues are nobody else's business: files are for their owner alone (0600, folders 0700) whatever the umask, unless a
caller says that one is `shared`.
"""

from __future__ import annotations

import errno
import glob
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from sweetrl.bounded import MIB, read_bytes
from sweetrl.errors import DISK_FULL, UserError, full_disk

# The end of the name of a file that is being written.
PART = ".part"
OWNER_FILE = 0o600
OWNER_FOLDER = 0o700
# For programs of others that write data (DVC): what they make is for its owner alone, too.
OWNER_UMASK = 0o077
LONGEST_JSON = 64 * MIB  # bytes; the project's own records grow with its data


@contextmanager
def making_folder(path: Path) -> Iterator[None]:
    """Turn what keeps the folder `path` from being made (a file in its place, or above it) into a UserError."""
    try:
        yield
    except (FileExistsError, NotADirectoryError, FileNotFoundError) as error:
        why = (error.strerror or type(error).__name__).lower()
        raise UserError(f"{path}: no folder can be made here ({why}); name another one.") from error


def private_folder(path: Path) -> Path:
    """Make the folder `path`, with the parents that are missing, for its owner alone; return `path`.

    One that is there stays as it is: it may be shared on purpose. A file in its place, or above it, is a UserError.
    """
    path = Path(path)
    with making_folder(path):
        missing = [folder for folder in (path, *path.parents) if not folder.exists()]
        for folder in reversed(missing):
            folder.mkdir(exist_ok=True)  # another process may be faster
            folder.chmod(OWNER_FOLDER)
        if not path.is_dir():
            path.mkdir()  # raises what stands in the way
    return path


def private_file(path: Path) -> Path:
    """Make `path`, which is written to in place, an empty file for its owner alone where it is missing; return it."""
    path = Path(path)
    private_folder(path.parent)
    with suppress(FileExistsError):
        handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, OWNER_FILE)
        os.fchmod(handle, OWNER_FILE)  # the umask may have taken more
        os.close(handle)
    return path


def usual_mode(folder: bool = False) -> int:
    """The mode that a new file or folder has by this process's umask."""
    umask = os.umask(0)
    os.umask(umask)
    return (0o777 if folder else 0o666) & ~umask


@contextmanager
def atomic_path(path: Path, shared: bool = False) -> Iterator[Path]:
    """Yield a temporary sibling of `path`; on success it is renamed to `path`, on error it is removed.

    A `shared` file gets the mode that the umask gives, any other is for its owner alone. A full disk becomes a
    UserError that names the file.
    """
    path = Path(path)
    private_folder(path.parent)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=PART, dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        temporary.chmod(usual_mode() if shared else OWNER_FILE)
        temporary.replace(path)
    except OSError as error:
        if error.errno in DISK_FULL:
            raise full_disk(path) from error
        raise
    finally:
        temporary.unlink(missing_ok=True)


def remove_leftovers(path: Path) -> None:
    """Remove what killed writers of `path` have left beside it; only for a process that is its single writer."""
    for leftover in Path(path).parent.glob(f".{glob.escape(Path(path).name)}.*{PART}"):
        leftover.unlink(missing_ok=True)


def write_text(path: Path, text: str, shared: bool = False) -> None:
    """Write `text` to `path` in UTF-8, all or nothing."""
    with atomic_path(path, shared) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    """Write `value` as indented JSON with sorted keys, all or nothing, so that equal values give equal bytes."""
    write_text(path, json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n")


def publish(source: Path, out: Path, shared: bool = False) -> None:
    """Put the finished folder `source` in the place of `out`, which is never seen half-written.

    Where `out` is a link, that is the place to which it leads: results may lie on another disk. A `shared` folder and
    its files get the modes that the umask gives, any other is for its owner alone.
    """
    out = Path(out).resolve() if Path(out).is_symlink() else Path(out)
    private_folder(out.parent)
    if out.is_file():
        raise UserError(f"{out}: a file stands in the place of this folder; move it away.")
    fresh, old = out.with_name(f".{out.name}.new"), out.with_name(f".{out.name}.old")
    if old.exists() and not out.exists():  # what was killed between the two renames below
        old.rename(out)
    for leftover in (fresh, old):
        shutil.rmtree(leftover, ignore_errors=True)
    try:
        shutil.copytree(source, fresh, ignore=shutil.ignore_patterns(f".*{PART}"))  # a killed run's
    except shutil.Error as error:  # copytree gathers every file's OSError as text, without its number
        shutil.rmtree(fresh, ignore_errors=True)
        if not any(os.strerror(number) in str(error) for number in DISK_FULL):
            raise
        raise full_disk(out) from error
    for path in (fresh, *fresh.rglob("*")):
        if not path.is_symlink():
            own = OWNER_FOLDER if path.is_dir() else OWNER_FILE
            path.chmod(usual_mode(path.is_dir()) if shared else own)
    if out.exists():
        out.rename(old)
    fresh.rename(out)
    shutil.rmtree(old, ignore_errors=True)


def read_json(path: Path, most: int = LONGEST_JSON) -> Any:
    """Read one JSON document of at most `most` bytes; a missing, broken or longer file is a UserError that names it."""
    try:
        return json.loads(read_bytes(path, most).decode("utf-8"))
    except FileNotFoundError as error:
        raise UserError(f"{path}: there is no such file; run the stage that writes it first.") from error
    except (ValueError, RecursionError) as error:  # bytes that are no UTF-8, bottomless nesting, endless numbers, too
        raise UserError(f"{path}: this is not JSON ({error}); fix or remove the file.") from error


def append_row(path: Path, row: Any, durable: bool = False) -> None:
    """Append `row` to `path` as one line of JSON, handed to the operating system at once: no kill takes it back.

    Where it is `durable` it is on the disk when this returns.
    A full disk is a UserError, and leaves the file as it was: rows behind half a line would not be read again.
    """
    line = (json.dumps(row) + "\n").encode()
    try:
        with private_file(path).open("ab", buffering=0) as target:
            before = target.seek(0, os.SEEK_END)
            try:
                if target.write(line) < len(line):
                    raise OSError(errno.ENOSPC, "no space left")
                if durable:
                    os.fsync(target.fileno())
            except OSError:
                target.truncate(before)
                raise
    except OSError as error:
        if error.errno not in DISK_FULL:
            raise
        raise full_disk(path) from error


def read_rows(path: Path, take: Callable[[Any], None]) -> None:
    """Give every row that `append_row` wrote to `take`, and cut off what is broken at the end of the file.

    The first row that `take` cannot read (ValueError, KeyError, TypeError, IndexError) is where the broken end begins.
    """
    if not path.exists():
        return
    intact = 0
    for line in path.read_bytes().splitlines(keepends=True):
        if not line.endswith(b"\n"):
            break
        try:
            take(json.loads(line))
        except (ValueError, KeyError, TypeError, IndexError, RecursionError):
            break
        intact += len(line)
    if intact < path.stat().st_size:
        with path.open("r+b") as target:
            target.truncate(intact)


def digest(*values: Any) -> str:
    """Return 16 hex digits that identify `values` (JSON-serialisable); the key of scratch folders and caches."""
    text = json.dumps(values, sort_keys=True, ensure_ascii=False, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
