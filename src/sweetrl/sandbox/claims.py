"""What the client works out about a child: frames, wait statuses, time spent waiting for a core, library paths."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sweetrl.sandbox.limits import CallResult

# What json.loads does, without its layers for what a frame never is.
_scan: Any = json.JSONDecoder().scan_once  # type: ignore[attr-defined]


def parse_frame(payload: bytes) -> CallResult:
    """Read one frame that a child wrote; anything that is not of the form is "refused"."""
    try:
        text = payload.decode("ascii")
        frame, end = _scan(text, 0)
        if end != len(text):
            raise ValueError
        ((key, value),) = frame.items()
        if key == "v":
            return CallResult("value", value)
        if key == "r" and type(value) is str:
            return CallResult("refused", None, value[:300])
        kind, detail = value
        if key == "e" and kind in ("exception", "memory", "not_defined") and type(detail) is str:
            return CallResult(kind, None, detail[:300])
    except (ValueError, TypeError, AttributeError, StopIteration, RecursionError, MemoryError):
        pass
    return CallResult("refused", None, "a frame that is not of the agreed form")


def describe_status(status: int) -> str:
    """A wait status in words."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        try:
            return f"killed by {signal.Signals(number).name}"
        except ValueError:
            return f"killed by signal {number}"
    return f"the process ended by itself with status {os.WEXITSTATUS(status)}"


def library_paths(names: tuple[str, ...]) -> list[str]:
    """Files and folders of the modules `names` (with the shared objects that belong to them); missing ones left out."""
    found: list[str] = []
    for folder in map(Path, sys.path):
        if folder.name not in ("site-packages", "dist-packages"):
            continue
        for name in names:
            for entry in (name, f"{name}.py", f"{name}.libs"):
                path = folder / entry
                if path.exists() and str(path) not in found:
                    found.append(str(path))
    return found


@dataclass(frozen=True)
class Schedule:
    """Where the kernel has a process: `ready` to run (or running), and the seconds it `waited` for a core so far."""

    ready: bool
    waited: float


def schedule_of(launcher: int, inside: int) -> Schedule | None:
    """The schedule of the child with process id `inside` (in its own namespace), below the process `launcher`.

    None where the kernel does not tell.
    """
    with contextlib.suppress(OSError, ValueError, IndexError, StopIteration):
        for child in _below(launcher, 2):
            lines = Path(f"/proc/{child}/status").read_text(encoding="ascii", errors="replace").splitlines()
            numbers = next(line for line in lines if line.startswith("NSpid:"))
            if int(numbers.split()[-1]) == inside and child != launcher:
                state = next(line for line in lines if line.startswith("State:")).split()[1]
                waited = int(Path(f"/proc/{child}/schedstat").read_text(encoding="ascii").split()[1]) / 1e9
                return Schedule(state == "R", waited)
    return None


def _below(pid: int, depth: int) -> list[int]:
    children = [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()]
    return children + [lower for child in children if depth > 1 for lower in _below(child, depth - 1)]
