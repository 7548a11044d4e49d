"""Rendered pages on disk, by HTML and renderer: one file for each, a line of JSON and then the picture."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from sweetrl.browser.page import Box, Element, Page
from sweetrl.io import atomic_path


class PageCache:
    """A folder of pages; removing it costs time only."""

    def __init__(self, folder: Path):
        self.folder = Path(folder)

    def get(self, html: str, renderer: str) -> Page | None:
        """Return the page, or None where it is not there or its file is damaged."""
        try:
            head, _, rest = self._path(html, renderer).read_bytes().partition(b"\n")
            pages = list[Page | None]()
            for stored in json.loads(head):
                if stored is None:
                    pages.append(None)
                    continue
                size = int(stored.pop("bytes"))
                pages.append(Page(png=rest[:size], **_read(stored)))
                if len(rest) < size:
                    return None
                rest = rest[size:]
            page, *others = pages
            return None if rest or page is None else replace(page, others=tuple(others))
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None

    def put(self, html: str, page: Page) -> None:
        """Keep the page if it would come out the same again: a page that ran out of time might not."""
        pages = (page, *page.others)
        if any(each is not None and each.status not in ("ok", "truncated") for each in pages):
            return
        stored = list[dict[str, Any] | None]()
        for each in pages:
            facts = None if each is None else asdict(replace(each, png=b"", others=()))
            if each is not None and facts is not None:
                del facts["png"], facts["others"]
                facts["bytes"] = len(each.png)
            stored.append(facts)
        head = json.dumps(stored, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
        with atomic_path(self._path(html, page.renderer)) as temporary:
            temporary.write_bytes(b"".join([head, b"\n", *(each.png for each in pages if each is not None)]))

    def _path(self, html: str, renderer: str) -> Path:
        key = hashlib.sha256(f"{renderer}\0{html}".encode("utf-8", "surrogatepass")).hexdigest()
        return self.folder / key[:2] / f"{key[2:34]}.page"


def _read(stored: dict[str, Any]) -> dict[str, Any]:
    elements = tuple(
        Element(
            **{
                **element,
                "box": Box(**element["box"]),
                "color": tuple(element["color"]),
                "background": None if element["background"] is None else tuple(element["background"]),
            }
        )
        for element in stored["elements"]
    )
    return {
        **stored,
        "elements": elements,
        "unread": tuple(Box(**each) for each in stored["unread"]),
        "background": tuple(stored["background"]),
        "flags": tuple(stored["flags"]),
    }
