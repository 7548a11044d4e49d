"""Untrusted HTML made ready for the browser: Tailwind inlined, motion off, no meta refresh, oddities flagged.

The text is changed in as few places as possible and never parsed and written again: what is broken about a page must
stay broken in the same way. Nothing here confines a page (the browser and its isolation do); it makes pages repeatable.
"""

from __future__ import annotations

import html as entities
import re
from collections.abc import Callable
from dataclasses import dataclass

from sweetrl.browser import tailwind

# What leads a document without starting it: a style sheet put after it leaves the document's mode as it is.
_LEAD = re.compile(r"\ufeff?(?:\s+|<!--.*?-->|<\?[^>]*>|<!doctype[^>]*>)*", re.I | re.S)
_CLASS = re.compile(r"""\bclass\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s"'>]+))""", re.I)
_LINK = re.compile(r"<link\b", re.I)
_SCRIPT = re.compile(r"<script\b", re.I)
_META = re.compile(r"<meta\b", re.I)
# The first of two equal attributes counts: words that would run stay where they begin.
_MARQUEE = re.compile(r"<marquee(?=[\s>/])", re.I)
_NUMBERED = re.compile(r"&#0*+(\d{0,7}+)(\d*+)")
_EQUIV = re.compile(r"http-equiv", re.I)
_ATTRIBUTE = re.compile(r"""\b(href|src|rel)\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s"'>]+))""", re.I)
_REMOTE = re.compile(r"^\s*(?:https?:)?//", re.I)
_IMPORT = re.compile(r"@import\s++(?:url\()?+\s*+[\"']?+\s*+(?:https?:)?//", re.I)
_TAILWIND_VERSION = re.compile(r"tailwindcss@?[/^~]*+(\d++(?:\.\d++)*+)", re.I)
# Names that Tailwind has had since version 3 only (its orange and teal were in version 1, and real pages use them).
_V3_CLASS = re.compile(
    r"^(?:[\w-]++:)*+(?:(?:bg|text|border|from|via|to|ring|divide)-(?:slate|zinc|neutral|stone|amber|lime"
    r"|emerald|cyan|sky|violet|fuchsia|rose)-\d+|[\w-]+-\d+/\d{2,3}|aspect-(?:video|square|auto)|(?:columns|basis|grow"
    r"|shrink|indent|accent|scroll-m|scroll-p|size)-[\w.]+|shadow-[a-z]+-\d+|line-clamp-\d)$"
)
_SHEETS = 8  # copies of Tailwind in one page, at most

# The first layer's important declarations win over every other important one of the page's style sheets.
_STILL = (
    "<style>@layer still{*,*::before,*::after{animation:none!important;transition:none!important;"
    "caret-color:transparent!important;scroll-behavior:auto!important;scroll-initial-target:none!important}"
    ":root,body{scroll-snap-type:none!important}"
    "video::-webkit-media-controls,audio::-webkit-media-controls{visibility:hidden!important}}</style>"
)


@dataclass(frozen=True)
class Prepared:
    """What the browser is given, whether there may be pictures to wait for or motion to stop, and the flags."""

    html: str
    unsettled: bool
    flags: tuple[str, ...]


def prepare(html: str) -> Prepared:
    """Return `html` with the style sheets it may use inlined; an equal text gives an equal result."""
    flags = set[str]()
    classes = _classes(html)
    # A lone surrogate is no text that could be sent.
    text = html.encode("utf-8", "replace").decode("utf-8").replace("\0", "\ufffd")
    text = _replace(_META, lambda tag: _refresh(tag, flags), text)
    text = _inline(text, classes, flags)
    if any(_arbitrary(name) or _V3_CLASS.match(name) for name in classes if not tailwind.knows(name)):
        flags.add("tailwind-v3-class")
    if _IMPORT.search(text):
        flags.add("external-stylesheet")
    lowered = text.lower()
    for needle, flag in (("<iframe", "frame"), ("<object", "frame"), ("<embed", "frame"), ("javascript:", "script")):
        if needle in lowered:
            flags.add(flag)
    lead = _LEAD.match(text)
    at = lead.end() if lead else 0
    # Placeholders are drawings, painted with the page they stand in; what is decoded, or loaded by a style, comes late.
    unsettled = any(needle in lowered for needle in ("data:", "url(", "<animate", "<set", "<progress", "lazy"))
    text = _MARQUEE.sub(r"\g<0> scrollamount=0", text[:at] + _STILL + text[at:])
    return Prepared(text, unsettled, tuple(sorted(flags)))


