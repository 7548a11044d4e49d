"""What a person must not say: code, or the hidden reference word for word.

Of a page: tags and classes; its texts may be told.

A person tells facts: numbers, names and fixed texts of the reference are theirs to tell. A leak is
code   a fence, a statement of Python on a line of its own, or an expression with operators or calls in backticks;
quote  a stretch of the reference as it is written, of so many marks and operators that nobody says it by chance.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from sweetrl.colbench.types import Message, Task

# Words, numbers, operators; a text in quotes is one mark, so that telling a message's wording is no quote.
_TOKEN = re.compile(
    r"\"\"\".*?\"\"\"|'''.*?'''|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'|#[^\n]*|[A-Za-z_]\w*|\d+(?:\.\d+)?|\*\*|//|[-+*/%<>=!]=|->|\S",
    re.DOTALL,
)
_STATEMENTS = (
    ast.FunctionDef,
    ast.AsyncFunctionDef,
    ast.ClassDef,
    ast.Return,
    ast.Assign,
    ast.AugAssign,
    ast.AnnAssign,
    ast.For,
    ast.While,
    ast.If,
    ast.With,
    ast.Try,
    ast.Raise,
    ast.Assert,
    ast.Import,
    ast.ImportFrom,
    ast.Delete,
)
_HEADER = re.compile(r"^(?:(?:async\s+)?def\s+\w+\s*\(|class\s+\w+\s*[(:]|(?:for|while|if|elif|with)\b.*:$)")
_EXPRESSIONS = (ast.Call, ast.BinOp, ast.Compare, ast.BoolOp, ast.Subscript, ast.Lambda, ast.ListComp, ast.IfExp)
_MARKUP = re.compile(
    r"```|~~~|</?[a-zA-Z][a-zA-Z0-9]*(?:\s[^<>]*)?/?>|"
    r"\b(?:bg|text|font|border|rounded|shadow|grid-cols|col-span|space-[xy]|[mp][xytrbl]?|w|h|max-w|min-h|gap)"
    r"-(?:[a-z]+-\d{2,3}|\d+(?:/\d+)?|[xsml2-9]{1,2}xl|[xs]?[sml]g?|full|screen|auto|center|left|right|bold|white|black)\b"
)
# A quoted stretch: so many tokens in a row, of them so many that are neither words nor numbers.
RUN, MARKS = 8, 4


@dataclass(frozen=True)
class Leak:
    """One leak: its kind, and the words that are one."""

    kind: Literal["code", "quote"]
    text: str


def find_leak(task: Task, reply: str) -> Leak | None:
    """Return the first thing in `reply` that the person of `task` must not say, or None."""
    if task.suite == "frontend":
        return _markup(reply)
    return _code(reply) or _quote(reply, task)


def leaks_of(task: Task, messages: Sequence[Message]) -> list[tuple[int, Leak]]:
    """Return the leaks in what the person said after the request, with the messages' indices."""
    found = (
        (index, find_leak(task, message.content))
        for index, message in enumerate(messages)
        if index > 0 and message.role == "user"
    )
    return [(index, leak) for index, leak in found if leak is not None]


def _markup(reply: str) -> Leak | None:
    """A fence, an HTML tag, or the name of a utility class (`bg-blue-500`, `grid-cols-3`)."""
    found = _MARKUP.search(reply)
    return Leak("code", found[0]) if found else None


def _code(reply: str) -> Leak | None:
    if "```" in reply or "~~~" in reply:
        return Leak("code", "```")
    for line in reply.splitlines():
        if _is_statement(line.strip()):
            return Leak("code", line.strip())
    for match in re.finditer(r"`([^`\n]+)`", reply):
        if _is_statement(match[1].strip()) or _is_expression(match[1].strip()):
            return Leak("code", match[1])
    definition = re.search(r"\bdef\s+\w+\s*\([^)]*\)\s*(?:->\s*[\w\[\], .]+)?:|\blambda\b[^:\n]*:", reply)
    return Leak("code", definition[0]) if definition else None


def _is_statement(line: str) -> bool:
    """Whether `line` is a statement of Python that nobody writes in a plain sentence."""
    if not line:
        return False
    if line in ("else:", "try:", "finally:"):
        return True
    if _HEADER.match(line):
        return _parsed(line.removeprefix("el") + "\n    pass") is not None
    tree = _parsed(line)
    if tree is None or not tree.body:
        return False
    first = tree.body[0]
    if isinstance(first, ast.Return):  # "return None" is a sentence, "return total * rate" is not
        return isinstance(first.value, _EXPRESSIONS)
    if isinstance(first, ast.AnnAssign):  # "rate: 7" reads like one
        return first.value is not None
    return isinstance(first, _STATEMENTS)


def _is_expression(text: str) -> bool:
    tree = _parsed(text)
    if tree is None or len(tree.body) != 1 or not isinstance(tree.body[0], ast.Expr):
        return False
    value = tree.body[0].value
    # f() and a - b alone may be how a person names something; more than one operator or argument is code.
    if isinstance(value, ast.Call):
        return bool(value.args or value.keywords)
    return isinstance(value, _EXPRESSIONS) and bool(re.search(r"\s|[<>=\[(*]", text))


def _parsed(text: str) -> ast.Module | None:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _quote(reply: str, task: Task) -> Leak | None:
    said = _tokens(reply)
    if len(said) < RUN:
        return None
    runs, allowed = _runs(task.ground_truth), _runs(task.problem_description)
    for start in range(len(said) - RUN + 1):
        run = said[start : start + RUN]
        if sum(not token[0].isalnum() for token in run) >= MARKS and run in runs and run not in allowed:
            return Leak("quote", " ".join(run))
    return None


@lru_cache(maxsize=256)
def _runs(text: str) -> frozenset[tuple[str, ...]]:
    tokens = _tokens(text)
    return frozenset(tokens[start : start + RUN] for start in range(len(tokens) - RUN + 1))


def _tokens(text: str) -> tuple[str, ...]:
    """The tokens of code or of a reply; comments are left out, quoted texts are one and the same mark."""
    found = (match[0] for match in _TOKEN.finditer(text.replace("`", " ")))
    return tuple("''" if one[0] in "\"'" else one for one in found if not one.startswith("#"))
