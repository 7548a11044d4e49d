"""Three kinds of zygotes: a light one, quick to fork, and two that have imported what takes longer to import.

Every page that a zygote holds costs each of its children a little, and every module that a child must import costs it
a lot (numpy: a hundred times a fork). So most solutions, which import next to nothing, are run by light zygotes, and
only those whose text names one of the modules here by the others. Of the standard library that decides how fast a
solution is, and nothing else. The third-party libraries can be imported by the last kind only: the folder that they lie
in cannot be listed in a sandbox.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

# What solutions often import, and what takes longer or is rare.
_OFTEN = ("abc", "contextlib", "copy", "datetime", "enum", "json", "re", "string", "typing")
_SELDOM = (
    *("array", "asyncio", "calendar", "csv", "dataclasses", "decimal", "fractions", "hashlib", "html", "io", "logging"),
    *("numbers", "pprint", "statistics", "textwrap", "threading", "unicodedata", "urllib.parse", "urllib.request"),
    *("uuid", "weakref", "xml.etree.ElementTree"),
)
_IMPORT = re.compile(r"\b(?:import|from)[ \t]+([\w.]+(?:[ \t]*,[ \t]*[\w.]+)*)|import(?:_module|__)\(\W*(\w+)")


def preloads(libraries: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """What the zygotes of each kind import in advance, the lightest first."""
    return (), _OFTEN, (*_OFTEN, *_SELDOM, *libraries)


def lightest(sources: Iterable[str], libraries: Sequence[str]) -> int:
    """The index of the first of `preloads` that covers what `sources` (or calls) seem to import."""
    tier = 0
    for source in sources:
        if "import" in source:
            if any(library in source for library in libraries):  # in whatever way it is imported
                return 2
            for statement, call in _IMPORT.findall(source):
                for name in (statement or call).split(","):
                    top = name.strip().split(".")[0]
                    if any(top == seldom.split(".")[0] for seldom in _SELDOM):
                        return 2
                    if top in _OFTEN:
                        tier = 1
    return tier
