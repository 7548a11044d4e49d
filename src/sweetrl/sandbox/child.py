"""What a fresh child of the zygote does with one job. Loaded by the zygote on its own: standard library only.

The child is the untrusted side: as soon as it has executed one line of the solution, whatever it writes is a claim. It
holds the source, the calls and the writing end of one pipe, and nothing else.
"""

from __future__ import annotations

import _queue
import importlib
import json
import os
import random
import signal
import struct
import sys
import types
from typing import Any

_LENGTH = struct.Struct(">I")
_DETAIL = 300
BEGUN = _LENGTH.pack(0)  # an empty frame before all others: from here on the clock runs


def run_job(job_fd: int, out_fd: int, values: Any) -> None:
    """Read the job from `job_fd` (a memory file), make its calls, write one frame for each to `out_fd`."""
    with os.fdopen(job_fd, "rb") as source:
        source.seek(0)
        job = json.loads(source.read())
    os.write(out_fd, BEGUN)
    random.seed(job["seed"])
    write = _writer(out_fd, json.JSONEncoder(separators=(",", ":")).encode, job["output"])
    encoder = values.Encoder(job["nodes"])
    code, text, error = _compile(job["sources"])
    for call in job["calls"]:
        if code is None:
            write({"e": error})
        elif job["namespace"] == "split":
            _call_split(code, text, call, encoder, values.Refused, write)
        else:
            _call_one(code, call, encoder, values.Refused, write)


def _writer(out_fd: int, dumps: Any, limit: int) -> Any:
    pack, os_write, encode, size = _LENGTH.pack, os.write, str.encode, len

    def write(frame: dict[str, Any]) -> None:
        payload = encode(dumps(frame))
        if size(payload) > limit:
            payload = encode(dumps({"r": f"the value takes {size(payload)} bytes, more than {limit}"}))
        data = pack(size(payload)) + payload
        while data:
            data = data[os_write(out_fd, data) :]

    return write


def _compile(sources: list[str]) -> tuple[Any, str, Any]:
    """The first reading that compiles, or the error of the first."""
    error = None
    for text in sources:
        try:
            return compile(text, "<solution>", "exec", dont_inherit=True), text, None
        except BaseException as failure:  # a parser can fail in any way; the error is the solution's own
            error = error or _describe(failure, "")
    return None, "", error


def _module(name: str) -> dict[str, Any]:
    # Registered, because dataclasses and typing look a class's module up by its name.
    module = sys.modules[name] = types.ModuleType(name)
    return module.__dict__


class _Lazy(types.ModuleType):
    """A module that is imported when it is first used: hardly anybody does, and every child would pay for it."""

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self.__name__), name)


_OFFICIAL: dict[str, Any] = {}


def _official_globals() -> dict[str, Any]:
    """The globals in which the official evaluator happens to execute: those of its own module, kept between tests."""
    if not _OFFICIAL:

        def timeout_handler(number: int, frame: Any) -> None:
            raise TimeoutError("Operation timed out")

        space = _module("sweet_rl.utils.code_utils")
        space.update(multiprocessing=_Lazy("multiprocessing"), signal=signal, Empty=_queue.Empty)
        space["timeout_handler"] = timeout_handler
        space["__builtins__"] = __builtins__
        _OFFICIAL["space"] = space
    return _OFFICIAL["space"]


def _call_split(code: Any, text: str, call: str, encoder: Any, refused: Any, write: Any) -> None:
    outer = _official_globals()
    inner: dict[str, Any] = {"function_definition": text, "test_case": call}
    try:
        exec(code, outer, inner)
        # The evaluator's own local names come back before the call is evaluated, and its unbound `e` goes.
        inner.update(function_definition=text, test_case=call)
        inner.pop("e", None)
        frame = {"v": encoder.encode(eval(call, outer, inner))}
    except refused as error:
        frame = {"r": str(error)}
    except BaseException as error:
        frame = {"e": _describe(error, call)}
    write(frame)


def _call_one(code: Any, call: str, encoder: Any, refused: Any, write: Any) -> None:
    try:
        space = _module("solution")
        exec(code, space)
        frame = {"v": encoder.encode(eval(call, space))}
    except refused as error:
        frame = {"r": str(error)}
    except BaseException as error:
        frame = {"e": _describe(error, call)}
    write(frame)


def _describe(error: BaseException, call: str) -> list[str]:
    """[kind, "Type: last line"] of an exception, without trusting its methods to return or to raise nothing."""
    kind = "exception"
    try:
        name = str(type(error).__name__)
        if isinstance(error, MemoryError):
            return ["memory", name]
        if isinstance(error, NameError) and call.lstrip().startswith(f"{error.name}("):
            kind = "not_defined"
        lines = str(error).strip().splitlines()
        return [kind, f"{name}: {lines[-1]}"[:_DETAIL] if lines else name]
    except BaseException:
        return [kind, "an exception that cannot be written down"]
