"""Rows of files that strangers have written, read within limits: length, nesting, UTF-8, JSON, consent."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sweetrl.colbench.jsonl import decode_line, parse_row
from sweetrl.errors import UserError
from sweetrl.settings import IngestSettings
from sweetrl.text import excess

CONSENT = "consent"
VALUES = 100_000  # numbers, texts, lists and objects in a row


@dataclass(frozen=True)
class Row:
    """A line of a file: its number from 1, its bytes without the line end, and why it is bad ("" where it is not).

    `consent` is None where the row cannot be read.
    """

    number: int
    line: bytes
    fault: str = ""
    consent: bool | None = None


def read_rows(path: Path, wanted: IngestSettings) -> Iterator[Row]:
    """Yield the rows of a file; one line is in memory at a time. Blank lines are none."""
    with path.open("rb") as source:
        for number, line in enumerate(source, start=1):
            text = line.rstrip(b"\r\n").removeprefix(b"\xef\xbb\xbf" if number == 1 else b"")
            if text.strip():
                yield _look(number, text, wanted)


def _look(number: int, line: bytes, wanted: IngestSettings) -> Row:
    if len(line) > wanted.row_kib * 2**10:
        return Row(number, line, f"the row is longer than {wanted.row_kib} KiB (ingest.row_kib)")
    try:
        found = parse_row(decode_line(line, ""), "")
    except UserError as error:
        return Row(number, line, str(error).removeprefix(": ").rstrip("."))
    consent = found.get(CONSENT) is True
    faults = {
        "levels": f"the row is nested more than {wanted.levels} levels deep (ingest.levels)",
        "values": f"the row has more than {VALUES} values",
    }
    return Row(number, line, faults.get(excess(found, wanted.levels, VALUES), ""), consent)
