"""What somebody else has sent: words made fit to be shown, and JSON measured before anything descends into it."""

from __future__ import annotations

import math
import re
import unicodedata
from typing import Any, Literal

# Formatting characters that words are written with: the joiners of emoji and of scripts such as Persian.
_JOINERS = "\u200c\u200d"


def printable(text: str) -> str:
    """Return `text` with U+FFFD for what steers a terminal or hides: controls, bidi marks, halves of surrogates.

    Line ends and tabs stay, and the length stays.
    """
    if text.isascii() and text.isprintable():
        return text
    kept = f"\n\t{_JOINERS}"
    steers = ("Cc", "Cf", "Cs")
    return "".join(sign if sign in kept or unicodedata.category(sign) not in steers else "\ufffd" for sign in text)


def without_login(address: str) -> str:
    """Return an address without the name and password in it, for messages: `http://host/path`."""
    return re.sub(r"^([\w+.-]+://)[^/?#]*@", r"\1", address)


def excess(value: Any, levels: int, values: float = math.inf) -> Literal["", "levels", "values"]:
    """Return what a parsed `value` has too much of, "levels" of nesting or "values"; "" where it has neither.

    A text or a number is one level, a list of them two. Texts, numbers, lists and objects below the top count as
    values. Nothing here recurses, so that no nesting is too deep to be looked at.
    """
    level, seen = [value], 0
    for _ in range(levels):
        below: list[Any] = []
        for part in level:
            if isinstance(part, dict | list):
                below.extend(part.values() if isinstance(part, dict) else part)
        seen += len(below)
        if seen > values:
            return "values"
        if not below:
            return ""
        level = below
    return "levels"
