"""Tailwind 2.2.19, cut to what one page uses: a few kilobytes instead of 2.9 MB, and the same pixels.

The style sheet is the file dist/tailwind.min.css of the npm package tailwindcss 2.2.19, unchanged but compressed; its
licence (MIT) lies beside it. A rule is kept when one of its selectors names no class, or only classes that the page
has; the order of the rules is kept, so the cascade stays what it was.
"""

from __future__ import annotations

import lzma
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files

VERSION = "2.2.19"
_FILE = f"tailwind-{VERSION}.min.css.xz"

# A media query opens; key frames; a rule; a media query ends.
_PART = re.compile(r"(@media[^{]+)\{|(@[a-z-]+[^{]*\{(?:[^{}]*\{[^{}]*\})*\})|(([^{}]+)\{[^{}]*\})|\}")
_CLASS = re.compile(r"\.((?:\\.|[\w-])+)")
_COMMENT = re.compile(r"/\*.*?\*/", re.S)


@dataclass(frozen=True)
class _Sheet:
    """`rules[i]` is (media query or "", text); the other fields say which to keep, and which classes some need."""

    rules: tuple[tuple[str, str], ...]
    always: tuple[int, ...]
    by_class: dict[str, tuple[int, ...]]
    needs: dict[int, tuple[frozenset[str], ...]]


def purge(classes: Iterable[str]) -> str:
    """Return the rules of Tailwind 2.2.19 that a page with these classes can use, in their order."""
    sheet, have = _sheet(), frozenset(classes)
    kept = set(sheet.always)
    for name in have:
        for index in sheet.by_class.get(name, ()):
            needs = sheet.needs.get(index)
            if needs is None or any(need <= have for need in needs):
                kept.add(index)
    parts: list[str] = []
    open_media = ""
    for index in sorted(kept):
        media, text = sheet.rules[index]
        if media != open_media:
            parts.append(("}" if open_media else "") + (media + "{" if media else ""))
            open_media = media
        parts.append(text)
    return "".join(parts) + ("}" if open_media else "")


def knows(name: str) -> bool:
    """Whether Tailwind 2.2.19 has a rule for this class."""
    return name in _sheet().by_class


@lru_cache(maxsize=1)
def _sheet() -> _Sheet:
    packed = files("sweetrl.browser").joinpath("vendor", _FILE).read_bytes()
    text = _COMMENT.sub("", lzma.decompress(packed).decode("utf-8"))
    rules: list[tuple[str, str]] = []
    always: list[int] = []
    by_class: dict[str, list[int]] = {}
    needs: dict[int, tuple[frozenset[str], ...]] = {}
    media: list[str] = []
    for part in _PART.finditer(text):
        opened, frames, rule, selector = part.groups()
        if opened:  # the queries of `sm:container` stand inside of others
            media.append(opened if not media else opened.replace("@media", " and", 1))
        elif frames:  # few and small
            always.append(len(rules))
            rules.append(("", frames))
        elif rule:
            index = len(rules)
            rules.append(("".join(media), rule))
            if "," not in selector and selector.count(".") == 1:  # nearly all
                by_class.setdefault(_names(selector)[0], []).append(index)
                continue
            options = tuple(frozenset(_names(option)) for option in selector.split(","))
            if not all(options):
                always.append(index)
                continue
            if any(len(option) > 1 for option in options):
                needs[index] = options
            for name in frozenset().union(*options):
                by_class.setdefault(name, []).append(index)
        else:
            media.pop()
    return _Sheet(tuple(rules), tuple(always), {name: tuple(indices) for name, indices in by_class.items()}, needs)


def _names(selector: str) -> list[str]:
    return [re.sub(r"\\(.)", r"\1", name) for name in _CLASS.findall(selector)]
