"""A process's single browser: tabs for many threads, recycled as they age, replaced when they fail.

A page fails for two reasons that must not be mixed up: the renderer (a crash that another page caused, a busy machine)
or the page itself. So a page that fails among others is rendered again, alone, in a new browser and with twice the
time (twice, if the browser ended). Only a failure then counts against it, and none does if an empty page fails, too.
"""

from __future__ import annotations

import ctypes
import io
import logging
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from sweetrl.browser.binary import INSTALL, find_browser, fonts_fingerprint
from sweetrl.browser.devtools import Browser, BrowserGone, CallError, CallTimeout, PageCrashed
from sweetrl.browser.facts import WHITE
from sweetrl.browser.page import Page, Status
from sweetrl.browser.prepare import Prepared, prepare, stay
from sweetrl.browser.tab import PageMoved, Shot, Tab, View, other_views
from sweetrl.config.settings import BrowserSettings
from sweetrl.errors import UserError
from sweetrl.text import printable

logger = logging.getLogger("sweetrl")
RULES = 8  # to be raised with every change of this package that changes pixels or facts
_FAILURES = (CallTimeout, CallError, PageCrashed, PageMoved, BrowserGone)
TRIM = 100  # pages between two returns of memory
RECYCLE = 200  # views of pages before a tab is replaced
RESTART = 1000  # views before the browser is replaced


class _Generation:
    """One browser process with its idle tabs; retired after so many pages, and closed when its last user is done."""

    def __init__(self, browser: Browser):
        self.browser = browser
        self.idle: list[Tab] = []
        self.users = 0
        self.pages = 0
        self.retired = False


