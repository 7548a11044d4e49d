"""The renderer that the rest of the package uses: HTML in, pages out; one service for each process and settings."""

from __future__ import annotations

import atexit
import os
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from sweetrl.browser.cache import PageCache
from sweetrl.browser.page import Page
from sweetrl.browser.prepare import prepare
from sweetrl.browser.service import Service
from sweetrl.errors import UserError

if TYPE_CHECKING:
    from sweetrl.config.settings import BrowserSettings

_services: dict[tuple[int, str], tuple[Service, int]] = {}
_lock = threading.Lock()


class Renderer:
    """Renders untrusted HTML; thread-safe. Renderers with equal settings share one browser in a process.

    Making one raises a UserError where no browser is found; the browser itself starts with the first page.
    """

    def __init__(self, settings: BrowserSettings):
        self.settings = settings
        self._key = (os.getpid(), settings.model_dump_json())
        with _lock:
            service, users = _services.get(self._key) or (Service(settings), 0)
            _services[self._key] = (service, users + 1)
        self._service = service
        self._cache = PageCache(Path(settings.cache)) if settings.cache else None
        self._open = True

    @property
    def name(self) -> str:
        """What draws the pages (Page.renderer); starts the browser."""
        return self._service.renderer

    @property
    def isolated(self) -> bool:
        """Whether the browser runs without network and without sight of the machine's data; valid once it started."""
        return self._service.isolated

    def render(self, html: str) -> Page:
        """Render one page. It always comes back: `status` says how it went.

        Raises a UserError only where the browser does not start or does not even render an empty page.
        """
        if not self._open:
            raise UserError("the renderer is closed; make a new one.")
        if os.getpid() != self._key[0]:
            raise RuntimeError("a renderer does not outlive a fork: make one in the new process")
        if self._cache is not None:
            cached = self._cache.get(html, self.name)
            if cached is not None:
                return cached
        page = self._service.render(prepare(html))
        if self._cache is not None:
            self._cache.put(html, page)
        return page

    def render_many(self, htmls: Iterable[str]) -> Iterator[Page]:
        """Render pages side by side and yield them in the order given; reads ahead only as far as it needs."""
        waiting: deque[Future[Page]] = deque()
        with ThreadPoolExecutor(self.settings.tabs, thread_name_prefix="render") as pool:
            try:
                for html in htmls:
                    waiting.append(pool.submit(self.render, html))
                    if len(waiting) > 2 * self.settings.tabs:
                        yield waiting.popleft().result()
                while waiting:
                    yield waiting.popleft().result()
            finally:
                for future in waiting:
                    future.cancel()

    def close(self) -> None:
        """Give the browser back; the last renderer of its settings ends it."""
        if not self._open:
            return
        self._open = False
        with _lock:
            service, users = _services.pop(self._key, (self._service, 1))
            if users > 1:
                _services[self._key] = (service, users - 1)
                return
        service.close()

    def __enter__(self) -> Renderer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@atexit.register
def _close_all() -> None:
    with _lock:
        services = [service for (pid, _), (service, _) in _services.items() if pid == os.getpid()]
        _services.clear()
    for service in services:
        service.close()
