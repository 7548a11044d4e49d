"""What a fresh child of the zygote does with one job. Loaded by the zygote on its own: standard library only.

The child is the untrusted side: as soon as it has executed one line of the solution, whatever it writes is a claim. It
holds one memory file with the source and the calls, in which it writes down what they come to, and nothing else.
Whatever is needed after that first line is bound before it. A process this short-lived pays for every page that it
touches, so this file avoids wrappers that elsewhere would be too cheap to mention.
"""

from __future__ import annotations

import _json
import _queue
import marshal
import os
import random
import struct
import sys
import time
import types

TYPE_CHECKING = False  # what typing says of it, without importing that
if TYPE_CHECKING:
    from typing import Any

SEED = 0  # the state in which the zygote leaves `random`
_DETAIL = 300


def _no_default(value: Any) -> Any:
    raise TypeError


# What json.JSONEncoder(separators=(",", ":")).encode does, without its Python layers.
_CHUNKS = _json.make_encoder(None, _no_default, _json.encode_basestring_ascii, None, ":", ",", False, False, True)


def to_json(tree: Any, chunks: Any = _CHUNKS, join: Any = "".join) -> str:
    """`tree` (dicts, lists and plain values) as JSON in ASCII."""
    return join(chunks(tree, 0))


def run_job(file: int, length: int, values: Any) -> None:
    """Read the job (`length` bytes at the start of the memory file), make its calls, append one frame for each.

    A frame is its length (4 bytes, big-endian) and tagged JSON. The first one holds the time at which the calls begin.
    """
    sources, calls, namespace, seed, output, nodes = marshal.loads(os.pread(file, length, 0))
    if seed != SEED:
        random.seed(seed)
    write = _writer(file, output)
    encode, refused = values.Encoder(nodes).encode, values.Refused
    os.write(file, struct.pack(">Id", 8, time.monotonic()))
    code, text, error = _compile(sources)
    for call in calls:
        if code is None:
            write({"e": error})
        elif namespace == "split":
            _call_split(code, text, call, encode, refused, write)
        else:
            _call_one(code, call, encode, refused, write)


def _writer(file: int, limit: int) -> Any:
    os_write, encode, size, number, dumps = os.write, str.encode, len, int.to_bytes, to_json

    def write(frame: dict[str, Any]) -> None:
        payload = encode(dumps(frame))
        if size(payload) > limit:
            payload = encode(dumps({"r": f"the value takes {size(payload)} bytes, more than {limit}"}))
        data = number(size(payload), 4, "big") + payload
        while data:
            data = data[os_write(file, data) :]

    return write


def _compile(sources: tuple[str, ...]) -> tuple[Any, str, Any]:
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
        __import__(self.__name__)
        return getattr(sys.modules[self.__name__], name)


_OFFICIAL: dict[str, Any] = {}


def _official_globals() -> dict[str, Any]:
    """The globals in which the official evaluator happens to execute: those of its own module, kept between tests."""
    if not _OFFICIAL:

        def timeout_handler(number: int, frame: Any) -> None:
            raise TimeoutError("Operation timed out")

        space = _module("sweet_rl.utils.code_utils")
        space.update(multiprocessing=_Lazy("multiprocessing"), signal=_Lazy("signal"), Empty=_queue.Empty)
        space["timeout_handler"] = timeout_handler
        space["__builtins__"] = __builtins__
        _OFFICIAL["space"] = space
    return _OFFICIAL["space"]


def _call_split(code: Any, text: str, call: str, encode: Any, refused: Any, write: Any) -> None:
    outer = _official_globals()
    inner: dict[str, Any] = {"function_definition": text, "test_case": call}
    try:
        exec(code, outer, inner)
        # The evaluator's own local names come back before the call is evaluated, and its unbound `e` goes.
        inner.update(function_definition=text, test_case=call)
        inner.pop("e", None)
        frame = {"v": encode(eval(call, outer, inner))}
    except refused as error:
        frame = {"r": str(error)}
    except BaseException as error:
        frame = {"e": _describe(error, call)}
    write(frame)


def _call_one(code: Any, call: str, encode: Any, refused: Any, write: Any) -> None:
    try:
        space = _module("solution")
        exec(code, space)
        frame = {"v": encode(eval(call, space))}
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
