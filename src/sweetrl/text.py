"""What somebody else has sent, made fit to be shown."""

from __future__ import annotations

import re
import unicodedata

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
