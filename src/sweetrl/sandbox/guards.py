"""Which layers isolate a zygote and its children, and in what order they are put on. Loaded by the zygote on its own.

Order in the zygote: namespaces with a root of its own, no-new-privileges, Landlock, capabilities. In each child: file
descriptors, death signal, resource limits, seccomp. A layer is left out only if the kernel refuses it or the
configuration names it in `without` (tests); what is active is reported, and the client decides whether that is enough.
"""

from __future__ import annotations

import ctypes
import os
import resource
import stat

TYPE_CHECKING = False  # what typing says of it, without importing that
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_CAPBSET_DROP, _PR_SET_SECUREBITS, _PR_SET_NO_NEW_PRIVS = 1, 4, 24, 28, 38
_CAPABILITY_VERSION = 0x20080522
# Shared objects that extension modules of the standard library and of the allowed libraries link against.
_SHARED = ("/usr/lib/{0}", "/lib/{0}", "/usr/lib64", "/lib64", "/etc/ld.so.cache", "/usr/share/zoneinfo")
_NOBODY = 65534
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
        self.processes: int | None = None
        self.groups = False  # whether a child could start processes, and must lead a process group
        self._limits: list[tuple[int, tuple[int, int]]] = []

    def lock_zygote(self) -> list[str]:
        """Put on everything that the zygote itself can live with; return the names of the layers that hold."""
        self.base = _address_space()
        readable, listable, hidden = self._paths()
        limits = self.config["limits"]
        if "namespaces" not in self.without and self.namespaces.possible():
            self.namespaces.enter(readable, hidden, limits["disk_mib"])
            self.layers.append("namespaces")
            self.scratch = self.namespaces.SCRATCH
            self.processes = limits["processes"] + 4
        else:
            self.processes = _own_processes() + limits["processes"] + 1024
            if os.geteuid() == 0 and _open_to_all(readable):
                try:
                    os.setgroups([])
                    os.setresgid(_NOBODY, _NOBODY, _NOBODY)
                    os.setresuid(_NOBODY, _NOBODY, _NOBODY)
                    self.processes = None
                except PermissionError:  # root of a container that may not change users
                    pass
        _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        if "landlock" not in self.without and self.landlock.abi() > 0:
            self.landlock.restrict(self._split(readable), listable, [self.scratch] if self.scratch else [])
            self.layers.append("landlock")
        _drop_capabilities()
        if "rlimits" not in self.without:
            self._limit()
        if self.filter is not None and self.filter.supported:
            self.filter.install_zygote()
            self.layers.append("seccomp")
        self.groups = "seccomp" not in self.layers
        if "rlimits" not in self.without:
            self.layers.append("rlimits")
        return self.layers

    def _paths(self) -> tuple[list[str], list[str], list[str]]:
        """(readable files and folders, folders that may only be listed, folders to hide inside the readable ones)."""
        stdlib = {os.path.realpath(path) for path in self.config["stdlib"]}
        stdlib.add(os.path.dirname(os.path.realpath(os.__file__)))
        dynamic = {os.path.realpath(p) for p in _dynload()}
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

    def _split(self, readable: list[str]) -> list[str]:
        """The same without what is hidden: Landlock cannot take a folder out, so its other parts are named one each."""
        hidden = self._paths()[2] if not self.scratch else []
        parts: list[str] = []
        for path in readable:
            if any(folder.startswith(path + "/") for folder in hidden):
                children = [os.path.join(path, name) for name in os.listdir(path)]
                parts += [child for child in children if child not in hidden]
            else:
                parts.append(path)
        return parts

    def child_lock(self, keep: int) -> Callable[[int], None]:
        """What a child calls first, with its parent's id: it puts on what only a child can bear. Of its descriptors it
        keeps `keep`, and after this only what the seccomp filter allows is possible.

        Made by the zygote, with everything at hand: each attribute that a child looks up costs it pages.
        """
        close, below, above = os.closerange, keep, keep + 1
        group, orphan, parent_of, leave, own = self.groups, not self.scratch, os.getppid, os._exit, os.getpid
        limit, limits = resource.setrlimit, tuple(self._limits)
        bind = self.filter.child_installer() if self.filter is not None and "seccomp" in self.layers else None

        def lock(parent: int) -> None:
            if below > 3:
                close(3, below)
            close(above, 4096)
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
        _set_limit(resource.RLIMIT_AS, self.base + (limits["memory_mib"] << 20))
        _set_limit(resource.RLIMIT_FSIZE, max(limits["disk_mib"] << 20, limits["output_kib"] << 14))
        _set_limit(resource.RLIMIT_NOFILE, 64)
        _set_limit(resource.RLIMIT_CORE, 0)
        _set_limit(resource.RLIMIT_MEMLOCK, 0)
        _set_limit(resource.RLIMIT_MSGQUEUE, 0)
        self._limits = [(resource.RLIMIT_CPU, _within_hard(resource.RLIMIT_CPU, limits["cpu_seconds"]))]
        if self.scratch:  # counted in the user namespace, where the zygote and its child are alone
            _set_limit(resource.RLIMIT_NPROC, self.processes or 0)
        elif self.processes is not None:
            self._limits.append((resource.RLIMIT_NPROC, _within_hard(resource.RLIMIT_NPROC, self.processes)))

    def clean_scratch(self) -> bool:
        """Empty the scratch folder; False if something stays, and the zygote must be given up."""
        if not self.scratch:
            return True
        try:
            # Nobody can change its mode where the filter holds: no system call for that is on the list.
            if self.groups and stat.S_IMODE(os.stat(self.scratch).st_mode) != 0o700:
                return False
            if not os.listdir(self.scratch):
                return True
            _empty(self.scratch)
            return not os.listdir(self.scratch)
        except (OSError, RecursionError):
            return False


