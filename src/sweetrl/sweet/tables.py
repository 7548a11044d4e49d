"""Dataclasses as rows of a Parquet file: the schema is that of the dataclass, and equal rows give equal bytes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import fields, is_dataclass
from itertools import islice
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Any, TypeVar, get_args, get_type_hints

from pydantic import TypeAdapter

from sweetrl.errors import UserError
from sweetrl.io import atomic_path
from sweetrl.lm.rows import Listed
from sweetrl.types import Float32

if TYPE_CHECKING:
    import pyarrow

T = TypeVar("T")
_BATCH = 64  # rows that are made at a time
_GROUP = 64 * 2**20  # bytes of a row group: what writing holds in memory, and reading rows here and there


def schema_of(kind: type) -> pyarrow.Schema:
    """Return the columns of a dataclass whose fields are strings, numbers, booleans, dataclasses, tuples, or None."""
    import pyarrow as pa

    plain = {str: pa.string(), int: pa.int32(), float: pa.float64(), bool: pa.bool_(), Float32: pa.float32()}

    def column(hint: Any) -> Any:
        if is_dataclass(hint):
            return pa.struct(list(schema_of(hint)))  # type: ignore[arg-type]
        if isinstance(hint, UnionType):
            return column(get_args(hint)[0])
        return plain[hint] if hint in plain else pa.list_(column(get_args(hint)[0]))

    hints = get_type_hints(kind, include_extras=True)
    return pa.schema([(field.name, column(hints[field.name])) for field in fields(kind)])


class Table(Listed[T]):
    """The rows of a Parquet file, each a `kind`, in their order and read one at a time; `stage` writes such files.

    The file is open as long as this is, so that it stays what it was when another takes its place. A missing or foreign
    file is a UserError.
    """

    def __init__(self, path: Path, kind: type[T], stage: str = "rank") -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        if not path.exists():
            raise UserError(f"{path}: there is no such file; run the stage `{stage}` first.")
        try:
            self._file = pq.ParquetFile(pa.OSFile(str(path)))
        except pa.ArrowInvalid as error:
            raise UserError(f"{path}: this is not a Parquet file; run the stage `{stage}` again.") from error
        missing = [name for name in schema_of(kind).names if name not in self._file.schema_arrow.names]
        if missing:
            raise UserError(f"{path}: column `{missing[0]}` is missing; run the stage `{stage}` again.")
        self.path, self._make = path, TypeAdapter(kind).validate_python
        self._group: tuple[int, pyarrow.Table] | None = None

    def __len__(self) -> int:
        return int(self._file.metadata.num_rows)

    def __iter__(self) -> Iterator[T]:
        for group in range(self._file.metadata.num_row_groups):  # one reader each: it keeps what it has read
            for batch in self._file.iter_batches(batch_size=_BATCH, row_groups=[group]):
                yield from map(self._make, batch.to_pylist())

    def item(self, index: int) -> T:
        """Read row number `index`, and keep its row group for the next ones."""
        metadata, group = self._file.metadata, 0
        while index >= metadata.row_group(group).num_rows:
            index -= metadata.row_group(group).num_rows
            group += 1
        if self._group is None or self._group[0] != group:
            self._group = (group, self._file.read_row_group(group))
        return self._make(self._group[1].slice(index, 1).to_pylist()[0])


def write_table(path: Path, kind: type[T], rows: Iterable[T]) -> Table[T]:
    """Write `rows` in row groups of about `_GROUP` bytes, few of them in memory; return them as they are read again."""
    import pyarrow.parquet as pq

    schema = schema_of(kind)
    with atomic_path(path) as temporary, pq.ParquetWriter(temporary, schema, compression="zstd") as writer:
        for table in _tables(map(_record, rows), schema):
            writer.write_table(table)
    return Table(path, kind)


def _tables(records: Iterator[dict[str, Any]], schema: pyarrow.Schema) -> Iterator[pyarrow.Table]:
    """Yield `records` as tables of about `_GROUP` bytes, at least one."""
    import pyarrow as pa

    parts, size, first = list[pa.Table](), 0, True
    while some := list(islice(records, _BATCH)):
        parts.append(pa.Table.from_pylist(some, schema=schema))
        size += parts[-1].nbytes
        if size >= _GROUP:
            table = pa.concat_tables(parts).combine_chunks()
            parts, size, first = [], 0, False
            yield table
            del table
    if parts or first:
        yield pa.concat_tables(parts or [schema.empty_table()]).combine_chunks()


def _record(row: Any) -> dict[str, Any]:
    """A dataclass as pyarrow takes it: a dict, also where a tuple of it holds others."""
    values = {field.name: getattr(row, field.name) for field in fields(row)}
    return {
        name: list(map(_record, value)) if isinstance(value, tuple) and value and is_dataclass(value[0]) else value
        for name, value in values.items()
    }
