"""Where new files come from: an S3 prefix or a folder, listed entry by entry, fetched and read within limits.

Names are chosen by others. They are looked up in the source and shown to people, and never become a path here.
"""

from __future__ import annotations

import hashlib
import logging
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from io import BufferedReader
from pathlib import Path
from typing import Any, Literal

from sweetrl.bounded import DEPTH, fits
from sweetrl.colbench.jsonl import parse_row, raw_lines
from sweetrl.errors import UserError
from sweetrl.text import printable

logger = logging.getLogger("sweetrl")

PAGE = 1000  # keys that S3 lists at a time, its own limit
CHUNK = 2**20  # bytes that are fetched at a time
LONGEST_NAME = 1024  # bytes, S3's own limit
END = ".jsonl"
SCHEME = "s3://"
ATTEMPTS = 5  # at one request
FOLDERS = 32  # in one another; what lies deeper is passed over
CONSENT = "consent"
MD5 = partial(hashlib.md5, usedforsecurity=False)
VALUES = 100_000  # numbers, texts, lists and objects in a row
TIMES: dict[str, Any] = {"connect_timeout": 10, "read_timeout": 60}  # seconds


class Changed(Exception):
    """The file is not what was listed any more; the next run sees it as it is then."""


@dataclass(frozen=True)
class Entry:
    """A file of a source: its name in it, its size in bytes, and what changes with its content.

    `tag` is the store's ETag, or `md5:` and the hash of a file; "" where the file is too large to be read. `since` says
    when it came there, in seconds: the store's word, no one else's. `folder` is the first one in its name, or "".
    """

    name: str
    size: int
    tag: str
    since: float = field(default=0.0, compare=False)
    folder: str = field(default="", compare=False)


def open_source(text: str, root: Path = Path()) -> Folder | Bucket:
    """Return the source that `ingest.source` names (a folder from `root`); UserError where it names none."""
    if not text.startswith(SCHEME):
        return Folder(root / text, text)
    bucket, _, prefix = text.removeprefix(SCHEME).partition("/")
    if not bucket:
        raise UserError(f"{text}: this names no bucket; write s3://BUCKET/PREFIX.")
    return Bucket(bucket, prefix)


def name_fault(name: str) -> str | None:
    """Say why a file of this name is not read, None where it is."""
    odd = printable(name) != name or set("\n\t\\") & set(name)
    if odd or name.startswith("/") or {".", ".."} & set(name.split("/")) or len(os.fsencode(name)) > LONGEST_NAME:
        return f"its name has signs not shown, `\\`, folders `.` or `..`, a `/` in front, or over {LONGEST_NAME} bytes"
    return None if name.endswith(END) else f"it is no {END} file"


def _is_hidden(name: str) -> bool:
    """Whether a part of the name begins with a dot, as those do that somebody is writing."""
    return any(part.startswith(".") and part not in ("..", ".") for part in name.split("/"))


def _first_folder(name: str) -> str:
    return name.partition("/")[0] if "/" in name else ""


