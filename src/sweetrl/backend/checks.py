"""Hidden unit tests as what may be shown to untrusted code: the calls, never what an equality compares them with.

A test is an expression whose value on the reference is what an answer must give too, usually `f(1, 2)`. Some are
written `f(1, 2) == 5`. Its right-hand side stays in this process: only `f(1, 2)` is evaluated by the sandbox.
"""

from __future__ import annotations

import ast
import builtins
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from sweetrl.sandbox.compare import Rules, equal
from sweetrl.sandbox.limits import CallResult
from sweetrl.sandbox.values import Encoder, Refused


@dataclass(frozen=True)
class Check:
    """One unit test. `operands` are the sides of its equality (one where it has none): a call, or a constant's tree."""

    name: str
    operands: tuple[tuple[str, Any], ...]  # ("call", expression) or ("constant", tree)

    @cached_property
    def calls(self) -> tuple[str, ...]:
        """The expressions that the sandbox must evaluate."""
        return tuple(expression for kind, expression in self.operands if kind == "call")

    def value(self, results: Sequence[CallResult], rules: Rules) -> CallResult:
        """What the whole test evaluates to, given the results of `calls`."""
        if len(self.operands) == 1:
            return results[0]
        lost = next((result for result in results if result.kind != "value"), None)
        if lost is not None:
            return lost
        pending = iter(results)
        trees = [tree if kind == "constant" else next(pending).tree for kind, tree in self.operands]
        return CallResult("value", all(equal(b, a, rules) for a, b in itertools.pairwise(trees)))


def parse_check(name: str, expression: str, official: bool) -> Check:
    """Split `expression`. `official` keeps an equality whole; else the first call, out of any print(), counts."""
    tree = parsed(expression)
    operands: tuple[tuple[str, Any], ...] = (("call", expression),)
    if isinstance(tree, ast.Compare) and all(isinstance(operator, ast.Eq) for operator in tree.ops):
        operands = tuple(_operand(side) for side in (tree.left, *tree.comparators))
    calls = [text for kind, text in operands if kind == "call"]
    if not calls or tree is None:
        operands = (("call", expression),)
    elif not official:
        operands = (("call", _unprinted(calls[0])),)
    return Check(name, operands)


def parsed(expression: str) -> ast.expr | None:
    """The expression's tree; None for what is none, or too much for the parser."""
    try:
        return ast.parse(expression.lstrip(" \t"), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _operand(side: ast.expr) -> tuple[str, Any]:
    try:
        return "constant", Encoder(100_000).encode(ast.literal_eval(side))
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError, Refused):
        return "call", ast.unparse(side)


def _unprinted(expression: str) -> str:
    """`print(f(1))` has no value of its own: test f(1)."""
    match parsed(expression):
        case ast.Call(func=ast.Name(id="print"), args=[printed]):
            return ast.unparse(printed)
    return expression


def function_name(expressions: Sequence[str]) -> str:
    """The name of the function under test: the first that is called and no builtin."""
    for expression in expressions:
        tree = parsed(expression)
        for node in () if tree is None else ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not hasattr(builtins, node.func.id):
                return node.func.id
    return ""
