"""How a zygote's memory is laid out: the same bytes at the same places, and new objects side by side."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import sweetrl.sandbox

HERE = Path(sweetrl.sandbox.__file__).parent

TEXT = """
import ctypes, hashlib, json
first, size = memory._text()
digest = lambda: hashlib.sha256(ctypes.string_at(first, size)).hexdigest()
before, moved = digest(), memory.huge_text()
assert moved in (0, size), (moved, size)
assert digest() == before
spans = [memory._span(line.rstrip()) for line in open("/proc/self/maps")]
modes = {mode for start, end, mode, _ in spans if start < first + size and end > first}
names = {name for start, end, _, name in spans if start < first + size and end > first}
assert json.loads(json.dumps([1.5, {"a": None}])) == [1.5, {"a": None}]  # it still runs
print(json.dumps([moved, sorted(modes), sorted(names)]))
"""

GAPS = """
many = [bytes(n % 900) for n in range(40_000)]
del many[::8]
memory.fill_gaps()
for size in (48, 64, 128, 256, 480, 700):
    objects = [bytes(size - 33) for _ in range(50)]
    pages = {id(one) >> 12 for one in objects}
    assert len(pages) <= 50 * (size + 16) / 4096 + 3, (size, len(pages))
"""


def run(source: str) -> str:
    code = f"import sys; sys.path.insert(0, {str(HERE)!r}); import memory\n{source}"
    done = subprocess.run([sys.executable, "-S", "-s", "-P", "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_the_interpreters_text_is_the_same_on_huge_pages() -> None:
    moved, modes, names = json.loads(run(TEXT))
    if not moved:
        assert any(names)  # the file is still mapped
        pytest.skip("no huge page fits into this interpreter, or the kernel has none to give")
    assert modes == ["r-xp"]  # never writable and executable
    assert names == [""]


def test_new_objects_lie_side_by_side_once_the_gaps_are_filled() -> None:
    run(GAPS)
