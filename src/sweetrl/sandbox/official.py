"""Programs as the official evaluator's Python reads them, whatever version runs here. Loaded by the zygote on its own:
standard library only.

That Python is 3.10, and 3.11 differs in no verdict. Since 3.12 a comprehension at the top level sees the names beside
it, an f-string may hold its own quotes, there is more syntax, and `sum` of floats rounds once; since 3.14 annotations
are not evaluated.
"""

from __future__ import annotations

import _ast
import sys
from _functools import reduce  # type: ignore[import-not-found]
from _operator import add

TYPE_CHECKING = False  # what typing says of it, without importing that
if TYPE_CHECKING:
    from types import CodeType
    from typing import Any

_SAME, _LAZY = sys.version_info < (3, 12), sys.version_info >= (3, 14)
_FUNCTIONS = (_ast.FunctionDef, _ast.AsyncFunctionDef)
# The fields of a node that are a scope of their own: with a function's names, or a class's.
_OWN = {
    **dict.fromkeys((*_FUNCTIONS, _ast.ClassDef, _ast.Lambda), ("body",)),
    _ast.GeneratorExp: ("elt",),
    _ast.comprehension: ("target", "ifs"),
}
_TOP, _FUNCTION, _CLASS = range(3)  # where a node stands; a class counts where a function is around it


def compiled(text: str, name: str, mode: str, namespace: str) -> CodeType:
    """Compile `text`, for "split" as the official evaluator's Python does. Raises what compile() raises, for "split"
    also for newer syntax."""
    if _SAME or namespace != "split":
        return compile(text, name, mode, dont_inherit=True)
    tree: Any = compile(text, name, mode, _ast.PyCF_ONLY_AST, dont_inherit=True, _feature_version=11)
    lazy, place = _LAZY and mode == "exec" and not _future(tree.body), _places(text)
    stack: list[tuple[Any, int]] = [(tree, _TOP)]
    while stack:  # no recursion: expressions may be deep
        node, scope = stack.pop()
        for field in node._fields:
            value, inner = getattr(node, field, None), scope
            if field in _OWN.get(type(node), ()):
                inner = _FUNCTION if type(node) is not _ast.ClassDef else scope and _CLASS
            if type(value) is list:
                if lazy and value and isinstance(value[0], _ast.stmt):
                    value[:] = [part for child in value for part in _eager(child, inner)]
                for index, child in enumerate(value):
                    if isinstance(child, _ast.AST):
                        value[index] = _apart(child) if inner == _TOP else child
                        stack.append((value[index], _FUNCTION if field == "generators" and index else inner))
            elif isinstance(value, _ast.AST):
                if type(value) is _ast.JoinedStr and field != "format_spec":
                    _check_quotes(value, *place)
                value = _apart(value) if inner == _TOP else value
                setattr(node, field, value)
                stack.append((value, inner))
    return compile(tree, name, mode, dont_inherit=True)


def _future(body: list[Any]) -> bool:
    imports = [node for node in body if type(node) is _ast.ImportFrom and node.module == "__future__"]
    return any(alias.name == "annotations" for node in imports for alias in node.names)


def _apart(node: Any) -> Any:
    """A comprehension as a generator, which nothing inlines, in a display of the same kind."""
    kind = type(node)
    if kind not in (_ast.ListComp, _ast.SetComp, _ast.DictComp):
        return node
    at = {name: getattr(node, name) for name in node._attributes}
    if kind is _ast.DictComp:
        pair = _ast.Tuple([node.key, node.value], _ast.Load(), **at)
        maker = _ast.Attribute(_ast.Dict([], [], **at), "__class__", _ast.Load(), **at)  # `dict` may be another's name
        return _ast.Call(maker, [_ast.GeneratorExp(pair, node.generators, **at)], [], **at)
    parts: list[Any] = [_ast.Starred(_ast.GeneratorExp(node.elt, node.generators, **at), _ast.Load(), **at)]
    return _ast.List(parts, _ast.Load(), **at) if kind is _ast.ListComp else _ast.Set(parts, **at)


def _eager(node: Any, scope: int) -> list[Any]:
    """A statement, and its annotations as a second one where Python evaluated them until 3.13."""
    if type(node) in _FUNCTIONS:
        args, returns = node.args, [node.returns] * bool(node.returns)
        parameters = [*args.posonlyargs, *args.args, args.vararg, *args.kwonlyargs, args.kwarg]
        annotations = [arg.annotation for arg in parameters if arg and arg.annotation] + returns
    else:
        annotations = [node.annotation] if type(node) is _ast.AnnAssign and scope != _FUNCTION else []
    if not annotations:
        return [node]
    at = {name: getattr(node, name) for name in node._attributes}
    evaluated = _ast.Expr(_ast.Tuple(annotations, _ast.Load(), **at), **at)
    return [node, evaluated] if type(node) is _ast.AnnAssign else [evaluated, node]


def _places(text: str) -> tuple[bytes, list[int]]:
    """The text as the parser's columns count it, and where its lines begin."""
    data = text.replace("\r\n", "\n").replace("\r", "\n").encode()
    starts = [0]
    for line in data.split(b"\n"):
        starts.append(starts[-1] + len(line) + 1)
    return data, starts


def _check_quotes(node: Any, data: bytes, starts: list[int]) -> None:
    """SyntaxError for an f-string with a field that 3.11 cannot read: the string ends in it, or it has a backslash."""
    parts: list[Any] = [part for part in node.values if type(part) is _ast.FormattedValue]
    fields = {
        starts[part.lineno - 1] + part.col_offset: (
            starts[part.value.end_lineno - 1] + part.value.end_col_offset,
            starts[part.end_lineno - 1] + part.end_col_offset,
        )
        for part in parts
    }
    at, end, quote = starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset, b""
    while at < end:
        if quote and at in fields:
            expression, close = fields[at]
            inside = data[at:close]
            if quote in inside or b"\\" in data[at:expression] or (len(quote) == 1 and b"\n" in inside):
                raise SyntaxError("f-string: a field that Python 3.11 does not read")
            at = close
        elif quote:
            step = 2 if data[at] == 92 else len(quote) if data.startswith(quote, at) else 0  # a backslash, the end
            quote = b"" if step and data[at] != 92 else quote
            at += step or 1
        elif data[at] in b"\"'":  # the next of strings side by side
            quote = data[at : at + (3 if data[at : at + 3] in (b'"""', b"'''") else 1)]
            at += len(quote)
        else:
            at = (data.find(b"\n", at) if data[at] == 35 else at) + 1  # a comment


def rounding_sum(iterable: Any, /, start: Any = 0) -> Any:
    """What `sum` was until 3.11: one addition after the other."""
    if isinstance(start, (str, bytes, bytearray)):
        raise TypeError("sum() can't sum strings")
    return reduce(add, iterable, start)
