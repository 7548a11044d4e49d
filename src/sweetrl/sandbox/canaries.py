"""Attacks that every zygote makes on itself when it starts, in a child like any other. One that succeeds stops the
scoring.

Executed in a child of the zygote, on its own: standard library only.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import os
import signal
import socket
import sys
from collections.abc import Callable
from typing import Any

# The numbers of system calls that no child may make, on x86_64 and on aarch64.
_CALLS = """
ptrace:101:117 mount:165:40 bpf:321:280 io_uring_setup:425:425 userfaultfd:323:282 unshare:272:97 keyctl:250:219
mknodat:259:33 process_vm_readv:310:270 perf_event_open:298:241 setns:308:268 pidfd_open:434:434 memfd_create:319:279
""".split()


def attack(channel: socket.socket, memory: int, bait: str) -> None:
    """Make every attack, and send {its name: whether it succeeded} as JSON. If one ends this process, nothing is sent.

    `memory` is a size in bytes that a child must not get, `bait` a file outside that every user may write to.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    zygote, here = os.getppid(), __file__
    attacks: dict[str, Callable[[], Any]] = {
        "read /etc/passwd": lambda: _read("/etc/passwd"),
        "read /proc/self/environ": lambda: _read("/proc/self/environ"),
        "read the sandbox's own code": lambda: _read(here),
        "list /": lambda: _many(os.listdir("/")),
        "list /proc": lambda: os.listdir("/proc"),
        "list /dev": lambda: _many(os.listdir("/dev")),
        "write outside": _write_outside,
        "empty a file": lambda: os.truncate(bait, 0),
        "empty a file by opening it": lambda: os.close(os.open(bait, os.O_RDONLY | os.O_TRUNC)),
        "empty a file by opening it for nothing": lambda: os.close(os.open(bait, 3 | os.O_TRUNC)),
        "change a file's mode": lambda: os.chmod(bait, 0o644),
        "change a file's times": lambda: os.utime(bait),
        "change the root's mode": lambda: os.chmod("/", 0o755),
        "change the standard library's times": lambda: os.utime(os.__file__),
        "write to the standard library": lambda: os.open(
            os.path.dirname(os.__file__) + "/.canary", os.O_CREAT | os.O_WRONLY
        ),
        "fork": lambda: os.fork() or os._exit(0),
        "execute": lambda: os.execv(sys.executable, [sys.executable, "-c", ""]),
        "signal the zygote": lambda: os.kill(zygote, 0),
        "signal everybody": lambda: os.kill(-1, 0),
        "internet socket": lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM),
        "unix socket": lambda: socket.socket(socket.AF_UNIX, socket.SOCK_STREAM),
        "netlink socket": lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW),
        "signals by file": lambda: fcntl.fcntl(channel.fileno(), fcntl.F_SETOWN, zygote),
        "signal number by file": lambda: fcntl.fcntl(channel.fileno(), 10, signal.SIGKILL),
        "asynchronous file": lambda: fcntl.fcntl(channel.fileno(), fcntl.F_SETFL, os.O_ASYNC),
        "wide fcntl command": lambda: _wide(libc, channel.fileno(), zygote),
        "become root": lambda: os.setuid(0) if os.getuid() else _raise(),
        "more memory": lambda: bytearray(memory),
        "shut the folder": lambda: os.chmod(".", 0),
        "times of an open file": lambda: os.utime(0),
        "links": lambda: os.symlink("/", "canary"),
    }
    column = {"x86_64": 1, "aarch64": 2}.get(os.uname().machine, 0)
    for call in (call.split(":") for call in _CALLS if column):
        attacks[call[0]] = lambda number=int(call[column]): _call(libc, number)  # type: ignore[misc]
    succeeded: dict[str, bool] = {}
    for name, attempt in attacks.items():
        try:
            attempt()
            succeeded[name] = True
        except (OSError, MemoryError, OverflowError):
            succeeded[name] = False
    channel.send(json.dumps(succeeded).encode())


def _write_outside() -> None:
    own = os.environ["HOME"]  # the scratch folder, where there is one; /tmp is another name for it
    for folder in ("/", "/tmp", "/var/tmp", "/dev/shm"):
        if own == "/" or os.path.realpath(folder) != own:
            path = os.path.join(folder, f".sweetrl-canary-{os.getpid()}")
            try:
                os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))
            except OSError:
                continue
            os.unlink(path)
            return
    raise OSError


def _read(path: str) -> None:
    os.close(os.open(path, os.O_RDONLY))


def _many(names: list[str]) -> None:
    if not {"proc", "sys", "boot", "home", "zero", "urandom"}.intersection(names):
        raise OSError


def _raise() -> None:
    raise OSError


def _wide(libc: Any, descriptor: int, zygote: int) -> None:
    if libc.fcntl(descriptor, ctypes.c_long(8 | 1 << 32), zygote) != 0:  # F_SETOWN hidden behind a high bit
        raise OSError


def _call(libc: Any, number: int) -> None:
    """Make a system call whose arguments are invalid: the filter refuses it (EPERM) before the kernel looks at them.

    Any other error says that the filter lets the call through.
    """
    libc.syscall.restype = ctypes.c_long
    arguments = (ctypes.c_long(value) for value in (0x10000001, 0, 0, 0, 0, 0))
    if libc.syscall(number, *arguments) < 0 and ctypes.get_errno() == errno.EPERM:
        raise OSError
