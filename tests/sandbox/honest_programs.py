"""Honest programs in the style of answers, from honest/*.txt, and their values outside of the sandbox.

A file holds a theme. A program begins with "=== title", after which "| files" says that it needs a folder to write to,
and "| refused: words" that the sandbox refuses it on purpose, and in which words. Its calls follow, after ">>> ", then
its source. Run as a script, it takes [[source, call, ...], ...] as JSON and gives, for each of them, the values of the
calls in a fresh process with a fresh folder: tagged JSON as in sweetrl/sandbox/values.py, or {"error": text}.
"""

from __future__ import annotations

import gc
import json
import os
import random
import shutil
import sys
import tempfile
import types
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
AT_ONCE = 8
HEAVY = (
    *("asyncio", "bs4", "concurrent.futures", "datetime", "decimal", "email.message", "multiprocessing.pool", "numpy"),
    *("shelve", "sqlite3", "statistics", "unittest.mock", "xml.etree.ElementTree", "zoneinfo"),
)


@dataclass(frozen=True)
class Program:
    name: str
    source: str
    calls: tuple[str, ...]
    files: bool = False
    refused: str = ""


def programs() -> list[Program]:
    """All programs, theme by theme."""
    parsed = []
    for path in sorted((HERE / "honest").glob("*.txt")):
        for block in path.read_text(encoding="utf-8").split("=== ")[1:]:
            lines = block.splitlines()
            title, _, note = (part.strip() for part in lines[0].partition("|"))
            calls = tuple(line[4:] for line in lines if line.startswith(">>> "))
            source = "\n".join(lines[1 + len(calls) :]) + "\n"
            refused = note.removeprefix("refused:").strip() if note.startswith("refused") else ""
            parsed.append(Program(f"{path.stem}: {title}", source, calls, note == "files", refused))
    return parsed


def outcome(source: str, calls: list[str], encode: Any) -> list[Any]:
    random.seed(0)
    values: list[Any] = []
    for call in calls:
        module = sys.modules["solution"] = types.ModuleType("solution")
        module.__file__ = "<solution>"
        if "inspect" in source:
            import linecache

            linecache.cache["<solution>"] = (len(source), None, source.splitlines(keepends=True), "<solution>")
        try:
            exec(compile(source, "<solution>", "exec"), module.__dict__)
            values.append(encode(eval(call, module.__dict__)))
        except BaseException as error:
            values.append({"error": f"{type(error).__name__}: {error}"})
    return values


def start(source: str, calls: list[str], encode: Any) -> tuple[int, int, str]:
    """`outcome` in a child, with an empty folder as its own and its home: its id, what it will write to, the folder."""
    folder = tempfile.mkdtemp(prefix="honest-")
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(read)
            os.environ["HOME"] = folder
            os.chdir(folder)
            null = os.open(os.devnull, os.O_RDWR)
            for number in (0, 1, 2):
                os.dup2(null, number)
            data = json.dumps(outcome(source, calls, encode)).encode()
            with os.fdopen(write, "wb") as pipe:
                pipe.write(data)
        finally:
            os._exit(0)
    os.close(write)
    return pid, read, folder


def finish(pid: int, read: int, folder: str) -> list[Any]:
    with os.fdopen(read, "rb") as pipe:
        data = pipe.read()
    os.waitpid(pid, 0)
    shutil.rmtree(folder)
    return json.loads(data) if data else [{"error": "the process ended"}]


def main() -> None:
    sys.path.insert(0, str(HERE.parents[1] / "src"))
    from sweetrl.sandbox.values import Encoder

    for name in HEAVY:
        __import__(name)
    gc.freeze()
    encode, todo, outcomes = Encoder(100_000).encode, json.load(sys.stdin), []
    while todo:
        started = [start(source, calls, encode) for source, *calls in todo[:AT_ONCE]]
        outcomes += [finish(*child) for child in started]
        del todo[:AT_ONCE]
    json.dump(outcomes, sys.stdout)


if __name__ == "__main__":
    main()
