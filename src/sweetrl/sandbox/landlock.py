"""Landlock: which files may be read and written, decided by the kernel for this process and everything it starts.

Works for ordinary users and inside containers. Also refuses TCP (ABI 4), and abstract sockets and signals to processes
outside (ABI 6) where the kernel knows how. Loaded by the zygote on its own: standard library only.
"""

from __future__ import annotations

import ctypes
import os
import struct

_CREATE, _ADD, _RESTRICT = 444, 445, 446  # the same on every architecture
READ_FILE, READ_DIR = 1 << 2, 1 << 3
# write, remove file and folder, make folder, regular file
WRITE = (1 << 1) | (1 << 4) | (1 << 5) | (1 << 7) | (1 << 8)
_TRUNCATE, _REFER, _IOCTL = 1 << 14, 1 << 13, 1 << 15  # the second: from one writable folder to another
TRUNCATION = 3  # the version from which on it refuses to empty files that may not be written to
_SINCE = {2: _REFER, TRUNCATION: _TRUNCATE, 5: _IOCTL}

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


def abi() -> int:
    """The kernel's Landlock version; 0 where there is none."""
    version = _libc.syscall(_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint32(1))
    return max(0, int(version))


def restrict(readable: list[str], listable: list[str], writable: list[str], version: int) -> None:
    """From now on only these paths (and what is beneath) can be opened; raises OSError if the kernel refuses.

    `listable` folders can be listed, with everything beneath them, but the files in them not read. Missing paths are
    passed over. `version` is that of abi(), or an older one. Needs no-new-privileges.
    """
    files = (1 << 13) - 1 + sum(right for since, right in _SINCE.items() if version >= since)
    write = WRITE | files & (_REFER | _TRUNCATE)
    # what is ruled: files; from version 4 on the network, too; from 6 on sockets and signals to processes outside
    ruleset = struct.pack("3Q", files, 3, 3)[: 24 if version >= 6 else 16 if version >= 4 else 8]
    handle = _call(_CREATE, ruleset, ctypes.c_size_t(len(ruleset)), ctypes.c_uint32(0))
    try:
        for paths, allowed in (
            (readable, READ_FILE | READ_DIR),
            (listable, READ_DIR),
            (writable, READ_FILE | READ_DIR | write),
        ):
            for path in paths:
                _add(handle, path, allowed, write)
        _call(_RESTRICT, ctypes.c_int(handle), ctypes.c_uint32(0))
    finally:
        os.close(handle)


def _add(handle: int, path: str, allowed: int, write: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if not os.path.isdir(path):
            allowed &= READ_FILE | (1 << 1) | _TRUNCATE
        beneath = struct.pack("=Qi", allowed, descriptor)
        _call(_ADD, ctypes.c_int(handle), ctypes.c_int(1), beneath, ctypes.c_uint32(0))
    finally:
        os.close(descriptor)


def _call(*arguments: object) -> int:
    result = int(_libc.syscall(*arguments))
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"landlock: {os.strerror(number)}")
    return result
