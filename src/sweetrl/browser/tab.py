"""One tab of the browser: renders one page after the other, each within its time."""

from __future__ import annotations

import base64
import json
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from sweetrl.browser import facts, ink, placeholders, reading
from sweetrl.browser.devtools import Browser, Call, CallError, Clock, PageCrashed
from sweetrl.browser.page import Page, Status
from sweetrl.browser.prepare import Prepared

# After such a page the tab gets a fresh document: these leave something behind in the old one (policies, focus, frames,
# the colour scheme, colours of links). Tags by their start: a style sheet full of `@keyframes` has no frame. Of `meta`
# all but what every page has: which one it is can be written in many ways.
_STICKY = re.compile(
    r"http-equiv|autofocus|referrer|popover|<(?:base|i?frame|frameset|fencedframe|object|embed|portal|dialog)"
    r"|<meta(?!\s+charset=[\"']?[\w-]+[\"']?\s*/?>|\s+name=[\"']?viewport[\"']?\s+content=[\"'][\w=.,\s-]*[\"']\s*/?>)"
    r"|[\s\"'/][av]?link\s*=",
    re.I,
)
# Runs in an isolated world, out of the page's reach. Animations are put back to their start. Pictures must be
# decoded before the page is painted: those of the document itself, and those of styles, which nothing else waits for.
_SETTLE = """(async () => {
  for (const svg of document.querySelectorAll('svg')) { svg.pauseAnimations(); svg.setCurrentTime(0); }
  for (const bar of document.querySelectorAll('progress:indeterminate')) bar.value = 0;
  const urls = new Set(), all = [];
  for (const image of document.images) if (image.src || image.srcset) {
    image.loading = 'eager';  // where scripts are allowed, one that is lazy would wait for somebody who scrolls
    all.push(image.decode());
  }
  let count = 0;
  for (const node of document.querySelectorAll('*')) {
    if (++count > 3000) break;
    for (const pseudo of [null, '::before', '::after']) {
      const matches = getComputedStyle(node, pseudo).backgroundImage.matchAll(/url\\("([^"]*)"\\)/g);
      for (const match of matches) urls.add(match[1]);
    }
  }
  for (const url of [...urls].slice(0, 200)) { const image = new Image(); image.src = url; all.push(image.decode()); }
  await Promise.allSettled(all);
  return all.length;
})()"""

# Hides texts or things by a rule and changes nothing else: no place, no line, no other colour. An adopted style sheet
# stands in no tree that a selector of the page could look at, and its layer is the one of `prepare`, whose important
# declarations win over the page's. What a page shows all the same does not change, and so counts as not seen.
_HIDE = """((rule, property, word, frame) => {
  const sheet = new CSSStyleSheet();
  sheet.replaceSync(`@layer still{${rule}}`);
  document.adoptedStyleSheets = [sheet];
  let count = 0;
  if (word) for (const node of document.querySelectorAll('*')) {
    if (++count > 5000) break;
    if (getComputedStyle(node)[property].includes(word)) node.animate(frame, 1e9).pause();
  }
})"""
_LEAST = "(() => { scrollTo(-1e9, 0); const least = scrollX; scrollTo(0, 0); return least; })()"
_SHOW = "document.adoptedStyleSheets = []; for (const animation of document.getAnimations()) animation.cancel();"
_TEXTS = (
    "*,*::before,*::after,*::marker,*::placeholder,*::first-line,*::first-letter,::file-selector-button{"
    "-webkit-text-fill-color:transparent!important;-webkit-text-stroke-color:transparent!important;"
    "text-shadow:none!important;text-decoration-color:transparent!important;"
    "text-emphasis-color:transparent!important}"
)
_THINGS = f"{','.join(sorted(ink.THINGS))}{{opacity:0!important}}"
_NO_GROUND = {"backgroundColor": ["transparent"] * 2, "backgroundImage": ["none"] * 2}
_NO_IMAGE = {"backgroundImage": ["none"] * 2}


def _pauses() -> Iterator[float]:
    """Seconds between two requests for a frame: too many frames would slow down what the page still does."""
    pause = 0.001
    while True:
        yield pause
        pause = min(1.5 * pause, 0.05)


# What in a page could run a script, where scripts are allowed.
_SCRIPT = re.compile(r"<script|\bon\w+\s*=|javascript|<i?frame|srcdoc|<object|<embed", re.I)


