"""The words that sweetrl.backend.english uses for Python's names, operators, functions and methods.

{0}, {1} are the arguments, {own} is the object of a method, {all} every argument; the number after a name says for how
many arguments the words are (-1: any).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence

PLACES = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth")
FEW = 5  # at most so many items have commas between them; more have semicolons, so that no list is quoted


class Unsayable(Exception):
    """There are no plain words for this piece of a program."""


def words_of(name: str) -> str:
    """Return an identifier as words: `lap_time` and `lapTime` are "lap time"."""
    spaced = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name.strip("_").replace("_", " "))
    return spaced if spaced.isupper() else spaced.lower()


def the(name: str) -> str:
    """Return an identifier with an article, unless it is a letter or two."""
    words = words_of(name)
    if re.match(r"(is|has|use|should|include|can) ", words):
        return f'"{words}"'
    return f"the {words}" if len(words) > 2 else words


def plural(phrase: str) -> bool:
    """Whether a phrase about a single name is plural, judging by its ending."""
    return bool(re.fullmatch(r"the [\w ]+[a-rt-z]s", phrase)) and not re.search(r" of |(us|is|os)$", phrase)


def be(phrase: str) -> str:
    """Return the verb that goes with a phrase."""
    return "are" if plural(phrase) else "is"


def called(call: ast.Call) -> str:
    """Return the name of the function or method that is called, "" where it has none."""
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def listing(parts: Sequence[str], last: str = "and") -> str:
    """Return "a, b and c"; many parts, or parts that are lists themselves, have semicolons between them."""
    if len(parts) > FEW or any(", " in part or f" {last} " in part for part in parts[:-1]):
        return "; ".join(parts)
    return ", ".join(parts[:-1]) + f" {last} {parts[-1]}" if len(parts) > 1 else "".join(parts)


OPERATORS: dict[type[ast.operator], str] = {
    ast.Add: "plus",
    ast.Sub: "minus",
    ast.Mult: "multiplied by",
    ast.Div: "divided by",
    ast.FloorDiv: "divided (rounded down) by",
    ast.Pow: "to the power of",
    ast.BitAnd: "that are also in",
}
COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Lt: "less than",
    ast.LtE: "at most",
    ast.Gt: "more than",
    ast.GtE: "at least",
}
_OPPOSITES = ((ast.Lt, ast.GtE), (ast.LtE, ast.Gt), (ast.Eq, ast.NotEq), (ast.Is, ast.IsNot), (ast.In, ast.NotIn))
NEGATED: dict[type[ast.cmpop], type[ast.cmpop]] = dict([*_OPPOSITES, *(pair[::-1] for pair in _OPPOSITES)])
# a < b is b > a.
TURNED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.Gt, ast.Gt: ast.Lt, ast.LtE: ast.GtE, ast.GtE: ast.LtE, ast.Eq: ast.Eq, ast.NotEq: ast.NotEq,
}  # fmt: skip
EXTREMES = {"max": ("largest", "larger"), "min": ("smallest", "smaller")}
MODULES = (
    *("math", "np", "numpy", "statistics", "random", "re", "datetime", "itertools", "collections", "json", "os"),
    *("time", "pd", "string", "calendar", "heapq", "copy", "operator"),
)
CONSTANTS = {"pi": "pi", "inf": "infinity"}
TYPES = {"str": "a text", "int": "a whole number", "float": "a decimal number", "dict": "a dictionary"}
# The words for a predicate that holds, and for one that does not.
PREDICATES = {
    "startswith": ("starts with", "does not start with"),
    "endswith": ("ends with", "does not end with"),
    "isdigit": ("has digits only", "does not have digits only"),
    "isalpha": ("has letters only", "does not have letters only"),
}
CALLS: dict[tuple[str, int], str] = {
    ("len", 1): "the length of {0}",
    ("sum", 1): "the sum of {0}",
    ("abs", 1): "the absolute value of {0}",
    ("int", 1): "{0} as a whole number (what follows the point is cut off)",
    ("float", 1): "{0} as a number",
    ("str", 1): "{0} as text",
    ("bool", 1): "{0} as true or false",
    ("list", 1): "a list of {0}",
    ("dict", 1): "a dictionary of {0}",
    ("tuple", 1): "a tuple of {0}",
    ("set", 1): "the different values of {0}",
    ("set", 0): "an empty set",
    ("reversed", 1): "{0} in reverse order",
    ("enumerate", 1): "{0} with their places",
    ("zip", -1): "{all} taken together",
    ("range", 1): "the numbers from 0 up to but not including {0}",
    ("sqrt", 1): "the square root of {0}",
    ("ceil", 1): "{0} rounded up",
    ("floor", 1): "{0} rounded down",
    ("sin", 1): "the sine of {0}",
    ("cos", 1): "the cosine of {0}",
    ("atan2", 2): "the angle of {0} over {1} (arc tangent)",
    ("radians", 1): "{0} in radians",
    ("mean", 1): "the mean of {0}",
    ("median", 1): "the median of {0}",
    ("Counter", 1): "how often each of {0} occurs",
    ("defaultdict", 1): "an empty dictionary whose missing entries are filled in",
    ("strptime", 2): "{0} read as a date in the form {1}",
    ("type", 1): "the type of {0}",
}
METHODS: dict[tuple[str, int], str] = {
    ("lower", 0): "{own} in small letters",
    ("upper", 0): "{own} in capitals",
    ("title", 0): "{own} with each word capitalised",
    ("capitalize", 0): "{own} with a capital first letter",
    ("strip", 0): "{own} without blanks around it",
    ("strip", 1): "{own} without {0} around it",
    ("split", 0): "the words of {own}",
    ("split", 1): "the parts of {own} between {0}",
    ("splitlines", 0): "the lines of {own}",
    ("join", 1): "{0} joined with {own} between them",
    ("replace", 2): "{own} with {0} replaced by {1}",
    ("count", 1): "how often {0} occurs in {own}",
    ("index", 1): "the place of {0} in {own}",
    ("find", 1): "the place of {0} in {own}",
    ("get", 1): "the entry of {own} for {0} (None if it is missing)",
    ("get", 2): "the entry of {own} for {0} ({1} if it is missing)",
    ("pop", 0): "the last item taken out of {own}",
    ("pop", 1): "the item {0} taken out of {own}",
    ("keys", 0): "the keys of {own}",
    ("values", 0): "the values of {own}",
    ("items", 0): "the entries of {own}",
}
