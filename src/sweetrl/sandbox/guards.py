"""Which layers isolate a zygote and its children, and in what order they are put on. Loaded by the zygote on its own.

Order in the zygote: namespaces with a root of its own, no-new-privileges, Landlock, capabilities. In each child: file
descriptors, death signal, resource limits, seccomp. A layer is left out only if the kernel refuses it or the
configuration names it in `without` (tests); what is active is reported, and the client decides whether that is enough.
"""

from __future__ import annotations

import _struct
import ctypes
import os
import resource
import stat

TYPE_CHECKING = False  # what typing says of it, without importing that
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_CAPBSET_DROP, _PR_SET_SECUREBITS, _PR_SET_NO_NEW_PRIVS = 1, 4, 24, 28, 38
_PR_SET_KEEPCAPS, _PR_CAPBSET_READ, _CAP_DAC_READ_SEARCH = 8, 23, 2
_CAPABILITY_VERSION = 0x20080522
# Shared objects that extension modules of the standard library and of the allowed libraries link against, and what the
# standard library reads: time zones, types of files, the locale that zygotes are started with.
_SHARED = (
    *("/usr/lib/{0}", "/lib/{0}", "/usr/lib64", "/lib64", "/etc/ld.so.cache"),
    *("/usr/share/zoneinfo", "/etc/mime.types", "/usr/lib/locale/C.utf8"),
)
_NOBODY = 65534
_OWN_USERS = range(61184, 65520)  # which no person has: systemd keeps them for services, too
_MODE = 0o700
_libc = ctypes.PyDLL(None, use_errno=True)  # one thread: no lock to let go of


