"""What the user of a page must not say: tags and classes; the page's texts may be told."""

from __future__ import annotations

import re

from sweetrl.types import Leak, Task

_MARKUP = re.compile(
    r"```|~~~|</?[a-zA-Z][a-zA-Z0-9]*(?:\s[^<>]*)?/?>|"
    r"\b(?:bg|text|font|border|rounded|shadow|grid-cols|col-span|space-[xy]|[mp][xytrbl]?|w|h|max-w|min-h|gap)"
    r"-(?:[a-z]+-\d{2,3}|\d+(?:/\d+)?|[xsml2-9]{1,2}xl|[xs]?[sml]g?|full|screen|auto|center|left|right|bold|white|black)\b"
)


def find_leak(task: Task, words: str) -> Leak | None:
    """Return a fence, an HTML tag, or the name of a utility class (`bg-blue-500`, `grid-cols-3`) in `words`."""
    found = _MARKUP.search(words)
    return Leak("code", found[0]) if found else None
