"""The part of a hidden unit test that untrusted code may see: the calls, never what their values are compared with.

A test is an expression whose value on the reference is what an answer must give too, usually `f(1, 2)`. Some are
written `f(1, 2) == 5`. The right-hand side stays in this process: only `f(1, 2)` is evaluated by the sandbox. Where a
test decides something else, as in `f(2) > 3 and f(3) in (4, 5)`, an answer gives `f(2)` and `f(3)` as plain values, and
what the test makes of these values is evaluated with the reference, in a process that has nothing of the answer.
"""

from __future__ import annotations

import ast
import builtins
import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from sweetrl.sandbox.compare import Rules, equal
from sweetrl.sandbox.limits import CallResult
from sweetrl.sandbox.values import Encoder, Refused

NOT_PLAIN = "the value is no plain one, and the test asks what it is like"
# Functions that tell few values apart.
_PREDICATES = frozenset({"all", "any", "bool", "callable", "hasattr", "isinstance", "issubclass"})


@dataclass(frozen=True)
class Check:
    """One unit test.

    `operands` are expressions that the sandbox evaluates, ("call", expression), or constants, ("constant", tree).
    Where `equality` is set they are its sides, and the test's value is whether it holds; else it is what they give.
    `condition`, if any, is what the test makes of the operands' values, which are `_0`, `_1`, ... in it; `expression`
    is the test with the operands in it. `decides` says that the test tells few values apart.
    """

    name: str
    operands: tuple[tuple[str, Any], ...]
    equality: bool = False
    condition: str = ""
    expression: str = ""
    decides: bool = False

    @cached_property
    def calls(self) -> tuple[str, ...]:
        """The expressions that the sandbox must evaluate."""
        calls = tuple(expression for kind, expression in self.operands if kind == "call")
        return (*calls, self.expression) if self.condition else calls

    def value(self, results: Sequence[CallResult], rules: Rules) -> CallResult:
        """The test's value, given the results of `calls`."""
        if self.condition or len(self.operands) == 1:
            return results[-1]
        failure = next((result for result in results if result.kind != "value"), None)
        if failure is not None:
            return failure
        if not self.equality:
            return CallResult("value", ["t", *(result.tree for result in results)])
        pending = iter(results)
        trees = [tree if kind == "constant" else next(pending).tree for kind, tree in self.operands]
        return CallResult("value", all(equal(b, a, rules) for a, b in itertools.pairwise(trees)))

    def question(self, results: Sequence[CallResult]) -> CallResult | str:
        """The condition with the values of `calls` in it, for the reference; or the result that is no plain value."""
        values = []
        for result in results[:-1]:
            text = literal(result.tree) if result.kind == "value" else None
            if text is None:
                return CallResult("refused", None, NOT_PLAIN) if result.kind == "value" else result
            values.append(text)
        names = ", ".join(f"_{number}" for number in range(len(values)))
        return f"(lambda {names}: {self.condition})({', '.join(values)})"


def parse_check(name: str, expression: str, official: bool, function: str) -> Check:
    """Split `expression`, a test of `function`.

    `official` keeps both sides of an equality, as the official evaluator does. Else only the sides that call the
    function count, without a print() around them. ValueError for a test whose calls cannot be taken out of it.
    """
    tree = parsed(expression)
    if tree is None:
        return Check(name, (("call", expression),))
    sides = [tree]
    if isinstance(tree, ast.Compare) and all(isinstance(operator, ast.Eq) for operator in tree.ops):
        sides = [tree.left, *tree.comparators]
    if official:
        operands = tuple(map(_operand, sides)) if len(sides) > 1 else (("call", expression),)
        constant = all(kind == "constant" for kind, _ in operands)
        return Check(name, (("call", expression),)) if constant else Check(name, operands, equality=len(sides) > 1)
    calling = [side for side in sides if function in _names(side)] or [side for side in sides if _names(side)][:1]
    if not calling:
        raise ValueError("it uses nothing of the program")
    tested = [_unprinted(side) for side in calling]
    texts = [ast.unparse(side) for side in tested]
    taken = [_Taken(side, function) for side in tested]
    if any(part.dependent and part.decides for part in taken):
        raise ValueError("its calls depend on variables of the test")
    if len(tested) > 1 or taken[0].dependent or not taken[0].condition:
        if any(part.decides for part in taken):
            raise ValueError("it compares conditions with each other")
        return Check(name, tuple(("call", text) for text in texts))
    operands = tuple(("call", text) for text in taken[0].texts)
    return Check(name, operands, False, taken[0].condition, texts[0], taken[0].decides)


