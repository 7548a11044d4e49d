"""Compare two trees of values.py by walking the expected one. The actual one is a claim of untrusted code.

Nothing of the claim is ever hashed, evaluated or turned into an object whose size it decides itself: sets and
dictionaries are matched by sorting canonical text, integers stay hexadecimal text until the expected side asks for
them. The time is bounded by the size of the two trees.
"""

from __future__ import annotations

import decimal
import math
from dataclasses import dataclass
from typing import Any

# Longest number text that is worth reading; no honest test returns more digits.
_DIGITS = 20_000
_SEQUENCES = frozenset({"l", "t", "dq", "arr"})
MAPS = frozenset({"d", "od", "ct"})
_DATES = frozenset({"dt", "dtz", "date", "td", "time", "type", "fn", "mod", "const", "b"})
_NUMBERS = frozenset({"i", "inf", "nan", "c", "dec", "fr"})


@dataclass(frozen=True)
class Rules:
    """What counts as equal. The default is Python's own `==`, as the official evaluator applies it.

    `tolerance` allows real numbers to differ by this much, relative or absolute; `nan` makes NaN equal to NaN;
    `arrays` compares numpy arrays as the lists they hold (Python's `==` on them has no single truth value).
    """

    tolerance: float = 0.0
    nan: bool = False
    arrays: bool = False


def equal(expected: Any, actual: Any, rules: Rules = Rules()) -> bool:
    """Whether the claim `actual` equals `expected`; a malformed claim equals nothing."""
    try:
        return _equal(expected, actual, rules, 0)
    except (ValueError, TypeError, IndexError, OverflowError, ArithmeticError, RecursionError):
        return False


def _equal(a: Any, b: Any, rules: Rules, depth: int) -> bool:
    if type(a) is not list and type(b) is not list and a == b:  # numbers too: a NaN is written as a list
        return True
    if _is_array(a) or _is_array(b):
        if not rules.arrays:
            return _arrays(a, b, rules, depth)
        a, b = _nested(a), _nested(b)
    if type(a) is str or a is None:
        return type(b) is type(a) and a == b
    if type(a) is not list or a[0] in _NUMBERS:
        return _numbers(a, b, rules, depth)
    if type(b) is not list or not b or type(b[0]) is not str:
        return False
    return _tagged(a[0], a, b, rules, depth)


def _is_array(tree: Any) -> bool:
    return type(tree) is list and bool(tree) and tree[0] == "nd"


def _tagged(tag: str, a: list[Any], b: list[Any], rules: Rules, depth: int) -> bool:
    other = b[0]
    if tag in _SEQUENCES:
        if other != tag or len(a) != len(b):
            return False
        for x, y in zip(a, b, strict=True):  # noqa: SIM110 - a generator would take longer
            if not _equal(x, y, rules, depth + 1):
                return False
        return True
    if tag in MAPS:
        return other in MAPS and _mappings(a, b, rules, depth)
    if tag == "s":
        if other != "s" or len(a) != len(b):
            return False
        return sorted(_key(x) for x in a[1:]) == sorted(_key(x) for x in b[1:])
    if tag == "r":
        if other != "r" or len(b) != 4 or a[1] != b[1]:
            return False
        return a[1] == 0 or (a[2] == b[2] and (a[1] == 1 or a[3] == b[3]))
    if tag == "re":
        return other == "re" and len(b) == 3 and a[2] == b[2] and _equal(a[1], b[1], rules, depth + 1)
    if tag in _DATES:
        return a == b
    return False  # "o": an object of a class of its own is equal to nothing that another program made


def _mappings(a: list[Any], b: list[Any], rules: Rules, depth: int) -> bool:
    if len(b) % 2 == 0:
        return False
    if a[0] == "ct" and b[0] == "ct":  # a Counter takes a missing count to be zero
        a, b = _without_zeros(a), _without_zeros(b)
    if len(a) != len(b):
        return False
    keys = a[1::2]
    if keys == b[1::2] and all(type(key) is str for key in keys):  # as nearly always: nothing to sort
        return all(_equal(x, y, rules, depth + 1) for x, y in zip(a[2::2], b[2::2], strict=True))
    left = [(_key(a[i]), i) for i in range(1, len(a), 2)]
    right = [(_key(b[i]), i) for i in range(1, len(b), 2)]
    if not (a[0] == "od" and b[0] == "od"):  # only two OrderedDicts mind the order
        left.sort()
        right.sort()
    return all(
        x == y and _equal(a[i + 1], b[j + 1], rules, depth + 1) for (x, i), (y, j) in zip(left, right, strict=True)
    )


def _without_zeros(tree: list[Any]) -> list[Any]:
    kept = [tree[0]]
    for i in range(1, len(tree), 2):
        if not _equal(0, tree[i + 1], Rules(), 0):
            kept += tree[i : i + 2]
    return kept


def _numbers(a: Any, b: Any, rules: Rules, depth: int) -> bool:
    kinds = (int, float, bool)
    if type(a) in kinds and type(b) in kinds:
        return a == b or (rules.tolerance > 0 and _close(a, b, rules))
    if type(b) is list and (not b or b[0] not in _NUMBERS):
        return False
    x, y = _number(a), _number(b)
    if x is None or y is None:
        return False
    if x[0] == "nan" or y[0] == "nan":
        same_object = depth > 0 and x == y and x[1] != ""
        return x[0] == y[0] and (rules.nan or same_object)
    if x == y:
        return True
    return rules.tolerance > 0 and x[0] == y[0] == "q" and _close(x[1] / x[2], y[1] / y[2], rules)


def _close(a: float, b: float, rules: Rules) -> bool:
    return math.isclose(a, b, rel_tol=rules.tolerance, abs_tol=rules.tolerance)


