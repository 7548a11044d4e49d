"""Strict JSON Lines: one object a line, streamed, and every fault named by file, line and key.

Python's own reader silently keeps the last of two equal keys and accepts NaN; a benchmark file with either is broken,
so both are refused here.
"""

from __future__ import annotations

import json
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sweetrl import bounded
from sweetrl.errors import UserError
from sweetrl.text import printable

ALIKE = 0.85  # similarity from which a key counts as a misspelling of another; `idx` and `id` are below it


class Row(BaseModel):
    """What a row must hold; other keys are ignored, unless one looks like a misspelled optional key.

    A number may be written as an integer.
    """

    model_config = ConfigDict(strict=True, allow_inf_nan=False)


class TaskRow(Row):
    """A row of a task file."""

    id: str | None = Field(None, min_length=1)
    problem_description: str
    ground_truth: str
    test_cases: dict[str, str] | None = None
    hidden_information: str | None = None


SomeRow = TypeVar("SomeRow", bound=Row)


def read_as(kind: type[SomeRow], row: dict[str, Any], where: str) -> SomeRow:
    """Return `row` as a `kind`; the first thing wrong is a UserError that begins with `where` and names the key."""
    others = sorted(row.keys() - kind.model_fields.keys())
    optional = [name for name, field in kind.model_fields.items() if not field.is_required() and name not in row]
    for name in optional if others else ():
        if alike := get_close_matches(name, others, 1, ALIKE):
            raise UserError(f"{where}: the key `{printable(alike[0])}` is not known; call it `{name}`, or remove it.")
    try:
        return kind.model_validate(row)
    except ValidationError as error:
        first = error.errors()[0]
        key = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"]).removeprefix(".")
        if first["type"] == "missing":
            raise UserError(f"{where}: the key `{key}` is missing; add it.") from error
        fault = first["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
        fault = fault.partition(" or instance of")[0]
        raise UserError(f"{where}: `{key}` {fault[0].lower()}{fault[1:]}; correct it.") from error


def raw_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield (1-based line number, bytes) of every line that is not blank; one line is in memory at a time.

    Lines end at a line feed only (a Unicode line separator inside a string is text). A byte order mark is no part of
    the first one, and one longer than LONGEST_ROW is cut behind it. A Parquet file (.parquet) gives a line for each
    row. A missing file is a UserError.
    """
    path = Path(path)
    try:
        if path.suffix == ".parquet":
            yield from enumerate(_parquet_lines(path), start=1)
            return
        for number, line in enumerate(bounded.lines(path), start=1):
            text = line.removeprefix(BOM_UTF8) if number == 1 else line
            if text.strip():
                yield number, text
    except FileNotFoundError as error:
        raise UserError(f"{path}: there is no such file; check the path.") from error
    except OSError as error:
        raise UserError(f"{path}: this cannot be read as a file ({error.strerror}); check the path.") from error


def _parquet_lines(path: Path) -> Iterator[bytes]:
    from sweetrl.colbench.store import format_of

    if own := format_of(path):
        raise UserError(f"{path}: this is a table of this project ({own}), no file of rows; see --help.")
    yield from bounded.parquet_rows(path)


def read_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (1-based line number, object) of every line that is not blank; a UserError as `parse_row` says."""
    for number, line in raw_lines(path):
        if line.decode("utf-8", "replace").strip():
            yield number, parse_row(line, f"{path}: line {number}")


def parse_row(line: bytes, where: str) -> dict[str, Any]:
    """Return the object that a line is; `where` (file and line) opens every message.

    Raises UserError for a line of more than LONGEST_ROW bytes, one that is not UTF-8 or not one JSON object, that names
    a key twice, or that holds text which UTF-8 cannot hold (half of a surrogate pair).
    """
    if len(line) > bounded.LONGEST_ROW:
        most = bounded.LONGEST_ROW // bounded.MIB
        raise UserError(f"{where}: the row has more than {most} MiB; shorten or remove it.")
    try:
        row = _DECODER.decode(line.decode("utf-8").strip())
        # Only an escape can bring in half a pair: looking for it first spares every other line the second encoding.
        if b"\\ud" in line or b"\\uD" in line:
            json.dumps(row, ensure_ascii=False).encode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{where}: byte {error.start + 1} is not UTF-8; convert the file to UTF-8.") from error
    except UnicodeEncodeError as error:
        raise UserError(f"{where}: a string holds half of a surrogate pair; fix the escape.") from error
    except (ValueError, RecursionError) as error:  # no JSON, NaN, numbers of thousands of digits, bottomless nesting
        why = f"{error.msg} at character {error.pos + 1}" if isinstance(error, json.JSONDecodeError) else str(error)
        raise UserError(f"{where}: this is not JSON ({why}); fix or remove the line.") from error
    if not isinstance(row, dict):
        raise UserError(f"{where}: expected one JSON object a line, found something else; fix or remove the line.")
    return row


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(built := dict(pairs)) != len(pairs):
        name, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise ValueError(f"the key `{printable(name)}` is there twice")
    return built


def _constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_constant)