class Guards:
    """The layers of one zygote."""

    def __init__(self, config: dict[str, Any], modules: dict[str, Any]) -> None:
        self.config = config
        self.landlock, self.namespaces = modules["landlock"], modules["namespaces"]
        self.without = set(config["without"])
        self.filter = modules["seccomp"].Filter() if "seccomp" not in self.without else None
        self.layers: list[str] = []
        self.scratch = ""
        self.base = 0
        self.processes = 0
        self.alone = False  # whether the zygote and its child are the only processes of their user
        self.groups = False  # whether a child could start processes, and must lead a process group
        self._limits: list[tuple[int, tuple[int, int]]] = []

    def lock_zygote(self) -> list[str]:
        """Put on everything that the zygote itself can live with; return the names of the active layers."""
        kept = 0
        with open("/proc/self/statm", "rb") as statm:
            self.base = int(statm.read().split()[0]) * resource.getpagesize()
        version = 0 if "landlock" in self.without else self.landlock.abi()
        if "landlock truncation" in self.without:  # as on Linux before 6.2
            version = min(version, self.landlock.TRUNCATION - 1)
        readable, listable, hidden = self._paths()
        limits = self.config["limits"]
        if "namespaces" not in self.without and self.namespaces.possible():
            self.namespaces.enter(readable, hidden, limits["disk_mib"])
            self.layers.append("namespaces")
            self.scratch = self.namespaces.SCRATCH
            self.processes, self.alone = limits["processes"] + 4, True
        else:
            if os.geteuid() == 0:
                kept, self.alone = _leave_root(_open_to_all(readable), version > 0)
            self.processes = limits["processes"] + (4 if self.alone else 1024 + _own_processes())
        os.environ["HOME"] = self.scratch or "/"
        _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        if version:
            writable = [self.scratch] if self.scratch else []
            self.landlock.restrict(self._split(readable, hidden), listable, [*writable, self.namespaces.NULL], version)
            self.layers.append("landlock")
        _drop_capabilities(kept)
        if "rlimits" not in self.without:
            self._limit()
        if self.filter is not None and self.filter.supported:
            own_root = "namespaces" in self.layers
            truncation = own_root or not 0 < version < self.landlock.TRUNCATION
            self.filter.install_zygote(own_root, truncation)
            self.layers.append("seccomp")
        os.close(os.open(self.namespaces.NULL, os.O_RDWR))  # every child will
        self.groups = "seccomp" not in self.layers
        if "rlimits" not in self.without:
            self.layers.append("rlimits")
        return self.layers

    def _paths(self) -> tuple[list[str], list[str], list[str]]:
        """(readable files and folders, folders that may only be listed, folders to hide inside the readable ones)."""
        stdlib = {os.path.realpath(path) for path in self.config["stdlib"]}
        stdlib.add(os.path.dirname(os.path.realpath(os.__file__)))
        extension = getattr(_struct, "__file__", None)  # it lies where all of the standard library do
        dynamic = {os.path.realpath(os.path.dirname(extension))} if extension else set[str]()
        machine = os.uname().machine + "-linux-gnu"
        shared = [os.path.realpath(pattern.format(machine)) for pattern in _SHARED]
        hidden = [
            os.path.join(folder, name) for folder in stdlib for name in ("site-packages", "dist-packages", "test")
        ]
        libraries = list(self.config["libraries"])
        order = [*sorted(stdlib), *sorted(dynamic), *shared, *libraries]
        readable = [path for path in dict.fromkeys(order) if os.path.exists(path)]
        inside = [
            p for p in readable if not any(p != q and p.startswith(q + "/") and q not in stdlib for q in readable)
        ]
        return inside, sorted(stdlib), hidden

    def _split(self, readable: list[str], hidden: list[str]) -> list[str]:
        """The readable paths without the hidden ones: Landlock cannot exclude a folder, so its siblings are listed."""
        parts: list[str] = []
        for path in readable:
            if not self.scratch and any(folder.startswith(path + "/") for folder in hidden):
                children = [os.path.join(path, name) for name in os.listdir(path)]
                parts += [child for child in children if child not in hidden]
            else:
                parts.append(path)
        return parts

    def child_lock(self, keep: int) -> Callable[[int], None]:
        """Return what a child calls first, with its parent's id, to put on what only a child can bear. It closes all
        descriptors but `keep`; afterwards only what the seccomp filter allows is possible.

        The child opens standard input, output and error itself: the mode and the locks of an inherited open file
        would be the next child's, too. The zygote binds all names beforehand: each attribute that a child looks up
        costs it pages.
        """
        close, below, above = os.closerange, keep, keep + 1
        opened, again, null, both = os.open, os.dup, self.namespaces.NULL, os.O_RDWR
        group, orphan, parent_of, leave, own = self.groups, not self.scratch, os.getppid, os._exit, os.getpid
        limit, limits = resource.setrlimit, tuple(self._limits)
        bind = self.filter.child_installer() if self.filter is not None and "seccomp" in self.layers else None

        def lock(parent: int) -> None:
            close(0, below)
            close(above, 4096)
            again(opened(null, both))  # 0 and 1, the lowest that are free
            again(0)
            if group:
                os.setpgid(0, 0)
            if orphan:  # in a process namespace of its own everything ends with the zygote anyway
                _libc.prctl(_PR_SET_PDEATHSIG, 9, 0, 0, 0)
                if parent_of() != parent:  # it died before the signal was asked for
                    leave(1)
            for name, pair in limits:
                limit(name, pair)
            if bind is not None:
                bind(own())

        return lock

    def _limit(self) -> None:
        """Limits that the zygote can live with, so that no child has to set them; the others are kept for later."""
        limits = self.config["limits"]
        results = max(limits["disk_mib"] << 20, limits["output_kib"] << 14)  # in the file that holds the source, too
        now = {
            resource.RLIMIT_AS: self.base + (limits["memory_mib"] << 20),
            resource.RLIMIT_FSIZE: results + (limits["source_kib"] << 10),
            resource.RLIMIT_NOFILE: 64,
            **dict.fromkeys((resource.RLIMIT_CORE, resource.RLIMIT_MEMLOCK, resource.RLIMIT_MSGQUEUE), 0),
        }
        later = {resource.RLIMIT_CPU: limits["cpu_seconds"]}
        (now if self.alone else later)[resource.RLIMIT_NPROC] = self.processes
        for name, value in now.items():
            resource.setrlimit(name, _within_hard(name, value))
        self._limits = [(name, _within_hard(name, value)) for name, value in later.items()]

    def clean_scratch(self) -> bool:
        """Empty the scratch folder, and give it the mode and the times that it began with.

        Returns False if something stays, and the zygote must be given up.
        """
        if not self.scratch:
            return True
        try:
            status = os.stat(self.scratch)
            if stat.S_IMODE(status.st_mode) != _MODE:
                if self.groups:  # without the filter a child may have done more than that
                    return False
                os.chmod(self.scratch, _MODE)
            if os.listdir(self.scratch):
                _empty(self.scratch)
                if os.listdir(self.scratch):
                    return False
            elif status.st_mtime_ns == status.st_atime_ns == 0:
                return True
            os.utime(self.scratch, (0, 0))
            return True
        except OSError:
            return False


