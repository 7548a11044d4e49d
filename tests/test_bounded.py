"""Readers of others' files: what a few bytes of them become is bounded."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sweetrl.bounded import LONGEST_ROW, MIB, fits
from sweetrl.colbench.jsonl import raw_lines, read_rows
from sweetrl.errors import UserError
from sweetrl.io import read_json

LONG = 20_000_000


def same(value: Any, kind: pa.DataType | None = None) -> pa.Array:
    """64 rows of one long value, stored once."""
    return pa.DictionaryArray.from_arrays(pa.array([0] * 64, pa.int32()), pa.array([value], kind))


def each(count: int = 64) -> pa.Array:
    return pa.array(range(count + 1), pa.int32())


def one_list(values: pa.Array) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), values)


def nested(depth: int) -> pa.Array:
    value = pa.array([1])
    for _ in range(depth):
        value = one_list(value)
    return value


BOMBS: dict[str, Callable[[], pa.Array]] = {
    "text": lambda: same("Z" * LONG),
    "large-text": lambda: same("Z" * LONG, pa.large_string()),
    "bytes": lambda: same(b"Z" * LONG),
    "bytes-of-one-length": lambda: same(b"Z" * LONG, pa.binary(LONG)),
    "in-a-list": lambda: pa.ListArray.from_arrays(each(), same("Z" * LONG)),
    "in-a-struct": lambda: pa.StructArray.from_arrays([same("Z" * LONG)], ["x"]),
    "in-a-map": lambda: pa.MapArray.from_arrays(each(), pa.array(list(map(str, range(64)))), same("Z" * LONG)),
    "one-page": lambda: pa.array(["Z" * 15 * LONG]),
    "long-row": lambda: pa.array(["Z" * (LONGEST_ROW + 1)]),
    "numbers": lambda: one_list(pa.nulls(2 * LONG, pa.int8()).fill_null(7)),
    "nulls": lambda: one_list(pa.nulls(3 * LONG, pa.int8())),
    "rows": lambda: pa.nulls(2_000_000, pa.int8()),
    "depth": lambda: nested(500),
}
READ = """
import resource, sys
from pathlib import Path
from sweetrl.bounded import check_parquet, parquet_rows
from sweetrl.errors import UserError

def most():
    return max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))

usual, bomb = map(Path, sys.argv[1:])
list(parquet_rows(usual)), check_parquet([usual])
before = most()
for read in (lambda path: sum(1 for _ in parquet_rows(path)), lambda path: check_parquet([path])):
    try:
        print("read", read(bomb))
    except UserError as error:
        print(error)
print((most() - before) // 1024)
"""


@pytest.mark.parametrize("name", BOMBS)
def test_a_table_takes_memory_within_bounds(tmp_path: Path, name: str) -> None:
    pq.write_table(pa.table({"a": [1]}), tmp_path / "usual.parquet")
    plain = name in ("one-page", "numbers", "nulls", "rows")
    options: Any = {"compression": "zstd", "use_dictionary": not plain, "write_statistics": False}
    pq.write_table(pa.table({"a": BOMBS[name]()}), tmp_path / "bomb.parquet", store_schema=False, **options)
    files = [str(tmp_path / "usual.parquet"), str(tmp_path / "bomb.parquet")]
    done = subprocess.run([sys.executable, "-c", READ, *files], capture_output=True, text=True, timeout=200)
    *lines, growth = done.stdout.splitlines()
    assert "bomb.parquet: this cannot be read as Parquet with rows of text and numbers" in lines[0]
    assert int(growth) <= 256, done.stdout


LEAF = b"\x15\x02\x25\x00\x18\x01a\x00"  # a column


def thrift(number: int) -> bytes:
    return bytes([number]) if number < 128 else bytes([number & 127 | 128]) + thrift(number >> 7)


def footer(fields: list[bytes]) -> bytes:
    """A file without rows and with these columns, in Thrift's compact protocol."""
    content = b"\x15\x02\x19\xfc" + thrift(len(fields)) + b"".join(fields) + b"\x16\x00\x19\x0c\x00"
    return b"PAR1" + content + struct.pack("<I", len(content)) + b"PAR1"


@pytest.mark.parametrize(
    "content",
    [
        footer([b"\x48\x01r\x15\x02\x00", *[b"\x35\x00\x18\x01a\x15\x02\x00"] * 60_000, LEAF]),
        footer([b"\x48\x01r\x15" + thrift(120_000) + b"\x00", *[LEAF] * 60_000]),
        b"PAR1" + bytes(5 * MIB) + struct.pack("<I", 5 * MIB) + b"PAR1",
        b"PAR1" + bytes(100) + struct.pack("<I", 2**32 - 1) + b"PAR1",
        b"PAR1",
        b"",
    ],
    ids=["deep", "wide", "long", "longer-than-the-file", "short", "empty"],
)
def test_a_footer_out_of_proportion_is_a_sentence(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.parquet").write_bytes(content)
    with pytest.raises(UserError, match=r"a\.parquet: (this is no complete Parquet|the footer has more than 4 MiB)"):
        list(raw_lines(tmp_path / "a.parquet"))


def test_a_long_line_is_named_and_the_next_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    with path.open("wb") as file:
        file.write(b'{"a": 1}\n{"a": "' + b"x" * 40 * MIB + b'"}\n{"a": 3}\n')
    assert [(number, len(line) > LONGEST_ROW) for number, line in raw_lines(path)] == [
        (1, False),
        (2, True),
        (3, False),
    ]
    with pytest.raises(UserError, match="line 2: the row has more than 6 MiB"):
        list(read_rows(path))
    with pytest.raises(UserError, match="more than 6 MiB"):
        read_json(path, LONGEST_ROW)


def test_levels_and_values_are_counted_however_deep_they_are() -> None:
    value: Any = {"a": {"b": [1, 2]}}
    assert fits(value, 3, 4) and not fits(value, 2) and not fits(value, 3, 3)
    for _ in range(100_000):
        value = [value]
    assert fits(value, 100_003) and not fits(value, 64)
    while isinstance(value, list):  # without recursion, too
        value = value[0]


def test_large_honest_tables_are_read(tmp_path: Path) -> None:
    """A row group of 300 MiB is read page by page."""
    words = [json.dumps({"n": number, "words": f"{number} " * 150}) for number in range(2_000)]
    column = pa.array(words * 150)
    pq.write_table(pa.table({"a": column}), tmp_path / "a.parquet", use_dictionary=False, row_group_size=len(column))
    assert sum(1 for _ in raw_lines(tmp_path / "a.parquet")) == len(column)
