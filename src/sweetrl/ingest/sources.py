"""Where new files come from: an S3 prefix or a folder, listed entry by entry, fetched and read within limits.

Names are chosen by others. They are looked up in the source and shown to people, and never become a path here.
"""

from __future__ import annotations

import hashlib
import logging
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from sweetrl.colbench.jsonl import parse_row
from sweetrl.config.settings import IngestSettings
from sweetrl.errors import UserError
from sweetrl.text import excess, printable

logger = logging.getLogger("sweetrl")

PAGE = 1000  # keys that S3 lists at a time, its own limit
CHUNK = 2**20  # bytes that are fetched at a time
LONGEST_NAME = 1024  # bytes, S3's own limit
END = ".jsonl"
SCHEME = "s3://"
ATTEMPTS = 5  # at one request
FOLDERS = 32  # in one another; what lies deeper is passed over
CONSENT = "consent"
VALUES = 100_000  # numbers, texts, lists and objects in a row
TIMES: dict[str, Any] = {"connect_timeout": 10, "read_timeout": 60}  # seconds


class Changed(Exception):
    """The file is not what was listed any more; the next run sees it as it is then."""


@dataclass(frozen=True)
class Entry:
    """A file of a source: its name in it, its size in bytes, and what changes with its content.

    `tag` is the store's ETag, or `md5:` and the hash of a file; "" where the file is too large to be read.
    """

    name: str
    size: int
    tag: str


class Source(Protocol):
    """Files of others; `place` names the source in records and messages."""

    place: str

    def entries(self, limit: int) -> Iterator[Entry]:
        """Yield the files, but for those that are being written; larger ones than `limit` bytes may have no tag."""

    def fetch(self, entry: Entry, target: Path, limit: int) -> None:
        """Write the file to `target`; Changed where it is another one than was listed, or longer than `limit`."""


def open_source(text: str, root: Path = Path()) -> Source:
    """Return the source that `ingest.source` names (a folder from `root`); UserError where it names none."""
    if text.startswith(SCHEME):
        bucket, _, prefix = text.removeprefix(SCHEME).partition("/")
        if not bucket:
            raise UserError(f"{text}: this names no bucket; write s3://BUCKET/PREFIX.")
        return Bucket(bucket, prefix)
    if "://" in text:
        raise UserError(f"{text}: new files are looked for in a folder or under s3://BUCKET/PREFIX; name one of these.")
    return Folder(root / text, text)


def name_fault(name: str) -> str | None:
    """Say why a file of this name is not read, None where it is."""
    if len(os.fsencode(name)) > LONGEST_NAME:
        return f"its name is longer than {LONGEST_NAME} bytes"
    if printable(name) != name or "\n" in name or "\t" in name:
        return "its name holds control characters, marks of direction or broken letters"
    parts = name.split("/")
    if name.startswith("/") or "\\" in name or ".." in parts or "." in parts:
        return "its name leads out of its place (`..`, `/` or a backslash)"
    return None if name.endswith(END) else f"it is no {END} file"


def being_written(name: str) -> bool:
    """Whether the file is hidden, as those are that somebody is writing, or only marks a folder."""
    return name.endswith("/") or any(part.startswith(".") and part not in ("..", ".") for part in name.split("/"))