def _within_hard(name: int, value: int) -> tuple[int, int]:
    _, hard = resource.getrlimit(name)
    if hard != resource.RLIM_INFINITY:
        value = min(value, hard)
    return value, value


def _set_limit(name: int, value: int) -> None:
    resource.setrlimit(name, _within_hard(name, value))


def _empty(folder: str) -> None:
    os.chmod(folder, 0o700)  # a folder may refuse to be listed or walked into
    with os.scandir(folder) as entries:
        found = [(entry.path, entry.is_dir(follow_symlinks=False)) for entry in entries]
    for path, is_folder in found:
        try:
            if is_folder:
                _empty(path)
                os.rmdir(path)
            else:
                os.unlink(path)
        except OSError:
            pass


def _dynload() -> list[str]:
    import _struct  # an extension module of the standard library, to see where they lie

    path = getattr(_struct, "__file__", None)
    return [os.path.dirname(path)] if path else []


def _open_to_all(paths: list[str]) -> bool:
    """Whether any user may walk to all of these."""
    for path in paths:
        while path not in ("", "/"):
            if not os.stat(path).st_mode & 0o005:
                return False
            path = os.path.dirname(path)
    return True


def _own_processes() -> int:
    """How many threads this user runs: a limit on processes counts them all."""
    uid, count = os.geteuid(), 0
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                if os.stat("/proc/" + name).st_uid == uid:
                    count += len(os.listdir(f"/proc/{name}/task"))
            except OSError:
                pass
    return count


def _drop_capabilities() -> None:
    for number in range(64):
        if _libc.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0) != 0:
            break
    _libc.prctl(_PR_SET_SECUREBITS, 0x2F, 0, 0, 0)  # uid 0 brings nothing, and that stays
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
    empty = (ctypes.c_uint32 * 6)()
    if _libc.capset(header, empty) != 0:
        raise OSError(ctypes.get_errno(), "capset")
    _libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def _address_space() -> int:
    with open("/proc/self/statm", "rb") as statm:
        return int(statm.read().split()[0]) * resource.getpagesize()