class View(NamedTuple):
    """How a page is looked at: the window's size in CSS pixels, and whether scripts run."""

    width: int
    height: int
    scripts: bool


def other_views(view: View) -> tuple[View, View]:
    """Return how people look at the page of `view`: with scripts, in a smaller window and in a larger one.

    A page can ask for either, in more ways than could be listed (queries, percentages, `noscript`), and show something
    to its judge alone. So every page is looked at again, not only those that seem to ask, and not only those that
    score high. Both windows stay between Tailwind's breakpoints `xl` and `2xl`: an honest page hardly changes.
    """
    width, height = view.width, view.height
    return View(width * 15 // 16, height * 7 // 8, True), View(width * 17 // 16, height * 9 // 8, True)


class PageMoved(Exception):
    """The page went somewhere else while it was rendered."""


class Shot(NamedTuple):
    """A rendered page, and what it shows (sweetrl.browser.ink.glance)."""

    page: Page
    shows: Counter[str]


class Tab:
    """A browser context of its own with one page in it. One thread at a time.

    `spent` says that a page may have run scripts in it: nobody knows what these leave behind.
    """

    def __init__(self, browser: Browser, width: int, height: int):
        self.browser = browser
        self.pages = 0
        self.spent = False
        self._view = View(width, height, False)
        self._crashed = False
        self._moved = False
        self._loaded = threading.Event()
        self._clean = self._fresh = True
        self._left = 0  # CSS pixels of the page to the left of its picture
        self._context = browser.call("Target.createBrowserContext", timeout=30.0)["browserContextId"]
        target = browser.call(
            "Target.createTarget",
            timeout=30.0,
            url="about:blank",
            browserContextId=self._context,
            width=width,
            height=height,
            enableBeginFrameControl=True,
        )["targetId"]
        self._session = browser.call("Target.attachToTarget", timeout=30.0, targetId=target, flatten=True)["sessionId"]
        # A headless shell draws a frame when it is asked for one; a desktop browser does not know this call.
        self._stepped = True
        try:
            browser.call("HeadlessExperimental.enable", self._session, timeout=30.0)
        except CallError:
            self._stepped = False
        browser.listen(self._session, self._event)
        calls: list[tuple[str, dict[str, Any]]] = [
            ("Page.enable", {}),
            ("Inspector.enable", {}),
            ("Emulation.setScriptExecutionDisabled", {"value": True}),
            # What no style sheet of ours reaches stands still, too: shadow trees, inner pages, parts of controls.
            ("Animation.enable", {}),
            ("Animation.setPlaybackRate", {"playbackRate": 0}),
            ("Fetch.enable", {"patterns": [{"urlPattern": "*"}]}),
            ("Emulation.setDeviceMetricsOverride", _metrics(self._view)),
        ]
        for call in [browser.send(method, self._session, **parameters) for method, parameters in calls]:
            browser.wait(call, 30.0)
        self._frame = ""
        self._frame = self._call("Page.getFrameTree", Clock(browser, 30.0))["frameTree"]["frame"]["id"]

    def render(
        self, page: Prepared, view: View, maximum_height: int, seconds: float, shown: Counter[str] | None = None
    ) -> Shot | None:
        """Render one page in a view; return None where it shows the same as `shown` (Shot.shows).

        Raises PageMoved, CallTimeout, PageCrashed, CallError or BrowserGone; then close the tab.
        """
        clock = Clock(self.browser, seconds)
        width, height = view[:2]
        snapshot, full_height = self._look(page, view, clock)
        status: Status = "ok" if full_height <= maximum_height else "truncated"
        full_height = min(full_height, maximum_height)
        self._left = self._beyond_left(clock) if full_height > height and facts.content_width(snapshot) > width else 0
        png = self._picture(full_height, clock)
        page_facts = facts.read_facts(snapshot, width, full_height)
        picture = ink.pixels(png)
        shows = ink.glance(picture, page_facts)
        if shown is not None and ink.agree(shows, shown):
            if self._moved:
                raise PageMoved
            return None
        # Letters that are cut out of a background go with it, and pictures of styles with their style.
        clipped = any(line.clear for line in page_facts.lines)
        styled = any(element.role == "image" and element.tag not in ink.THINGS for element in page_facts.elements)
        texts = things = None
        if not clipped and not styled and ink.apart(page_facts):
            if page_facts.lines or any(map(ink.is_thing, page_facts.elements)):
                texts = things = self._picture_without(_TEXTS + _THINGS, "", "", {}, full_height, clock)
        else:
            if page_facts.lines:
                word = "text" if clipped else ""
                texts = self._picture_without(_TEXTS, "backgroundClip", word, _NO_GROUND, full_height, clock)
            if any(map(ink.is_thing, page_facts.elements)):
                word = "url(" if styled else ""
                things = self._picture_without(_THINGS, "backgroundImage", word, _NO_IMAGE, full_height, clock)
        sheet = self._sheet(page_facts.lines, full_height, clock) if texts else None
        elements, unread = ink.visible(ink.Pictures(picture, texts, things, sheet), page_facts)
        if self._moved:
            raise PageMoved
        return Shot(Page(png, width, full_height, elements, page_facts.background, status, unread=unread), shows)

    def _look(self, page: Prepared, view: View, clock: Clock) -> tuple[dict[str, Any], int]:
        """Open the page in a view; return the snapshot of it and its height."""
        if not self._clean:
            self._renew(clock)
        if view != self._view:
            self._call("Emulation.setScriptExecutionDisabled", clock, value=not view.scripts)
            self._call("Emulation.setDeviceMetricsOverride", clock, **_metrics(view))
            self._view = view
        self.pages += 1
        self._left = 0
        self.spent = self.spent or (view.scripts and _SCRIPT.search(page.html) is not None)
        fresh, snapshot = self._fresh, self._open(page, clock)
        if facts.is_scrolled(snapshot) and not fresh:  # where the page before has left it, perhaps
            self._renew(clock)
            snapshot = self._open(page, clock)
        self._clean = not facts.is_scrolled(snapshot) and _STICKY.search(page.html) is None
        self._fresh = False
        return snapshot, max(facts.content_height(snapshot), view.height)

    def _open(self, page: Prepared, clock: Clock) -> dict[str, Any]:
        """Load the page into the document; return the document's snapshot."""
        self._write(page.html, clock)
        if page.unsettled or self.spent:
            self._settle(clock)
        return self._call("DOMSnapshot.captureSnapshot", clock, computedStyles=list(facts.STYLES))

    def _write(self, html: str, clock: Clock) -> None:
        """Replace the document by a page."""
        self._loaded.clear()
        self._call("Page.setDocumentContent", clock, frameId=self._frame, html=html)
        clock.wait(self._loaded)
        if self._crashed:
            raise PageCrashed

    def _sheet(self, lines: Sequence[facts.Line], full_height: int, clock: Clock) -> bytes:
        """Return the picture of the lines written again; this replaces the page in the tab."""
        if not self._clean:
            self._renew(clock)
        self._left = 0
        self._write(reading.sheet(lines[: ink.LIMIT], self._view.width, full_height), clock)
        return self._picture(full_height, clock)

    def _beyond_left(self, clock: Clock) -> int:
        """How far the page can be scrolled left of its beginning; pages that are read from right to left can be."""
        context = self._world("left", clock)
        least = self._call("Runtime.evaluate", clock, contextId=context, expression=_LEAST, returnByValue=True)
        return -int(least["result"]["value"])

    def close(self) -> None:
        """Give the context back, whatever state its page is in; does not wait."""
        self.browser.forget(self._session, PageCrashed())
        self.browser.send("Target.disposeBrowserContext", browserContextId=self._context)

    def _picture(self, full_height: int, clock: Clock) -> bytes:
        """Return the PNG of the page from its upper left corner, `full_height` pixels high."""
        width, height = self._view[:2]
        form = {"format": "png", "optimizeForSpeed": True}
        if self._stepped and full_height == height:
            # One frame is drawn, and it is the picture; a screenshot on request costs a second frame.
            for pause in _pauses():
                painted = self._paint(clock, screenshot=form)
                if "screenshotData" in painted:
                    return base64.b64decode(painted["screenshotData"])
                time.sleep(min(pause, clock.left()))
        # Beyond the viewport costs two more layouts, and most pages are not taller.
        clip = {"x": self._left, "y": 0, "width": width, "height": full_height, "scale": 1}
        beyond = full_height > height
        taken = self._draw("Page.captureScreenshot", clock, **form, captureBeyondViewport=beyond, clip=clip)
        return base64.b64decode(taken["data"])

    def _picture_without(
        self, rule: str, attribute: str, word: str, frame: dict[str, list[str]], full_height: int, clock: Clock
    ) -> bytes:
        """Return the same picture under one more `rule`, and with `frame` for all whose `attribute` holds `word`."""
        context = self._world("ink", clock)
        hide = f"{_HIDE}({json.dumps(rule)}, {json.dumps(attribute)}, {json.dumps(word)}, {json.dumps(frame)})"
        self._call("Runtime.evaluate", clock, contextId=context, expression=hide)
        png = self._picture(full_height, clock)
        # Undone before the next page, which comes into the same document; nothing waits for it.
        self.browser.send("Runtime.evaluate", self._session, contextId=context, expression=_SHOW)
        return png

    def _draw(self, method: str, clock: Clock, **parameters: Any) -> dict[str, Any]:
        """Call a method that is answered only after the next frames, and request these where the browser draws none."""
        call = self._send(method, **parameters)
        if self._stepped:
            for pause in _pauses():
                self._paint(clock)
                if call.done.wait(min(pause, clock.left())):
                    break
        return self.browser.wait(call, clock)

    def _paint(self, clock: Clock, **parameters: Any) -> dict[str, Any]:
        """Have one frame drawn."""
        while not self.browser.frames.acquire(timeout=clock.left()):
            pass
        try:
            return self._call("HeadlessExperimental.beginFrame", clock, **parameters)
        finally:
            self.browser.frames.release()

    def _renew(self, clock: Clock) -> None:
        """Open a new document: what pages leave in the old one (policies, focus, timers) must not reach the next."""
        self._loaded.clear()
        self._call("Page.navigate", clock, url="about:blank")
        clock.wait(self._loaded)
        self._clean, self._fresh, self._moved = True, True, False

    def _settle(self, clock: Clock) -> None:
        context = self._world("settle", clock)
        try:
            self._draw("Runtime.evaluate", clock, contextId=context, expression=_SETTLE, awaitPromise=True)
        except CallError as error:
            raise PageMoved from error  # the document went away under it

    def _world(self, name: str, clock: Clock) -> int:
        """An isolated world in the page's document: a context that shares no objects with the page's scripts."""
        world = self._call("Page.createIsolatedWorld", clock, frameId=self._frame, worldName=name)
        return int(world["executionContextId"])

    def _call(self, method: str, clock: Clock, **parameters: Any) -> dict[str, Any]:
        return self.browser.wait(self._send(method, **parameters), clock)

    def _send(self, method: str, **parameters: Any) -> Call:
        if self._crashed:
            raise PageCrashed
        return self.browser.send(method, self._session, **parameters)

    def _event(self, method: str, parameters: dict[str, Any]) -> None:
        """On the pipe's thread: must not wait."""
        if method == "Page.loadEventFired":
            self._loaded.set()
        elif method == "Page.frameRequestedNavigation":
            self._moved = self._moved or parameters.get("frameId") == self._frame
        elif method == "Fetch.requestPaused":
            self._answer(parameters)
        elif method == "Page.javascriptDialogOpening":
            self.browser.send("Page.handleJavaScriptDialog", self._session, accept=False)
        elif method in ("Inspector.targetCrashed", "Inspector.detached", "Target.targetCrashed"):
            self._crashed = True
            self._loaded.set()
            self.browser.forget(self._session, PageCrashed())

    def _answer(self, paused: dict[str, Any]) -> None:
        """No request leaves the browser: pictures of placeholder services are drawn here, everything else fails."""
        request, size = paused["requestId"], None
        if paused.get("resourceType") == "Image":
            size = placeholders.size(paused["request"]["url"])
        if size is None:
            self.browser.send("Fetch.failRequest", self._session, requestId=request, errorReason="BlockedByClient")
            return
        self.browser.send(
            "Fetch.fulfillRequest",
            self._session,
            requestId=request,
            responseCode=200,
            responseHeaders=[{"name": "Content-Type", "value": "image/svg+xml"}],
            body=base64.b64encode(placeholders.picture(*size)).decode(),
        )


def _metrics(view: View) -> dict[str, Any]:
    return {"width": view.width, "height": view.height, "deviceScaleFactor": 1, "mobile": False}
