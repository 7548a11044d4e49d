"""Two kinds of zygotes: a light one, quick to fork, and one that has imported what takes long to import.

Every page that a zygote holds costs each of its children a little, and every module that a child must import costs it
a lot (numpy: a hundred times a fork). So most solutions, which import next to nothing, are run by light zygotes, and
only those whose text names one of the HEAVY modules by the others. Which one runs a solution decides how fast it is,
and nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

# What solutions tend to import, and what that takes in turn.
HEAVY = [
    "abc",
    "array",
    "asyncio",
    "calendar",
    "contextlib",
    "copy",
    "csv",
    "dataclasses",
    "datetime",
    "decimal",
    "enum",
    "fractions",
    "hashlib",
    "html",
    "io",
    "json",
    "logging",
    "numbers",
    "pprint",
    "re",
    "statistics",
    "string",
    "textwrap",
    "threading",
    "typing",
    "unicodedata",
    "urllib.parse",
    "urllib.request",
    "uuid",
    "weakref",
    "xml.etree.ElementTree",
]
_IMPORT = re.compile(r"\b(?:import|from)[ \t]+([\w.]+(?:[ \t]*,[ \t]*[\w.]+)*)|import(?:_module|__)\(\W*(\w+)")


def is_heavy(sources: Iterable[str], libraries: Iterable[str]) -> bool:
    """Whether one of `sources` seems to import a HEAVY module or one of `libraries`."""
    wanted = {name.split(".")[0] for name in (*HEAVY, *libraries)}
    for source in sources:
        if "import" in source:
            for several, one in _IMPORT.findall(source):
                if any(name.split(".")[0].strip() in wanted for name in (several or one).split(",")):
                    return True
    return False


__all__ = ["HEAVY", "is_heavy"]
