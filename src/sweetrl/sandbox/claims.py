"""What the client works out about a child: frames, wait statuses, layers, time spent waiting for a core, libraries."""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import sys
from pathlib import Path
from typing import Any

from sweetrl.sandbox.compare import MAPS, printable
from sweetrl.sandbox.limits import CallResult
from sweetrl.sandbox.values import DEPTH

# What json.loads does, without its layers for input that a frame never has.
_scan: Any = json.JSONDecoder().scan_once  # type: ignore[attr-defined]

# The forms of values.py, by tag: values in any number; pairs of values; so many values; just these types.
_VALUES = frozenset({"l", "t", "s", "dq", "arr"})
_SO_MANY = {"c": 2, "r": 3, "re": 2}
_TEXT = ("i", "nan", "b", "dec", "const", "o", "type", "fn", "mod")
_WORDS: dict[str, tuple[tuple[type, ...], ...]] = {
    **dict.fromkeys(_TEXT, ((str,),)),
    "inf": ((int,),),
    "fr": ((str,), (str,)),
    **dict.fromkeys(("dt", "dtz"), ((int,),) * 7),
    **dict.fromkeys(("date", "td"), ((int,),) * 3),
    "time": (*((int,),) * 4, (type(None), int, float)),
}
_PLAIN = frozenset({type(None), bool, int, float, str})
_DIMENSIONS = 64  # numpy's own limit
_DETAIL = 400
_DISTRIBUTIONS = {"bs4": "beautifulsoup4"}  # where a library is installed under another name than its module's


def parse_frame(payload: bytes, nodes: int) -> CallResult:
    """Read one frame that a child wrote; what is not of the form of values.py, or too large, is "refused".

    This is where a child's bytes become our data: a tree of at most `nodes` values, each of a known form and no deeper
    than values.py writes them, and text that can be stored and shown.
    """
    try:
        text = payload.decode("ascii")
        frame, end = _scan(text, 0)
        if end != len(text):
            raise ValueError
        ((key, value),) = frame.items()
        if key == "v" and well_formed(value, nodes):
            return CallResult("value", value)
        if key == "r" and type(value) is str:
            return CallResult("refused", None, printable(value[:_DETAIL]))
        kind, detail = value
        if key == "e" and kind in ("exception", "memory", "not_defined") and type(detail) is str:
            return CallResult(kind, None, printable(detail[:_DETAIL]))
    except (ValueError, TypeError, AttributeError, StopIteration, RecursionError, MemoryError):
        pass
    return CallResult("refused", None, "a frame that is not of the agreed form")


def well_formed(tree: Any, nodes: int) -> bool:
    """Whether `tree`, as read from JSON, is what values.py writes: known forms, at most `nodes` values, no deeper."""
    left = nodes
    waiting: list[tuple[Any, int]] = [(tree, 0)]
    while waiting:
        node, depth = waiting.pop()
        if type(node) in _PLAIN:
            parts: list[Any] = [node]
        else:
            inner = _parts(node) if depth <= DEPTH + 1 else None
            if inner is None:
                return False
            parts = inner
            left -= 1
        kinds = set(map(type, parts))
        if kinds <= _PLAIN:
            left -= len(parts)
            if float in kinds and not all(math.isfinite(part) for part in parts if type(part) is float):
                return False
        else:
            waiting += [(part, depth + 1) for part in parts]
        if left < len(waiting):
            return False
    return True


def _parts(node: Any) -> list[Any] | None:
    """The values that a tagged array holds, none for those that hold words; None where it is of no known form."""
    if type(node) is not list or not node or type(node[0]) is not str:
        return None
    tag, parts = node[0], node[1:]
    if tag in _VALUES or (tag in MAPS and len(parts) % 2 == 0) or _SO_MANY.get(tag) == len(parts):
        return parts
    if tag == "nd" and parts:
        shape, numbers = parts[0], parts[1:]
        if type(shape) is not list or len(shape) > _DIMENSIONS or any(type(n) is not int or n < 0 for n in shape):
            return None
        if any(n > len(numbers) for n in shape) and 0 not in shape:
            return None
        return numbers if 0 in shape or math.prod(shape) == len(numbers) else None
    form = _WORDS.get(tag)
    if form is None or len(form) != len(parts):
        return None
    return [] if all(type(part) in kinds for part, kinds in zip(parts, form, strict=True)) else None


def describe_status(status: int) -> str:
    """A wait status in words."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        try:
            return f"killed by {signal.Signals(number).name}"
        except ValueError:
            return f"killed by signal {number}"
    return f"the process ended by itself with status {os.WEXITSTATUS(status)}"


def describe_isolation(layers: tuple[str, ...]) -> str:
    """Layer names joined by "+"; prefixed with UNSAFE unless seccomp and a view of the files of its own hold."""
    name = "+".join(layers)
    return name if is_safe(layers) else f"UNSAFE:{name}"


def is_safe(layers: tuple[str, ...]) -> bool:
    """Whether these layers are a boundary: a system-call allowlist, and files shut off by an own root or Landlock."""
    return "seccomp" in layers and ("namespaces" in layers or "landlock" in layers)


def library_paths(names: tuple[str, ...]) -> list[str]:
    """Files and folders of the modules `names`; missing ones left out.

    With them come the shared objects that belong to them, and what importlib.metadata reads.
    """
    paths: list[str] = []
    for folder in map(Path, sys.path):
        if folder.name not in ("site-packages", "dist-packages"):
            continue
        for name in names:
            metadata = sorted(folder.glob(f"{_DISTRIBUTIONS.get(name, name).replace('-', '_')}-*.dist-info"))
            for path in (folder / name, folder / f"{name}.py", folder / f"{name}.libs", *metadata):
                if path.exists() and str(path) not in paths:
                    paths.append(str(path))
    return paths


def schedule_of(launcher: int, inside: int) -> tuple[bool, float] | None:
    """Return whether the child with process id `inside` (in its own namespace), below the process `launcher`, is ready
    to run (or running), and the seconds that it waited for a core so far; None where the kernel does not tell.
    """
    with contextlib.suppress(OSError, ValueError, IndexError, StopIteration):
        for child in _below(launcher, 2):
            # A child chooses its name, which stands here, too: only a real end of line ends a line.
            lines = Path(f"/proc/{child}/status").read_bytes().decode("ascii", "replace").split("\n")
            numbers = next(line for line in lines if line.startswith("NSpid:"))
            if int(numbers.split()[-1]) == inside and child != launcher:
                state = next(line for line in lines if line.startswith("State:")).split()[1]
                waited = int(Path(f"/proc/{child}/schedstat").read_text(encoding="ascii").split()[1]) / 1e9
                return state == "R", waited
    return None


def _below(pid: int, depth: int) -> list[int]:
    children = [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()]
    return children + [lower for child in children if depth > 1 for lower in _below(child, depth - 1)]
