"""Systematic variants of a reference solution: the kinds of right and wrong answers that agents give."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Callable, Iterator
from typing import Any


def mutants(reference: str, name: str) -> Iterator[tuple[str, str]]:
    """Yield (kind, answer) for every kind that applies to `reference`, which defines the function `name`."""
    yield "itself", reference
    yield from _texts(reference, name)
    yield from _trees(reference)
    yield from _placements(reference, name)
    for kind, change in _RESULTS.items():
        yield kind, _wrapped(reference, name, change)


def _texts(reference: str, name: str) -> Iterator[tuple[str, str]]:
    yield "python fence", f"Here it is:\n```python\n{reference}\n```\nGood luck!"
    yield "plain fence", f"Here it is:\n```\n{reference}\n```"
    yield "py fence", f"```py\n{reference}\n```"
    yield "Python fence", f"```Python\n{reference}\n```"
    yield "tilde fence", f"~~~python\n{reference}\n~~~"
    yield "two fences", f"```python\n{reference}\n```\nor\n```python\ndef {name}(*a): return 0\n```"
    yield "plain before python fence", f"```\nnothing\n```\n```python\n{reference}\n```"
    yield "open fence", f"```python\n{reference}"
    yield "prose before", f"I think this is it.\n{reference}"
    yield "prose after", f"{reference}\nThat is all."
    yield "comment", f"# a comment\n{reference}\n# another"
    yield "banned comment", f"{reference}\n# import os"
    yield "banned word in prose", f"Never use sudo.\n```python\n{reference}\n```"
    yield "banned call", f"{reference}\nif False: exit(0)"
    yield "empty", ""
    yield "blank fence", "```python\n```"
    yield "other name", re.sub(rf"\b{re.escape(name)}\b", name + "_2", reference)
    yield "cut", reference[: 2 * len(reference) // 3]
    yield "tabs", reference.replace("    ", "\t")
    yield "called at the end", f"{reference}\n{name}()"
    yield "main guard", f"{reference}\nif __name__ == '__main__':\n    raise ValueError"


_COMPARISONS: dict[type, type] = {ast.Lt: ast.LtE, ast.Gt: ast.GtE, ast.LtE: ast.Lt, ast.GtE: ast.Gt}
# kind: (which node, what it becomes)
_CHANGES: dict[str, tuple[Callable[[Any], bool], Callable[[Any], ast.AST]]] = {
    "wrong constant": (
        lambda node: isinstance(node, ast.Constant) and type(node.value) in (int, float),
        lambda node: ast.Constant(node.value + 1),
    ),
    "wrong text": (
        lambda node: isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value != "",
        lambda node: ast.Constant(node.value + "!"),
    ),
    "swapped branch": (
        lambda node: isinstance(node, ast.If),
        lambda node: ast.If(ast.UnaryOp(ast.Not(), node.test), node.body, node.orelse),
    ),
    "missing case": (
        lambda node: isinstance(node, ast.If),
        lambda node: ast.If(ast.Constant(False), node.body, node.orelse),
    ),
    "other operator": (
        lambda node: isinstance(node, ast.BinOp),
        lambda node: ast.BinOp(node.left, ast.Sub() if isinstance(node.op, ast.Add) else ast.Add(), node.right),
    ),
    "other comparison": (
        lambda node: isinstance(node, ast.Compare),
        lambda node: ast.Compare(
            node.left, [_COMPARISONS.get(type(op), type(op))() for op in node.ops], node.comparators
        ),
    ),
    "no return": (lambda node: isinstance(node, ast.Return), lambda node: ast.Pass()),
}


class _Change(ast.NodeTransformer):
    """Apply one kind of change to the first place that it fits."""

    def __init__(self, kind: str) -> None:
        self.fits, self.edit = _CHANGES[kind]
        self.done = False

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        if self.done or not self.fits(node):
            return node
        self.done = True
        return self.edit(node)


def _trees(reference: str) -> Iterator[tuple[str, str]]:
    for kind in _CHANGES:
        change = _Change(kind)
        tree = change.visit(ast.parse(reference))
        if change.done:
            yield kind, ast.unparse(ast.fix_missing_locations(tree))


def _placements(reference: str, name: str) -> Iterator[tuple[str, str]]:
    inner = re.sub(rf"\b{re.escape(name)}\b", "helper", reference)
    yield "helper outside", f"{inner}\ndef {name}(*a, **k):\n    return helper(*a, **k)"
    yield "helper inside", f"def {name}(*a, **k):\n{textwrap.indent(inner, '    ')}\n    return helper(*a, **k)"
    yield "import outside", f"import math\n{_wrapped(reference, name, 'math.floor(0); return r')}"
    yield "import inside", _wrapped(reference, name, "import math; math.floor(0); return r")
    yield "import as a default", f"import math\n{reference}\n{name}.module = math"
    yield "constant outside", f"ZERO = 0\n{_wrapped(reference, name, 'ZERO; return r')}"
    yield (
        "recursion",
        f"def {name}(*a, d=1, **k):\n    if d: return {name}(*a, d=0, **k)\n"
        + textwrap.indent(f"{inner}\nreturn helper(*a, **k)", "    "),
    )
    yield "lambda", f"{inner}\n{name} = lambda *a, **k: helper(*a, **k)"
    yield "default argument carries the helper", f"{inner}\ndef {name}(*a, h=helper, **k):\n    return h(*a, **k)"
    yield "a name of the evaluator", f"{_wrapped(reference, name, 'signal.SIGALRM; return r')}"
    yield "a name that vanishes", f"{inner}\ne = helper\ndef {name}(*a, **k): return 1\n{name} = e"
    yield "defines e", f"{inner}\ndef e(*a, **k): return helper\n{reference}"
    yield (
        "global state",
        f"def {name}(*a, **k):\n    global seen\n    seen = seen + 1 if 'seen' in globals() else 0\n"
        + textwrap.indent(f"{inner}\nreturn helper(*a, **k) if seen < 4 else -1", "    "),
    )
    yield (
        "mutable default",
        f"{_wrapped(reference, name, 'c.append(1); return r if len(c) < 3 else -1').replace('*a,', 'c=[], *a,', 1)}",
    )
    yield "class with call", f"class C:\n    def __call__(self, *a, **k): return 1\n{name} = C()"


def _wrapped(reference: str, name: str, change: str) -> str:
    body = textwrap.indent(reference, "    ")
    lines = textwrap.indent(change.replace("; ", "\n"), "    ")
    return f"def {name}(*a, **k):\n{body}\n    r = {name}(*a, **k)\n{lines}\n    return r"


_RESULTS = {
    "print": "print(r)",
    "exception on some inputs": "if len(repr(a)) % 3 == 0: raise ValueError(a)",
    "none on some inputs": "if len(repr(a)) % 3 == 1: return None",
    "caught exception": "try:\n    1 / 0\nexcept Exception: pass",
    "int as float": "if type(r) is int: return float(r)",
    "float as int": "if type(r) is float and r == int(r): return int(r)",
    "bool as int": "if type(r) is bool: return int(r)",
    "number as decimal": "import decimal; return decimal.Decimal(r) if isinstance(r, (int, float)) else r",
    "number as fraction": "import fractions; return fractions.Fraction(r) if isinstance(r, (int, float)) else r",
    "number as complex": "return complex(r) if isinstance(r, (int, float)) else r",
    "rounded": "if type(r) is float: return round(r, 2)",
    "one ulp": "import math; return math.nextafter(r, 9e99) if type(r) is float else r",
    "list as tuple": "if type(r) is list: return tuple(r)",
    "tuple as list": "if type(r) is tuple: return list(r)",
    "list as array": "import numpy; return numpy.array(r) if isinstance(r, (list, int, float)) else r",
    "dict subclass": "import collections; return collections.OrderedDict(r) if type(r) is dict else r",
    "defaultdict": "import collections; return collections.defaultdict(int, r) if type(r) is dict else r",
    "reversed dict": "return dict(reversed(r.items())) if type(r) is dict else r",
    "list subclass": "class L(list): pass; return L(r) if type(r) is list else r",
    "text": "return str(r)",
    "text subclass": "class S(str): pass; return S(r) if type(r) is str else r",
    "bytes": "return r.encode() if type(r) is str else r",
    "generator": "return (x for x in [r])",
    "keys": "return r.keys() if type(r) is dict else r",
    "nan": "return float('nan') if type(r) is float else r",
    "numpy scalar": "import numpy; return numpy.float64(r) if type(r) is float else r",
    "stripped": "return r.strip('.! ') if type(r) is str else r",
}