class Folder:
    """The files of a folder and of those in it; links are not followed. `place` names it in records and messages."""

    def __init__(self, path: Path, place: str = "") -> None:
        self.path = path.resolve()
        self.place = place or str(self.path)
        if not self.path.is_dir():
            raise UserError(f"{path}: there is no such folder to take new files from; name a folder or s3://BUCKET.")

    def entries(self, limit: int) -> Iterator[Entry]:
        """Yield the regular files but for those that are being written; above `limit` bytes without a tag."""
        for name in self._names():
            if handle := self._open(name):
                with handle:
                    facts = os.fstat(handle.fileno())
                    small = facts.st_size <= limit and name_fault(name) is None
                    tag = f"md5:{hashlib.file_digest(handle, MD5).hexdigest()}" if small else ""
                    # Not st_mtime, which whoever writes the file can choose.
                    yield Entry(name, facts.st_size, tag, facts.st_ctime, _first_folder(name))

    def fetch(self, entry: Entry, target: Path, limit: int) -> None:
        """Copy the file to `target`; Changed where it is another one than was listed, or longer than `limit` bytes."""
        handle = self._open(entry.name)
        if handle is None:
            raise Changed
        with handle:
            content = _copy(iter(lambda: handle.read(CHUNK), b""), target, limit)
        if entry.tag != f"md5:{content}":
            raise Changed

    def _names(self) -> Iterator[str]:
        for place, folders, files in os.walk(self.path, onerror=_refuse):
            above = Path(place).relative_to(self.path)
            yield from ((above / name).as_posix() for name in files if not _is_hidden(name))
            folders[:] = [name for name in folders if not _is_hidden(name)]
            if folders and len(above.parts) >= FOLDERS:
                logger.warning("%s is passed over: it lies %d folders deep", printable(str(above))[:200], FOLDERS)
                folders.clear()

    def _open(self, name: str) -> BufferedReader | None:
        """Open a regular file; None for one that is gone, and for a link or a pipe."""
        try:
            handle = os.fdopen(os.open(self.path / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb")
        except PermissionError as error:
            _refuse(error)
        except OSError:
            return None
        if stat.S_ISREG(os.fstat(handle.fileno()).st_mode):
            return handle
        handle.close()
        return None


def _refuse(error: OSError) -> None:
    if isinstance(error, PermissionError):
        raise UserError(f"{printable(str(error.filename))}: this may not be read; let it be read.") from error


class Bucket:
    """The objects under a prefix of an S3 bucket; AWS_ENDPOINT_URL and the usual variables say where and as whom."""

    def __init__(self, bucket: str, prefix: str) -> None:
        import boto3
        from botocore.config import Config

        self.bucket, self.prefix = bucket, prefix
        self.place = f"{SCHEME}{bucket}/{prefix}"
        # Servers of one's own know buckets by path, not by host name.
        style = {"addressing_style": "path"} if os.environ.get("AWS_ENDPOINT_URL") else {}
        patience = {"mode": "standard", "total_max_attempts": ATTEMPTS}
        with _one_sentence(self.place, "cannot be reached"):
            self.client = boto3.client("s3", config=Config(s3=style, retries=patience, **TIMES))

    def entries(self, limit: int) -> Iterator[Entry]:
        """Yield the objects, page by page, in the order of their keys, which are their names."""
        with _one_sentence(self.place, "refuses to list its files"):
            pages = self.client.get_paginator("list_objects_v2")
            for page in pages.paginate(Bucket=self.bucket, Prefix=self.prefix, PaginationConfig={"PageSize": PAGE}):
                for item in page.get("Contents", ()):
                    name = str(item["Key"])
                    inside = name.removeprefix(self.prefix).lstrip("/")
                    if not name.endswith("/") and not _is_hidden(inside):
                        since = item["LastModified"].timestamp()
                        yield Entry(name, int(item["Size"]), str(item["ETag"]).strip('"'), since, _first_folder(inside))

    def fetch(self, entry: Entry, target: Path, limit: int) -> None:
        """Download the object to `target`, if it is still the one that was listed."""
        from botocore.exceptions import ClientError

        with _one_sentence(self.place, f"refuses {printable(entry.name)!r}"):
            try:
                answer = self.client.get_object(Bucket=self.bucket, Key=entry.name, IfMatch=f'"{entry.tag}"')
            except ClientError as error:
                if error.response.get("Error", {}).get("Code") in ("PreconditionFailed", "412", "NoSuchKey", "404"):
                    raise Changed from error
                raise
            _copy(answer["Body"].iter_chunks(CHUNK), target, min(limit, entry.size))
        if target.stat().st_size != entry.size:
            raise Changed


@contextmanager
def _one_sentence(place: str, what: str) -> Iterator[None]:
    """Turn what boto3 raises into one sentence, in which no key stands."""
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        yield
    except (ClientError, BotoCoreError, ValueError, KeyError) as error:
        reason = error.response.get("Error", {}).get("Code") if isinstance(error, ClientError) else str(error)[:200]
        raise UserError(
            f"{place}: the store {what} ({printable(' '.join(str(reason).split()))}); look at AWS_ENDPOINT_URL, the "
            "credentials and the bucket, and run again: nothing was taken."
        ) from error


def _copy(chunks: Iterable[bytes], target: Path, limit: int) -> str:
    """Write `chunks` to `target` and return their md5; Changed where they are more than `limit` bytes."""
    content, left = MD5(), limit
    with target.open("wb") as out:
        for chunk in chunks:
            left -= len(chunk)
            if left < 0:
                raise Changed
            content.update(chunk)
            out.write(chunk)
    return str(content.hexdigest())


@dataclass(frozen=True)
class Row:
    """A line of a file: its number from 1, its bytes without the line end, and why it is bad ("" where it is not).

    Whether it has `consent` counts first: a row without it is not looked at any further.
    """

    number: int
    line: bytes
    fault: str = ""
    consent: bool = True


def read_rows(path: Path, kind: Literal["dialogues", "tasks"]) -> Iterator[Row]:
    """Yield the rows of a file of this kind; one line is in memory at a time. Blank lines are none."""
    for number, line in raw_lines(path):
        yield _look(number, line.rstrip(b"\r\n"), kind)


def _look(number: int, line: bytes, kind: Literal["dialogues", "tasks"]) -> Row:
    try:
        values = parse_row(line, "")
    except UserError as error:
        return Row(number, line, str(error).removeprefix(": ").rstrip("."))
    if kind == "dialogues" and values.get(CONSENT) is not True:
        return Row(number, line, consent=False)
    small = fits(values, DEPTH, VALUES)
    return Row(number, line, "" if small else f"the row has more than {DEPTH} levels, or {VALUES} values")
