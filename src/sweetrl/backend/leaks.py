"""What the user of a program must not say: code, or the hidden reference word for word.

A user may tell facts: numbers, names and fixed texts of the reference. A leak is
code   a fence, a statement of Python on a line of its own, or an expression with operators or calls in backticks;
quote  a stretch of the reference as it is written, of so many marks and operators that nobody says it by chance.
"""

from __future__ import annotations

import ast
import re

from sweetrl.colbench.leaks import find_quote
from sweetrl.types import Leak, Task

_STATEMENTS = (
    *(ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom, ast.Return, ast.Raise),
    *(ast.Assign, ast.AugAssign, ast.AnnAssign, ast.For, ast.While, ast.If, ast.With, ast.Try, ast.Assert, ast.Delete),
)
_HEADER = re.compile(r"^(?:(?:async\s+)?def\s+\w+\s*\(|class\s+\w+\s*[(:]|(?:for|while|if|elif|with)\b.*:$)")
# The length of parameters is limited: else each of many beginnings would be read to the end of the reply.
_DEFINITION = re.compile(r"\bdef\s+\w+\s*\([^)]{0,1000}\)\s*(?:->\s*+[\w\[\], .]++)?:|\blambda\b[^:\n]{0,1000}:")
_EXPRESSIONS = (ast.Call, ast.BinOp, ast.Compare, ast.BoolOp, ast.Subscript, ast.Lambda, ast.ListComp, ast.IfExp)


def find_leak(task: Task, words: str) -> Leak | None:
    """Return the first part of `words` that the user of `task` must not say, or None."""
    return _code(words) or find_quote(task, words)


def _code(reply: str) -> Leak | None:
    if "```" in reply or "~~~" in reply:
        return Leak("code", "```")
    for line in reply.splitlines():
        if _is_statement(line.strip()):
            return Leak("code", line.strip())
    for match in re.finditer(r"`([^`\n]+)`", reply):
        if _is_statement(match[1].strip()) or _is_expression(match[1].strip()):
            return Leak("code", match[1])
    definition = _DEFINITION.search(reply)
    return Leak("code", definition[0]) if definition else None


def _is_statement(line: str) -> bool:
    """Whether `line` is a statement of Python that nobody writes in a plain sentence."""
    if not line:
        return False
    if line in ("else:", "try:", "finally:"):
        return True
    if _HEADER.match(line):
        return parsed(line.removeprefix("el") + "\n    pass") is not None
    tree = parsed(line)
    if tree is None or not tree.body:
        return False
    first = tree.body[0]
    if isinstance(first, ast.Return):  # "return None" is a sentence, "return total * rate" is not
        return isinstance(first.value, _EXPRESSIONS)
    if isinstance(first, ast.AnnAssign):  # "rate: 7" may be plain words
        return first.value is not None
    return isinstance(first, _STATEMENTS)


def _is_expression(text: str) -> bool:
    tree = parsed(text)
    if tree is None or len(tree.body) != 1 or not isinstance(tree.body[0], ast.Expr):
        return False
    value = tree.body[0].value
    # f() and a - b alone may be how a user names something; more than one operator or argument is code.
    if isinstance(value, ast.Call):
        return bool(value.args or value.keywords)
    return isinstance(value, _EXPRESSIONS) and bool(re.search(r"\s|[<>=\[(*]", text))


def parsed(text: str) -> ast.Module | None:
    """Return the tree of a program; None for a text that is no program, or too much for the parser."""
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
