"""Text that untrusted code has chosen, made fit to be stored and shown."""

from __future__ import annotations


def printable(text: str) -> str:
    """`text` as valid Unicode: half of a surrogate pair, which no file can hold, is written as its number."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
