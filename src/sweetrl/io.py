"""Side effects on files, done so that nothing half-written is ever seen under its final name."""

from __future__ import annotations

import errno
import glob
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sweetrl.errors import UserError

# The end of the name of a file that is being written.
PART = ".part"


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield a temporary sibling of `path`; on success it is renamed to `path`, on error it is removed.

    A full disk becomes a UserError that names the file.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=PART, dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)
        temporary.replace(path)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise UserError(
                f"{path}: no space left on the disk; free some and run the same command again (finished work is kept)."
            ) from error
        raise
    finally:
        temporary.unlink(missing_ok=True)


def remove_leftovers(path: Path) -> None:
    """Remove what killed writers of `path` have left beside it; for the one who alone writes it."""
    for leftover in Path(path).parent.glob(f".{glob.escape(Path(path).name)}.*{PART}"):
        leftover.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write `text` to `path` in UTF-8, all or nothing."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    """Write `value` as indented JSON with sorted keys, all or nothing, so that equal values give equal bytes."""
    write_text(path, json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n")


def publish(source: Path, out: Path) -> None:
    """Put the finished folder `source` in the place of `out`, which is never seen half-written."""
    source, out = Path(source), Path(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    fresh, old = out.with_name(f".{out.name}.new"), out.with_name(f".{out.name}.old")
    for leftover in (fresh, old):
        shutil.rmtree(leftover, ignore_errors=True)
    try:
        shutil.copytree(source, fresh, ignore=shutil.ignore_patterns(f".*{PART}"))  # a killed run's
    except shutil.Error as error:  # copytree gathers every file's OSError as text, without its number
        shutil.rmtree(fresh, ignore_errors=True)
        if os.strerror(errno.ENOSPC) not in str(error):
            raise
        raise UserError(
            f"{out}: no space left on the disk; free some and run the same command again (finished work is kept)."
        ) from error
    if out.exists():
        out.rename(old)
    fresh.rename(out)
    shutil.rmtree(old, ignore_errors=True)


def read_json(path: Path) -> Any:
    """Read one JSON document; a missing or broken file is a UserError that names it."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UserError(f"{path}: there is no such file; run the stage that writes it first.") from error
    except json.JSONDecodeError as error:
        raise UserError(
            f"{path}: line {error.lineno}: this is not JSON ({error.msg}); fix or remove the file."
        ) from error
    except (ValueError, RecursionError) as error:  # bytes that are no UTF-8, bottomless nesting, endless numbers
        raise UserError(f"{path}: this cannot be read as JSON ({error}); fix or remove the file.") from error


def append_row(path: Path, row: Any) -> None:
    """Append `row` to `path` as one line of JSON, handed to the operating system at once: no kill takes it back.

    A full disk is a UserError.
    """
    line = (json.dumps(row) + "\n").encode()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab", buffering=0) as target:
            if target.write(line) < len(line):
                raise OSError(errno.ENOSPC, "no space left")
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        raise UserError(
            f"{path}: no space left on the disk; free some and run the same command again (finished work is kept)."
        ) from error


def read_rows(path: Path, take: Callable[[Any], None]) -> None:
    """Give every row that `append_row` wrote to `take`, and cut off what is broken at the end of the file.

    The first row that `take` cannot read (ValueError, KeyError, TypeError, IndexError) is where the broken end begins.
    """
    if not path.exists():
        return
    whole = 0
    for line in path.read_bytes().splitlines(keepends=True):
        if not line.endswith(b"\n"):
            break
        try:
            take(json.loads(line))
        except (ValueError, KeyError, TypeError, IndexError, RecursionError):
            break
        whole += len(line)
    if whole < path.stat().st_size:
        with path.open("r+b") as target:
            target.truncate(whole)


def digest(*values: Any) -> str:
    """Return 16 hex digits that identify `values` (JSON-serialisable); the key of scratch folders and caches."""
    text = json.dumps(values, sort_keys=True, ensure_ascii=False, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
