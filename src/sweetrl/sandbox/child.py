"""What a fresh child of the zygote does with one job. Loaded by the zygote on its own: standard library only.

The child is the untrusted side: as soon as it has executed one line of the solution, whatever it writes is a claim. It
holds only a memory file with the source and the calls, into which it writes their results.
Whatever is needed after that first line is bound before it. A process this short-lived pays for every page that it
touches, so this file avoids wrappers that elsewhere would be too cheap to mention.
"""

from __future__ import annotations

import _json
import _queue
import errno
import marshal
import os
import random
import struct
import sys
import time
import types

TYPE_CHECKING = False  # what typing says of it, without importing that
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

SEED = 0  # the state in which the zygote leaves `random`, and numpy's
_DETAIL = 300
_NAME, _CALL = "<solution>", "<string>"
_REFUSED = (errno.EPERM, errno.EACCES, errno.EROFS)


def _no_default(value: Any) -> Any:
    raise TypeError


# What json.JSONEncoder(separators=(",", ":")).encode does, without its Python layers.
_CHUNKS = _json.make_encoder(None, _no_default, _json.encode_basestring_ascii, None, ":", ",", False, False, True)


def to_json(tree: Any, chunks: Any = _CHUNKS, join: Any = "".join) -> str:
    """`tree` (dicts, lists and plain values) as JSON in ASCII."""
    return join(chunks(tree, 0))


def runner(values: Any, official: Any) -> Callable[[int, int], None]:
    """The function that does a job: `values` and `official` are the modules of these names, loaded beside this one.

    It takes the memory file and the job's length in bytes at its start, makes the calls, and appends one frame for
    each. A frame is its length (4 bytes, big-endian) and tagged JSON. The first one holds the time at which the calls
    begin.
    """
    read, write, loads, begun, now = os.pread, os.write, marshal.loads, struct.Struct(">Id").pack, time.monotonic
    size, number, text_of, describe = len, int.to_bytes, to_json, _describe
    compiled, encoder, refused = official.compiled, values.Encoder(0), values.Refused
    outer = _official_globals(official)
    encode = encoder.encode

    def split(code: Any, text: str, call: str, ready: Any) -> Any:
        inner: dict[str, Any] = {"function_definition": text, "test_case": call}
        exec(code, outer, inner)
        # The evaluator's own local names come back before the call is evaluated, and its unbound `e` goes.
        inner.update(function_definition=text, test_case=call)
        inner.pop("e", None)
        return eval(ready or compiled(call.lstrip(" \t"), _CALL, "eval", "split"), outer, inner)

    def one(code: Any, text: str, call: str, ready: Any) -> Any:
        space = _module("solution")
        space["__file__"] = _NAME
        exec(code, space)
        return eval(ready or call, space)

    def run_job(file: int, length: int) -> None:
        sources, calls, namespace, seed, output, encoder.nodes = loads(read(file, length, 0))
        if seed != SEED:
            reseed(seed)
        write(file, begun(8, now()))
        code, unread = None, None
        for text in sources:  # the first reading that compiles, or the error of the first
            try:
                code = compiled(text, _NAME, "exec", namespace)
                if namespace == "one" and "inspect" in text:
                    _remember(text)
                break
            except BaseException as failure:  # a parser can fail in any way; the error is the solution's own
                unread = unread or describe(failure, "")
        execute = split if namespace == "split" else one
        for call, ready in loads(calls):  # text and code, which is None where the text does not compile
            try:
                frame = {"e": unread} if code is None else {"v": encode(execute(code, text, call, ready))}
            except refused as error:
                frame = {"r": str(error)}
            except BaseException as error:
                frame = {"e": describe(error, call)}
            payload = text_of(frame).encode()
            if size(payload) > output:
                frame = {"r": f"the value takes {size(payload)} bytes, more than {output}"}
                payload = text_of(frame).encode()
            data = number(size(payload), 4, "big") + payload
            while data:
                data = data[write(file, data) :]

    return run_job


def reseed(seed: int) -> None:
    """Seed `random`, and the generator behind numpy.random's functions where the zygote has imported numpy."""
    random.seed(seed)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(seed % 2**32)


def _module(name: str) -> dict[str, Any]:
    # Registered, because dataclasses and typing look a class's module up by its name.
    module = sys.modules[name] = types.ModuleType(name)
    return module.__dict__


def _remember(text: str) -> None:
    """Let inspect.getsource() read the source, as it does for a file."""
    import linecache

    linecache.cache[_NAME] = (len(text), None, [line + "\n" for line in text.split("\n")], _NAME)


class _Lazy(types.ModuleType):
    """A module that is imported when it is first used: few programs do, and every child would pay for it."""

    def __getattr__(self, name: str) -> Any:
        __import__(self.__name__)
        return getattr(sys.modules[self.__name__], name)


def _official_globals(official: Any) -> dict[str, Any]:
    """The globals in which the official evaluator happens to execute: those of its own module, kept between tests."""

    def timeout_handler(number: int, frame: Any) -> None:
        raise TimeoutError("Operation timed out")

    space = _module("sweet_rl.utils.code_utils")
    space.update(multiprocessing=_Lazy("multiprocessing"), signal=_Lazy("signal"), Empty=_queue.Empty)
    space["timeout_handler"] = timeout_handler
    space["__builtins__"] = __builtins__
    if sys.version_info >= (3, 12):
        space["sum"] = official.rounding_sum
    return space


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
        return [kind, (f"{name}: {lines[-1]}" if lines else name)[:_DETAIL] + _why(error)]
    except BaseException:
        return [kind, "an exception that cannot be written down"]


def _why(error: BaseException | None) -> str:
    """What the sandbox has to do with an error, in words, for people who wonder why an honest program failed."""
    for _ in range(4):
        if isinstance(error, ModuleNotFoundError):
            return " (the sandbox has the standard library and the allowed libraries)"
        if isinstance(error, OSError) and error.errno in _REFUSED:
            return " (the sandbox allows no other processes, sockets or links, and no files outside its folder)"
        if type(error).__name__ == "gaierror":
            return " (the sandbox has no network)"
        if "unable to open database file" in str(error) or "No usable temporary directory" in str(error):
            return " (without namespaces the sandbox has no folder to write to)"
        error = error and (error.__cause__ or error.__context__)
    return ""