class Folder:
    """The files of a folder and of those in it; links are not followed."""

    def __init__(self, path: Path, place: str = "") -> None:
        self.path = path.resolve()
        self.place = place or str(self.path)
        if not self.path.is_dir():
            raise UserError(f"{path}: there is no such folder to take new files from; make it, or name another one.")

    def entries(self, limit: int) -> Iterator[Entry]:
        """Yield the regular files, by name."""
        for name in sorted(self._names(self.path, "")):
            try:
                with self._open(name) as handle:
                    size = os.fstat(handle.fileno()).st_size
                    small = size <= limit and name_fault(name) is None
                    tag = f"md5:{hashlib.file_digest(handle, _md5).hexdigest()}" if small else ""
            except FileNotFoundError:
                continue
            except PermissionError as error:
                raise UserError(f"{self.path / printable(name)}: this file may not be read; let it be read.") from error
            yield Entry(name, size, tag)

    def fetch(self, entry: Entry, target: Path, limit: int) -> None:
        """Copy the file to `target`."""
        content = _md5()
        try:
            with self._open(entry.name) as source, target.open("wb") as out:
                left = limit
                while chunk := source.read(CHUNK):
                    left -= len(chunk)
                    if left < 0:
                        raise Changed
                    content.update(chunk)
                    out.write(chunk)
        except FileNotFoundError as error:
            raise Changed from error
        if entry.tag != f"md5:{content.hexdigest()}":
            raise Changed

    def _names(self, folder: Path, above: str) -> Iterator[str]:
        try:
            items = list(os.scandir(folder))
        except FileNotFoundError:  # removed meanwhile
            return
        except PermissionError as error:
            raise UserError(f"{printable(str(folder))}: this folder may not be read; let it be read.") from error
        for item in items:
            name = f"{above}{item.name}"
            if being_written(name):
                continue
            if item.is_file(follow_symlinks=False):
                yield name
            elif item.is_dir(follow_symlinks=False) and name.count("/") >= FOLDERS:
                logger.warning("%s is passed over: it lies %d folders deep", printable(name)[:200], FOLDERS)
            elif item.is_dir(follow_symlinks=False):
                yield from self._names(folder / item.name, f"{name}/")

    def _open(self, name: str) -> Any:
        """Open a regular file; one that has become a link or a pipe meanwhile is gone."""
        try:
            handle = os.open(self.path / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            if isinstance(error, PermissionError):
                raise
            raise FileNotFoundError from error
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            os.close(handle)
            raise FileNotFoundError
        return os.fdopen(handle, "rb")


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
        with _said(self.place, "cannot be reached"):
            self.client = boto3.client("s3", config=Config(s3=style, retries=patience, **TIMES))

    def entries(self, limit: int) -> Iterator[Entry]:
        """Yield the objects, page by page, in the order of their keys, which are their names."""
        with _said(self.place, "refuses to list its files"):
            pages = self.client.get_paginator("list_objects_v2").paginate(
                Bucket=self.bucket, Prefix=self.prefix, PaginationConfig={"PageSize": PAGE}
            )
            for page in pages:
                for item in page.get("Contents", ()):
                    name, size, tag = (item.get(key) for key in ("Key", "Size", "ETag"))
                    if not name or not tag or not isinstance(size, int) or size < 0:
                        raise UserError(f"{self.place}: the store lists a file without name, size or ETag; mend it.")
                    if not name.endswith("/") and not being_written(name.removeprefix(self.prefix)):
                        yield Entry(str(name), size, str(tag).strip('"'))

    def fetch(self, entry: Entry, target: Path, limit: int) -> None:
        """Download the object to `target`, if it is still the one that was listed."""
        from botocore.exceptions import ClientError

        with _said(self.place, f"refuses {printable(entry.name)!r}"), target.open("wb") as out:
            try:
                answer = self.client.get_object(Bucket=self.bucket, Key=entry.name, IfMatch=f'"{entry.tag}"')
            except ClientError as error:
                if error.response.get("Error", {}).get("Code") in ("PreconditionFailed", "412", "NoSuchKey", "404"):
                    raise Changed from error
                raise
            left = min(limit, entry.size)
            for chunk in answer["Body"].iter_chunks(CHUNK):
                left -= len(chunk)
                if left < 0:
                    raise Changed
                out.write(chunk)
        if target.stat().st_size != entry.size:
            raise Changed


@contextmanager
def _said(place: str, what: str) -> Iterator[None]:
    """Turn what boto3 raises into one sentence, in which no key stands."""
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        yield
    except (ClientError, BotoCoreError, ValueError) as error:
        reason = str(error).strip().splitlines()[0][:200]
        if isinstance(error, ClientError):
            reason = str(error.response.get("Error", {}).get("Code") or "no reason given")
        raise UserError(
            f"{place}: the store {what} ({printable(reason)}); look at AWS_ENDPOINT_URL, the credentials and the "
            "bucket, and run again: nothing was taken."
        ) from error


def _md5() -> Any:
    return hashlib.md5(usedforsecurity=False)


@dataclass(frozen=True)
class Row:
    """A line of a file: its number from 1, its bytes without the line end, and why it is bad ("" where it is not).

    `consent` is None where the row cannot be read.
    """

    number: int
    line: bytes
    fault: str = ""
    consent: bool | None = None


def read_rows(path: Path, limits: IngestSettings) -> Iterator[Row]:
    """Yield the rows of a file; one line is in memory at a time. Blank lines are none."""
    with path.open("rb") as source:
        for number, line in enumerate(source, start=1):
            text = line.rstrip(b"\r\n").removeprefix(b"\xef\xbb\xbf" if number == 1 else b"")
            if text.strip():
                yield _look(number, text, limits)


def _look(number: int, line: bytes, limits: IngestSettings) -> Row:
    if len(line) > limits.row_kib * 2**10:
        return Row(number, line, f"the row is longer than {limits.row_kib} KiB (ingest.row_kib)")
    try:
        values = parse_row(line, "")
    except UserError as error:
        return Row(number, line, str(error).removeprefix(": ").rstrip("."))
    consent = values.get(CONSENT) is True
    faults = {
        "levels": f"the row is nested more than {limits.levels} levels deep (ingest.levels)",
        "values": f"the row has more than {VALUES} values",
    }
    return Row(number, line, faults.get(excess(values, limits.levels, VALUES), ""), consent)