def _within_hard(name: int, value: int) -> tuple[int, int]:
    _, hard = resource.getrlimit(name)
    if hard != resource.RLIM_INFINITY:
        value = min(value, hard)
    return value, value


def _empty(folder: str) -> None:
    """Remove what is in `folder` by walking into it: its folders may lie deeper than a path can name."""
    os.chdir(folder)
    way: list[str] = []
    left = [_remove_files()]  # of each folder on the way, those inside it
    while left[-1] or way:
        if left[-1]:
            way.append(left[-1].pop())
            os.chmod(way[-1], _MODE)  # it may refuse to be listed or walked into
            os.chdir(way[-1])
            left.append(_remove_files())
        else:
            left.pop()
            os.chdir("..")
            os.rmdir(way.pop())


def _remove_files() -> list[str]:
    """Remove the files of the current folder; return the names of its folders."""
    with os.scandir(".") as entries:
        listed = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    for name, is_folder in listed:
        if not is_folder:
            os.unlink(name)
    return [name for name, is_folder in listed if is_folder]


def _open_to_all(paths: list[str]) -> bool:
    """Whether any user may reach all of these paths."""
    for path in paths:
        while path not in ("", "/"):
            if not os.stat(path).st_mode & 0o005:
                return False
            path = os.path.dirname(path)
    return True


def _own_processes() -> int:
    """How many threads this user runs: a limit on processes counts them all."""
    uid, count = os.getuid(), 0
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                if os.stat("/proc/" + name).st_uid == uid:
                    count += len(os.listdir(f"/proc/{name}/task"))
            except OSError:
                pass
    return count


def _leave_root(open_to_all: bool, landlock: bool) -> tuple[int, bool]:
    """Change to a user of this zygote's own; return the capabilities to keep (bits), and whether that was possible.

    The kernel limits the processes of a real user, but never root's. Where Python lies in a folder that only root may
    enter, that user must be let through to it: the right to read and to search whatever root may, of which `landlock`
    leaves Python's own files. It writes nothing. Where root itself does not have that right (in most containers), the
    effective user stays root, without capabilities.
    """
    searches = landlock and _libc.prctl(_PR_CAPBSET_READ, _CAP_DAC_READ_SEARCH, 0, 0, 0) == 1
    kept = 1 << _CAP_DAC_READ_SEARCH if searches and not open_to_all else 0
    own = _OWN_USERS[int.from_bytes(os.urandom(2), "big") % len(_OWN_USERS)]
    for user in (own, _NOBODY):
        try:
            os.setgroups([])
            if not (open_to_all or kept):
                os.setresuid(user, 0, 0)
                return 0, user == own
            os.setresgid(user, user, user)
            _libc.prctl(_PR_SET_KEEPCAPS, 1 if kept else 0, 0, 0, 0)
            os.setresuid(user, user, user)
            _set_capabilities(kept)
            return kept, user == own
        except OSError:  # root of a container that has no such user, or may not change users
            continue
    return 0, False


def _drop_capabilities(kept: int) -> None:
    for number in range(64):
        if _libc.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0) != 0:
            break
    _libc.prctl(_PR_SET_SECUREBITS, 0x2F, 0, 0, 0)  # uid 0 brings nothing, and that stays
    _set_capabilities(kept)
    _libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def _set_capabilities(kept: int) -> None:
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
    sets = (ctypes.c_uint32 * 6)(kept, kept)  # effective and permitted, of those with numbers below 32
    if _libc.capset(header, sets) != 0:
        raise OSError(ctypes.get_errno(), "capset")
