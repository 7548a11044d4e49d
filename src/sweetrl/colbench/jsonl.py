"""Strict JSON Lines: one object a line, streamed, and every fault named by file, line and key.

Python's own reader silently keeps the last of two equal keys and accepts NaN; a benchmark file with either is broken,
so both are refused here.
"""

from __future__ import annotations

import json
import math
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweetrl.errors import UserError
from sweetrl.text import printable

if TYPE_CHECKING:
    from pyarrow import DataType

FORMAT_KEY = b"sweetrl.format"  # in the metadata of the project's own tables

_KINDS = {
    str: "a string",
    dict: "an object",
    list: "a list",
    int: "a whole number",
    type(None): "null",
    bool: "true or false",
}


class _Repeated(ValueError):
    """A JSON object names one key twice."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    built = dict(pairs)
    if len(built) != len(pairs):
        times = Counter(name for name, _ in pairs)
        raise _Repeated(printable(next(name for name, _ in pairs if times[name] > 1)))
    return built


def _constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_constant)


def raw_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield (1-based line number, bytes) of every line that is not blank; one line is in memory at a time.

    Lines end at a line feed only (a Unicode line separator inside a string is text). A byte order mark is no part of
    the first one. A Parquet file (.parquet) gives a line for each row. A missing file is a UserError.
    """
    path = Path(path)
    if path.suffix == ".parquet":
        yield from _parquet_lines(path)
        return
    try:
        with path.open("rb") as source:
            for number, line in enumerate(source, start=1):
                text = line.removeprefix(BOM_UTF8) if number == 1 else line
                if text.strip():
                    yield number, text
    except FileNotFoundError as error:
        raise UserError(f"{path}: there is no such file; check the path.") from error
    except IsADirectoryError as error:
        raise UserError(f"{path}: this is a folder; name a JSON Lines file.") from error
    except PermissionError as error:
        raise UserError(f"{path}: this file may not be read; change its permissions.") from error


def _parquet_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the rows of a Parquet file as the lines of a JSON Lines file; a null is a key that is not there.

    The null of `answer` stays, because it says something: there is no answer. Columns of times and of bytes are no keys
    of any row here and are not read.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    number = 0
    try:
        with pq.ParquetFile(path) as file:
            if own := (file.schema_arrow.metadata or {}).get(FORMAT_KEY):
                raise UserError(
                    f"{path}: this is a table of this project ({own.decode()}), no file of rows; see --help."
                )
            columns = [column.name for column in file.schema_arrow if not _is_foreign(column.type)]
            for batch in file.iter_batches(batch_size=64, columns=columns):
                for row in batch.to_pylist(maps_as_pydicts="strict"):
                    number += 1
                    kept = {key: _without_nulls(row[key]) for key in row if row[key] is not None or key == "answer"}
                    yield number, json.dumps(kept, ensure_ascii=False, default=_number).encode()
    except FileNotFoundError as error:
        raise UserError(f"{path}: there is no such file; check the path.") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: a text is not UTF-8; write its column again, or leave it out.") from error
    except TypeError as error:
        raise UserError(
            f"{path}: row {number} holds what JSON does not know ({error}); write it as text and numbers, or leave the "
            "column out."
        ) from error
    except (pa.ArrowException, KeyError, OSError) as error:
        raise UserError(
            f"{path}: this cannot be read as Parquet with rows of text and numbers; write it again."
        ) from error


def _is_foreign(kind: DataType) -> bool:
    """Whether a column holds times or bytes, which JSON does not know."""
    import pyarrow.types as types

    tests = (types.is_temporal, types.is_binary, types.is_large_binary, types.is_fixed_size_binary)
    return any(test(kind) for test in tests)


def _number(value: Any) -> float:
    """Return a decimal number as JSON writes it; TypeError for any other value."""
    if isinstance(value, Decimal):
        return float(value)
    raise TypeError(type(value).__name__)


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(inner) for key, inner in value.items() if inner is not None}
    return [_without_nulls(inner) for inner in value] if isinstance(value, list) else value


def read_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (1-based line number, object) of every line that is not blank; a UserError as `parse_row` says."""
    for number, line in raw_lines(path):
        where = f"{path}: line {number}"
        if text := decode_line(line, where).strip():
            yield number, parse_row(text, where)


def decode_line(line: bytes, where: str) -> str:
    """Return a line as text; bytes that are not UTF-8 are a UserError."""
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{where}: byte {error.start + 1} is not UTF-8; convert the file to UTF-8.") from error


def parse_row(text: str, where: str) -> dict[str, Any]:
    """Return the object that a line is; `where` (file and line) opens every message.

    Raises UserError for a line that is not one JSON object, that names a key twice, or that holds text which UTF-8
    cannot hold (half of a surrogate pair).
    """
    try:
        row = _DECODER.decode(text.strip())
    except _Repeated as error:
        raise UserError(
            f"{where}: the key `{error}` is there twice; give each (also each unit test) a name of its own."
        ) from error
    except json.JSONDecodeError as error:
        raise UserError(
            f"{where}: this is not JSON ({error.msg} at character {error.pos + 1}); fix or remove the line."
        ) from error
    except (ValueError, RecursionError) as error:  # NaN, numbers of thousands of digits, bottomless nesting
        raise UserError(f"{where}: this cannot be read as JSON ({error}); fix or remove the line.") from error
    if not isinstance(row, dict):
        raise UserError(f"{where}: expected one JSON object a line, found {kind(row)}.")
    # Only an escape can bring in half a pair: looking for it first spares every other line the second encoding.
    if "\\ud" in text or "\\uD" in text:
        try:
            json.dumps(row, ensure_ascii=False).encode("utf-8")
        except UnicodeEncodeError as error:
            raise UserError(f"{where}: a string holds half of a surrogate pair; fix the escape.") from error
    return row


def kind(value: Any) -> str:
    """Name the JSON kind of `value` in words, for error messages."""
    return _KINDS.get(type(value), "a number")


def field(row: dict[str, Any], key: str, expected: type, where: str, optional: bool = False) -> Any:
    """Return `row[key]` if it is an `expected` (str, dict, list, int, float); anything else is a UserError.

    With `optional`, a missing key and null give None. A float may be written as a whole number; a boolean is no number,
    and neither is what a float cannot hold.
    """
    if key not in row:
        if optional:
            return None
        raise UserError(f"{where}: the key `{key}` is missing; add it.")
    value: Any = row[key]
    if value is None and optional:
        return None
    accepted = (int, float) if expected is float else (expected,)
    if not isinstance(value, accepted) or (isinstance(value, bool) and expected is not bool):
        raise UserError(f"{where}: `{key}` must be {_KINDS.get(expected, 'a number')}, found {kind(value)}.")
    if expected is not float:
        return value
    try:
        number = float(row[key])
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise UserError(f"{where}: `{key}` is too large a number; correct it.")
    return number
