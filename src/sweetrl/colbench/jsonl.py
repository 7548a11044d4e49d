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
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from sweetrl.errors import UserError
from sweetrl.text import printable

if TYPE_CHECKING:
    from pyarrow import Array, DataType, Schema

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

    The null of `answer` stays, because it says something: there is no answer. Columns of what JSON does not know, such
    as times, are no keys of any row here and are not read.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            if own := (file.schema_arrow.metadata or {}).get(FORMAT_KEY):
                raise UserError(
                    f"{path}: this is a table of this project ({own.decode()}), no file of rows; see --help."
                )
            names = _columns(file.schema_arrow, path)
            number = 0
            for batch in file.iter_batches(batch_size=64, columns=names):
                columns = {name: _values(batch.column(name), f"{path}: column `{name}`") for name in names}
                for row in range(batch.num_rows):
                    number += 1
                    found = {name: values[row] for name, values in columns.items()}
                    kept = {
                        name: _without_nulls(value)
                        for name, value in found.items()
                        if value is not None or name == "answer"
                    }
                    yield number, json.dumps(kept, ensure_ascii=False).encode()
    except FileNotFoundError as error:
        raise UserError(f"{path}: there is no such file; check the path.") from error
    except (pa.ArrowException, OSError) as error:
        raise UserError(
            f"{path}: this cannot be read as Parquet with rows of text and numbers; write it again."
        ) from error


def _columns(schema: Schema, path: Path) -> list[str]:
    """The columns that rows are made of; a UserError for two of one name, and for a key with times or bytes inside."""
    import pyarrow as pa

    names = []
    for one in schema:
        if one.name in names:
            raise UserError(f"{path}: the column `{one.name}` is there twice; give each a name of its own.")
        if _is_json(one.type) or pa.types.is_decimal(one.type):
            names.append(one.name)
        elif pa.types.is_nested(one.type):
            raise UserError(
                f"{path}: column `{one.name}` holds what JSON does not know ({one.type}); write it as text and "
                "numbers, or leave the column out."
            )
    return names


def _is_json(kind: DataType) -> bool:
    """Whether JSON knows the values of an Arrow type."""
    import pyarrow.types as types

    if types.is_map(kind):
        return _is_json(kind.key_type) and _is_json(kind.item_type)
    if types.is_nested(kind):
        return all(_is_json(kind.field(index).type) for index in range(kind.num_fields))
    if types.is_dictionary(kind):
        return _is_json(kind.value_type)
    plain = (types.is_null, types.is_boolean, types.is_integer, types.is_floating)
    texts = (types.is_string, types.is_large_string, types.is_string_view)
    return any(check(kind) for check in (*plain, *texts))


def _values(column: Array, where: str) -> list[Any]:
    """The values of a column as JSON has them."""
    import pyarrow as pa

    if pa.types.is_decimal(column.type):
        column = column.cast(pa.float64())
    try:
        return cast(list[Any], column.to_pylist(maps_as_pydicts="strict"))
    except UnicodeDecodeError as error:
        raise UserError(f"{where}: a text is not UTF-8; write the column again, or leave it out.") from error
    except KeyError as error:
        raise UserError(f"{where}: a map has a key twice; give each a name of its own.") from error


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(inner) for key, inner in value.items() if inner is not None}
    return [_without_nulls(inner) for inner in value] if isinstance(value, list) else value


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (1-based line number, text) of every line that is not blank; bytes that are not UTF-8 are a UserError."""
    for number, line in raw_lines(path):
        text = decode_line(line, f"{path}: line {number}")
        if text.strip():
            yield number, text


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
    value = row[key]
    if value is None and optional:
        return None
    accepted = (int, float) if expected is float else (expected,)
    if not isinstance(value, accepted) or (isinstance(value, bool) and expected is not bool):
        wanted = _KINDS.get(expected, "a number")
        raise UserError(f"{where}: `{key}` must be {wanted}, found {kind(value)}.")
    return _float(row[key], key, where) if expected is float else value


def _float(value: int | float, key: str, where: str) -> float:
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise UserError(f"{where}: `{key}` is too large a number; correct it.")
    return number