def stay(page: Prepared) -> Prepared:
    """Return the page without any `http-equiv`: for one that navigated away although its meta refresh was removed."""
    return Prepared(_EQUIV.sub("data-equiv", page.html), page.unsettled, tuple(sorted({*page.flags, "meta-refresh"})))


def _classes(html: str) -> frozenset[str]:
    names: set[str] = set()
    for quoted, single, bare in _CLASS.findall(html):
        names.update(_unescape(quoted or single or bare).split())
    # Without a doctype the browser compares classes without case; Tailwind's are all in lower case.
    return frozenset(names | {name.lower() for name in names})


def _unescape(text: str) -> str:
    """Read character references; a number of thousands of digits, which Python refuses to read, is no letter's."""
    return entities.unescape(_NUMBERED.sub(lambda match: f"&#{1114112 if match[2] else match[1] or 0}", text))


def _arbitrary(name: str) -> bool:
    # `w-[37px]`: something between the first bracket and the last
    return 0 <= name.find("[") < name.rfind("]") - 1


def _replace(opening: re.Pattern[str], change: Callable[[str], str], text: str) -> str:
    """Put `change(tag)` in the place of every tag that begins with `opening` and ends with the next ">"."""
    parts: list[str] = []
    at = 0
    while start := opening.search(text, at):
        end = text.find(">", start.end()) + 1
        if not end:  # as for all that begin later: the text is read once
            break
        parts += [text[at : start.start()], change(text[start.start() : end])]
        at = end
    return "".join([*parts, text[at:]])


def _refresh(tag: str, flags: set[str]) -> str:
    if "refresh" not in tag.lower():
        return tag
    flags.add("meta-refresh")
    return ""


def _inline(text: str, classes: frozenset[str], flags: set[str]) -> str:
    """Put the purged style sheet where the page takes Tailwind from; note other outside links.

    Which of several links are comments only the browser knows: each of the first `_SHEETS` gets the style sheet.
    """
    style: list[str] = []

    def sheet() -> str:
        if len(style) == _SHEETS:
            return ""
        style.append(style[0] if style else "<style>" + tailwind.purge(classes) + "</style>")
        return style[0]

    def link(tag: str) -> str:
        attributes = _attributes(tag)
        address = attributes.get("href", "")
        if "stylesheet" not in attributes.get("rel", "").lower():
            return tag
        if "tailwind" in address.lower():
            version = _TAILWIND_VERSION.search(address)
            if version and version.group(1) not in ("2", "2.2", tailwind.VERSION):
                flags.add("tailwind-other")
            return sheet()
        if _REMOTE.match(address):
            flags.add("external-stylesheet")
        return tag

    def script(tag: str) -> str:
        address = _attributes(tag).get("src")
        if address is None:
            flags.add("script")
            return tag
        if "tailwind" in address.lower():
            flags.add("tailwind-other")
            return sheet() + tag
        flags.add("external-script")
        return tag

    return _replace(_SCRIPT, script, _replace(_LINK, link, text))


def _attributes(tag: str) -> dict[str, str]:
    attributes: dict[str, str] = {}
    for name, quoted, single, bare in _ATTRIBUTE.findall(tag):
        attributes.setdefault(name.lower(), _unescape(quoted or single or bare))
    return attributes
