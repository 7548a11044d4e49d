"""How the memory of a zygote lies, so that a child has fewer pages to map and to copy. Loaded by the zygote on its own.

A child lives for a millisecond, and most of that is page faults: at its first step in each piece of the interpreter's
code, and at its first write to each page, be it only to count a reference. Nothing here changes what any code does,
and where the kernel will not have it, everything stays as it was.
"""

from __future__ import annotations

import ctypes
import os

TYPE_CHECKING = False  # what typing says of it, without importing that
if TYPE_CHECKING:
    from typing import Any

_READ, _WRITE, _EXECUTE, _PRIVATE_ANONYMOUS = 1, 2, 4, 0x22
_HUGEPAGE, _COLLAPSE, _MOVE_TO = 14, 25, 3
_HUGE = 2 << 20
# The interpreter's allocator serves objects of up to 512 bytes from pools of one size, the C library's heap the others.
_SMALL, _POOL, _POOL_HEADER, _RUN = 512, 1 << 14, 48, 6
_MOST, _LARGE = 1 << 17, 1 << 16  # bytes: of fillers of one small size, and of the largest filler

_kept: tuple[Any, ...] = ()  # a chain and not a list, which would leave gaps when it grows
_libc = ctypes.PyDLL(None)
_libc.mmap.restype = _libc.mremap.restype = ctypes.c_void_p


class _Mallinfo(ctypes.Structure):
    _fields_ = (("others", ctypes.c_size_t * 9), ("keepcost", ctypes.c_size_t))  # the latter: bytes free at the top


def huge_text() -> int:
    """Put the interpreter's code and constants on huge pages, which a fork hands on as they are; return their size.

    The bytes at every address stay the same. They are copied beside first, and one system call puts the copy in the
    place of the mapped file, so it does not matter that this code runs from there.
    """
    if os.uname().machine != "x86_64":  # elsewhere code that was written must be made known to the processor
        return 0
    first, size = _text()
    if size <= 0:
        return 0
    room = _libc.mmap(None, _size(size + _HUGE), _READ | _WRITE, _PRIVATE_ANONYMOUS, -1, _size(0))
    if room in (None, ctypes.c_void_p(-1).value):
        return 0
    copy = (room + _HUGE - 1) & -_HUGE
    _libc.madvise(_address(copy), _size(size), _HUGEPAGE)
    ctypes.memmove(copy, first, size)
    # A copy on small pages would be worse than the file: the kernel must say that these are huge.
    moved = (
        _libc.madvise(_address(copy), _size(size), _COLLAPSE) == 0
        and _libc.mprotect(_address(copy), _size(size), _READ | _EXECUTE) == 0
        and _libc.mremap(_address(copy), _size(size), _size(size), _MOVE_TO, _address(first)) == first
    )
    for start, end in ((room, copy), (copy + size, room + size + _HUGE)) if moved else ((room, room + size + _HUGE),):
        if end > start:
            _libc.munmap(_address(start), _size(end - start))
    return size if moved else 0


def _text() -> tuple[int, int]:
    """The huge pages that lie wholly in the read-only part of the file that holds the interpreter: address, bytes."""
    inside = ctypes.cast(ctypes.pythonapi.Py_IncRef, ctypes.c_void_p).value or 0
    try:
        descriptor = os.open("/proc/self/maps", os.O_RDONLY)
    except OSError:
        return 0, 0
    with os.fdopen(descriptor, encoding="utf-8", errors="replace") as maps:
        spans = [_span(line.rstrip("\n")) for line in maps]
    name = next((name for start, end, _, name in spans if start <= inside < end), "")
    first = last = 0
    for start, end, mode, path in spans:
        if path == name and "w" not in mode and (not first or start == last):
            first, last = first or start, end
    first = (first + _HUGE - 1) & -_HUGE
    return first, (last - first) & -_HUGE


def _span(line: str) -> tuple[int, int, str, str]:
    """A line of /proc/self/maps: start, end, mode, file."""
    row = line.split(maxsplit=5)
    start, end = row[0].split("-")
    return int(start, 16), int(end, 16), row[1], row[5] if len(row) > 5 else ""


def fill_gaps() -> None:
    """Fill the gaps that freed objects left, for good: from now on new objects lie side by side on new pages."""
    global _kept
    for size in range(16, _SMALL + 1, 16):
        expected = -1
        for i in range(_MOST // size):
            filler: Any = object() if size == 16 else i + 0.5 if size == 32 else bytes(size - 33)
            _kept = (filler, _kept)
            place = id(filler) % _POOL
            if place == expected == _POOL_HEADER + _RUN * size:  # one after the other in a new pool: no gap was left
                break
            expected = place + size if place in (expected, _POOL_HEADER) else -1
    top = _top()
    for size in range(_LARGE, _SMALL if top else _LARGE, -16):
        while id(filler := bytes(size - 33)) < top:
            _kept = (filler, _kept)


def _top() -> int:
    """Where the C library's heap has not been used yet, as far as it says; 0 if it does not."""
    try:
        _libc.mallinfo2.restype = _Mallinfo
        _libc.sbrk.restype = ctypes.c_ssize_t
        end = int(_libc.sbrk(_size(0)))
        return end - int(_libc.mallinfo2().keepcost) if end > 0 else 0
    except AttributeError:  # a C library other than glibc, or an old one
        return 0


def _address(value: int) -> ctypes.c_void_p:
    return ctypes.c_void_p(value)


def _size(value: int) -> ctypes.c_size_t:
    return ctypes.c_size_t(value)