class Service:
    """Renders prepared pages for any number of threads; see the module."""

    def __init__(self, settings: BrowserSettings):
        self.settings = settings
        self.program: Path = find_browser(settings.path)
        self._lock = threading.Condition()
        self._current: _Generation | None = None
        self._all: set[_Generation] = set()
        self._running = 0
        self._alone = False
        self._closed = False
        self._fonts = fonts_fingerprint()
        self._shots = 0
        self.isolated = False
        self.restarts = 0

    @property
    def renderer(self) -> str:
        """What draws: browser version, fonts, our rules, and the settings that change pixels."""
        set_ = self.settings
        script = " javascript" if set_.javascript else ""
        size = f"{set_.width}x{set_.height}<{set_.maximum_height}"
        return f"{self._generation().browser.version} fonts {self._fonts} rules {RULES} {size}{script}"

    def render(self, page: Prepared) -> Page:
        """Return what became of the page, as it is and in the other views (sweetrl.browser.tab.other_views).

        Raises UserError where not even an empty page is rendered.
        """
        set_, name, flags = self.settings, self.renderer, page.flags
        here = View(set_.width, set_.height, set_.javascript)
        shot, page = self._try(page, here)
        assert shot is not None
        shots: list[Shot | None] = [shot]
        for view in other_views(here):
            shots.append(None)
            if all(shot is None or shot.shows for shot in shots):  # what fails in one view is not tried in the next
                shots[-1], page = self._try(page, view, shot.shows)
        flags = tuple(sorted({*flags, *page.flags}))
        first, *others = (shot and replace(shot.page, flags=flags, renderer=name) for shot in shots)
        assert first is not None
        return replace(first, others=tuple(others))

    def _try(self, page: Prepared, view: View, shown: Counter[str] | None = None) -> tuple[Shot | None, Prepared]:
        """Render the page in a view, again where that fails; return the shot, and the page as last rendered."""
        seconds = self.settings.seconds
        failure: Status = "bad"
        for alone in (False, True, True):
            with self._turn(alone):
                try:
                    return self._render_once(page, view, seconds * (2 if alone else 1), shown), page
                except PageMoved:
                    page = stay(page)
                except CallTimeout:
                    if alone:
                        failure = "timeout"
                        self._check()
                        break
                except _FAILURES:
                    pass  # a browser that ends alone may still have been ended by somebody else: once more
        if failure == "bad":
            with self._turn(True):
                self._check()
        return self._blank(failure), page

    def close(self) -> None:
        """End the browser; later calls are refused."""
        with self._lock:
            self._closed = True
            generations, self._all, self._current = list(self._all), set(), None
        for generation in generations:
            generation.browser.close()

    @contextmanager
    def _turn(self, alone: bool) -> Iterator[None]:
        """Wait for a place among `tabs` pages at a time, or (`alone`) until no page is being rendered."""
        with self._lock:
            if alone:
                self._lock.wait_for(lambda: not self._alone)
                self._alone = True
                self._lock.wait_for(lambda: self._running == 0)
                self._retire()  # whatever a failed page left behind goes with the old browser
            else:
                self._lock.wait_for(lambda: not self._alone and self._running < self.settings.tabs)
            self._running += 1
        try:
            yield
        finally:
            with self._lock:
                self._running -= 1
                if alone:
                    self._alone = False
                self._lock.notify_all()

    def _render_once(self, page: Prepared, view: View, seconds: float, shown: Counter[str] | None) -> Shot | None:
        generation = self._generation(use=True)
        tab: Tab | None = None
        try:
            with self._lock:
                if generation.idle:
                    tab = generation.idle.pop()
            set_ = self.settings
            if tab is None:
                tab = Tab(generation.browser, set_.width, set_.height)
            shot = tab.render(page, view, set_.maximum_height, seconds, shown)
            if tab.pages < RECYCLE and not tab.spent:
                with self._lock:
                    generation.idle.append(tab)
            else:
                tab.close()
            with self._lock:
                self._shots += 1
                full = self._shots % TRIM == 0
            if full:
                give_memory_back()
            return shot
        except Exception as error:
            if tab is not None:
                with suppress(BrowserGone):
                    tab.close()
            if isinstance(error, _FAILURES):
                raise
            # Snapshots and pictures come from processes that have met the page: they may be anything.
            reason = f"{type(error).__name__}: {printable(str(error)[:200])}"
            logger.warning("what the browser says of a page cannot be read (%s)", reason)
            raise CallError("unreadable") from error
        finally:
            self._release(generation)

    def _generation(self, use: bool = False) -> _Generation:
        """The current browser; starts a new one where there is none, or the last one ended or is old."""
        with self._lock:
            if self._closed:
                raise UserError("the renderer is closed; make a new one.")
            current = self._current
            if current is not None and (not current.browser.alive or current.pages >= RESTART):
                self._retire()
                current = None
            if current is None:
                current = _Generation(Browser(self.program, self.settings.memory_mib))
                self.isolated = current.browser.isolated
                self.restarts += 1
                self._all.add(current)
                self._current = current
            if use:
                current.users += 1
                current.pages += 1
            return current

    def _retire(self) -> None:
        """Start no more pages in the current browser; call it under the lock."""
        old, self._current = self._current, None
        if old is not None:
            old.retired = True
            if old.users == 0:
                self._all.discard(old)
                old.browser.close()

    def _release(self, generation: _Generation) -> None:
        with self._lock:
            generation.users -= 1
            last = generation.retired and generation.users == 0
            if last:
                self._all.discard(generation)
        if last:
            generation.browser.close()

    def _check(self) -> None:
        """Raise a UserError if a new browser cannot render an empty page, either: the machine is to blame."""
        with self._lock:
            self._retire()
        limit = max(self.settings.seconds * 2, 30.0)
        try:
            self._render_once(
                prepare("<p>ready</p>"), View(self.settings.width, self.settings.height, False), limit, None
            )
        except _FAILURES as error:
            raise UserError(
                f"{self.program}: the browser does not even render an empty page ({type(error).__name__}); try "
                f"`sweetrl doctor`, free memory, or {INSTALL}."
            ) from error

    def _blank(self, status: Status) -> Shot:
        from PIL import Image

        target = io.BytesIO()
        Image.new("RGB", (self.settings.width, self.settings.height), WHITE).save(target, "PNG")
        page = Page(target.getvalue(), self.settings.width, self.settings.height, (), WHITE, status)
        return Shot(page, Counter())


def give_memory_back() -> None:
    """Return freed memory to the system, where the C library can.

    Pictures and snapshots of megabytes come and go in many threads, each with a heap of its own that only grows:
    without this, a process grows page by page although it holds no more.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