def _number(tree: Any) -> tuple[Any, ...] | None:
    """A canonical form that is equal exactly when Python's numbers are, whatever their types."""
    if type(tree) in (int, bool):
        return ("q", int(tree), 1)
    if type(tree) is float:
        return ("q", *tree.as_integer_ratio()) if math.isfinite(tree) else None
    if type(tree) is not list or not tree:
        return None
    tag = tree[0]
    if tag == "i":
        return ("q", _hex(tree[1]), 1)
    if tag == "inf":
        return ("inf", tree[1]) if tree[1] in (1, -1) else None
    if tag == "nan":
        return ("nan", str(tree[1]))
    if tag == "fr":
        return ("q", _hex(tree[1]), _hex(tree[2]))
    if tag == "c":
        real, imaginary = _number(tree[1]), _number(tree[2])
        if real is None or imaginary is None or "nan" in (real[0], imaginary[0]):
            return None
        return real if imaginary == ("q", 0, 1) else ("c", real, imaginary)
    if tag == "dec":
        return _decimal(tree[1])
    return None


def _hex(text: Any) -> int:
    if type(text) is not str or len(text) > _DIGITS or not text.lstrip("-").startswith("0x") or "_" in text:
        raise ValueError
    return int(text, 16)  # base 16 takes linear time


def _decimal(text: Any) -> tuple[Any, ...] | None:
    if type(text) is not str or len(text) > _DIGITS:
        return None
    value = decimal.Decimal(text)
    if value.is_nan():
        return ("nan", "")
    if value.is_infinite():
        return ("inf", -1 if value.is_signed() else 1)
    if value and abs(value.adjusted()) > 5_000:  # its ratio would have more digits than the text: as it stands
        sign, digits, exponent = value.as_tuple()
        stripped = "".join(map(str, digits)).rstrip("0")
        return ("dec", sign, stripped, int(exponent) + len(digits) - len(stripped))
    return ("q", *value.as_integer_ratio())


def _key(tree: Any) -> str:
    """Canonical text of a dictionary key or set member: equal text exactly where Python's `==` says equal."""
    if type(tree) is str:
        return "s" + tree
    if tree is None:
        return "none"
    if type(tree) is list and tree and tree[0] not in _NUMBERS:
        if tree[0] == "s":
            return "{" + ",".join(sorted(f"{len(k)}:{k}" for k in map(_key, tree[1:]))) + "}"
        if tree[0] in ("l", "t"):
            return f"{tree[0]}(" + ",".join(f"{len(k)}:{k}" for k in map(_key, tree[1:])) + ")"
        return "x" + repr(tree) if tree[0] != "o" else f"o{id(tree)}"
    number = _number(tree)
    if number is None:
        raise ValueError
    if number[0] == "nan":
        return f"nan{number[1]}" if number[1] else f"nan{id(tree)}"
    if number[0] == "q":  # hexadecimal, because decimal text of a large number takes quadratic time
        return f"q{number[1]:x}/{number[2]:x}"
    return repr(number)


def _arrays(a: Any, b: Any, rules: Rules, depth: int) -> bool:
    # numpy's == gives an array of truths, which has a truth value of its own only if it has exactly one element.
    x, y = _single(a), _single(b)
    return x is not None and y is not None and _equal(x[0], y[0], rules, depth + 1)


def _single(tree: Any) -> tuple[Any] | None:
    if type(tree) is list and tree and tree[0] in ("nd", "l", "t"):
        values = tree[2:] if tree[0] == "nd" else tree[1:]
        if tree[0] == "nd" and _count(tree[1]) != len(values):
            return None
        return _single(values[0]) if len(values) == 1 else None
    return (tree,)


def _count(shape: Any) -> int:
    """How many numbers an array of this shape holds; ValueError for an invalid shape: texts multiply, too."""
    if type(shape) is not list or any(type(n) is not int or n < 0 for n in shape):
        raise ValueError
    return math.prod(shape)


def _nested(tree: Any) -> Any:
    """An array as the nested lists that its tolist() gives; anything else as it is."""
    if not _is_array(tree):
        return tree
    shape, flat = tree[1], tree[2:]
    if _count(shape) != len(flat):
        raise ValueError
    if not shape:
        return flat[0]
    for width in reversed(shape[1:]):
        flat = [["l", *flat[i : i + width]] for i in range(0, len(flat), width)] if width else []
    return ["l", *flat]


def render(tree: Any, limit: int = 200) -> str:
    """A tree as people write the value, shortened to `limit` characters; for messages only."""
    text = printable(_render(tree, limit, 0))
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _render(tree: Any, limit: int, depth: int) -> str:
    if type(tree) is not list or not tree:
        return repr(tree)[: limit + 1]
    tag, parts = tree[0], tree[1:]
    if depth > 20 or type(tag) is not str:
        return "…"
    inner = [_render(part, limit, depth + 1) for part in parts[: limit // 2]]
    if tag in MAPS:
        return "{" + ", ".join(f"{k}: {v}" for k, v in zip(inner[::2], inner[1::2], strict=False)) + "}"
    if tag in ("l", "s", "t"):
        opening, closing = {"l": ("[", "]"), "s": ("{", "}"), "t": ("(", ")")}[tag]
        return opening + ", ".join(inner) + ("," if tag == "t" and len(inner) == 1 else "") + closing
    if tag in ("i", "dec"):
        return str(parts[0])[: limit + 1]
    if tag == "b":
        try:
            return repr(bytes.fromhex(parts[0][:limit]))
        except (IndexError, TypeError, ValueError):  # a child's claim need not be what our encoder writes
            return "bytes"
    return f"<{tag} {', '.join(inner)}>"


def printable(text: str) -> str:
    """`text` as valid Unicode: half of a surrogate pair, which no file can hold, is written as its number."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