def _names(tree: ast.AST) -> set[str]:
    """The names in `tree` that the program defines: neither builtins nor variables of the test itself."""
    names = set(map(_name, ast.walk(tree))) - _variables(tree) - {""}
    return {name for name in names if not hasattr(builtins, name)}


def _name(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else ""


def _variables(tree: ast.AST) -> set[str]:
    nodes = list(ast.walk(tree))
    stored = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    return stored | {node.arg for node in nodes if isinstance(node, ast.arg)}


class _Taken(ast.NodeTransformer):
    """Takes the calls of the function, `texts`, out of one side of a test, and changes that side.

    `condition` is the side with names in their places, or "" where nothing else is left of it. `decides`: it tells few
    values apart. `dependent`: a call depends on a variable of the test, and cannot be taken out.
    """

    def __init__(self, side: ast.expr, function: str) -> None:
        self.names = {function} & _names(side) or _names(side)
        self.variables = _variables(side)
        self.texts: list[str] = []
        self.dependent = False
        rest = self.visit(side)
        self.condition = "" if isinstance(rest, ast.Name) or not self.names else ast.unparse(rest)
        self.decides = any(map(_decides, ast.walk(rest)))

    def visit(self, node: ast.AST) -> Any:
        """Put a name in the place of the largest expressions that begin with a call of the function."""
        root = node
        while isinstance(root, (ast.Call, ast.Attribute, ast.Subscript)):
            root = root.func if isinstance(root, ast.Call) else root.value
        if isinstance(root, ast.Name) and root.id in self.names:
            if not self.variables & (set(map(_name, ast.walk(node))) - _variables(node)):
                self.texts.append(ast.unparse(node))
                return ast.Name(f"_{len(self.texts) - 1}", ast.Load())
            self.dependent = True
            return node
        self.dependent |= isinstance(node, ast.NamedExpr)
        return super().generic_visit(node)


def _decides(node: ast.AST) -> bool:
    """Whether few values are told apart by this part of a test."""
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id in _PREDICATES
    if isinstance(node, ast.UnaryOp):
        return isinstance(node.op, ast.Not)
    return isinstance(node, (ast.Compare, ast.BoolOp, ast.IfExp)) or bool(
        isinstance(node, ast.comprehension) and node.ifs
    )


def literal(tree: Any) -> str | None:
    """A tree of sweetrl.sandbox.values as Python text; None for a value that is not plain."""
    if type(tree) is not list:
        return repr(tree)
    tag, parts = tree[0], tree[1:]
    if tag == "i":
        return str(parts[0]) if str(parts[0]).lstrip("-").startswith("0x") else None
    if tag in ("inf", "nan"):
        return "float('nan')" if tag == "nan" else f"float('{'-' if parts[0] < 0 else ''}inf')"
    if tag == "b":
        return f"bytes.fromhex({parts[0]!r})"
    inner = [literal(part) for part in parts]
    texts = [text for text in inner if text is not None]
    if len(texts) < len(inner):
        return None
    if tag == "d":
        return "{" + ", ".join(f"{key}: {value}" for key, value in zip(texts[::2], texts[1::2], strict=True)) + "}"
    form = {"l": "[{}]", "t": "tuple([{}])", "s": "set([{}])", "c": "complex({})"}.get(tag)
    return None if form is None else form.format(", ".join(texts))


def parsed(expression: str) -> ast.expr | None:
    """The expression's tree; None if it is no expression, or too much for the parser."""
    try:
        return ast.parse(expression.lstrip(" \t"), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _operand(side: ast.expr) -> tuple[str, Any]:
    try:
        return "constant", Encoder(100_000).encode(ast.literal_eval(side))
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError, Refused):
        return "call", ast.unparse(side)


def _unprinted(side: ast.expr) -> ast.expr:
    """`print(f(1))` has no value of its own: test f(1)."""
    match side:
        case ast.Call(func=ast.Name(id="print"), args=[printed]):
            return printed
    return side


def function_name(expressions: Sequence[str]) -> str:
    """The name of the function under test: the function that most of the tests call, builtins apart."""
    counts: Counter[str] = Counter()
    for expression in expressions:
        nodes = ast.walk(parsed(expression) or ast.Constant(None))
        called = [_name(node.func) for node in nodes if isinstance(node, ast.Call)]
        counts.update(list(dict.fromkeys(name for name in called if name and not hasattr(builtins, name))))
    return max(counts, key=counts.__getitem__, default="")
