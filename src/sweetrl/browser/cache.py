"""Rendered pages on disk, by HTML and renderer: one file of JSON for each."""

from __future__ import annotations

import hashlib
from pathlib import Path

from pydantic import TypeAdapter

from sweetrl.browser.page import Page
from sweetrl.io import atomic_path

_PAGE = TypeAdapter(Page)


class PageCache:
    """A folder of pages; removing it costs time only."""

    def __init__(self, folder: Path):
        self.folder = Path(folder)

    def get(self, html: str, renderer: str) -> Page | None:
        """Return the page, or None where it is not there or its file is damaged."""
        try:
            return _PAGE.validate_json(self._path(html, renderer).read_bytes())
        except (OSError, ValueError):
            return None

    def put(self, html: str, page: Page) -> None:
        """Keep the page if it would come out the same again: a page that ran out of time might not."""
        if any(view is not None and view.status not in ("ok", "truncated") for view in (page, *page.others)):
            return
        try:
            data = _PAGE.dump_json(page)
        except ValueError:  # half of a surrogate pair, which no file can hold
            return
        with atomic_path(self._path(html, page.renderer)) as temporary:
            temporary.write_bytes(data)

    def _path(self, html: str, renderer: str) -> Path:
        key = hashlib.sha256(f"{renderer}\0{html}".encode("utf-8", "surrogatepass")).hexdigest()
        return self.folder / key[:2] / f"{key[2:34]}.page"
