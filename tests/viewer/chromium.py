"""A Chromium for the tests of the viewer's pages: it reaches this machine's servers and files, and nothing else.

(sweetrl.browser's is for untrusted pages: it has no network at all, and draws frames on request only.)
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweetrl.browser.devtools import START_SECONDS, Browser

if TYPE_CHECKING:
    from sweetrl.viewer.server import Viewer

FLAGS = (
    "--headless",
    "--remote-debugging-pipe",
    "--disable-gpu",
    "--hide-scrollbars",
    "--no-first-run",
    "--no-default-browser-check",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
    "--password-store=basic",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost",
    "--lang=en-US",
    "about:blank",
)
# Puts the pipe's ends where Chromium looks for them; root becomes nobody, because Chromium's sandbox wants that.
LAUNCH = (
    "import os, sys\n"
    "a, b, home = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]\n"
    "import fcntl\n"
    "a, b = (fcntl.fcntl(fd, fcntl.F_DUPFD, 10) for fd in (a, b))\n"
    "os.dup2(a, 3); os.dup2(b, 4)\n"
    "if os.geteuid() == 0:\n"
    "    os.setgroups([]); os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)\n"
    "env = {'HOME': home, 'TMPDIR': home, 'PATH': '/usr/bin:/bin', 'LANG': 'C.UTF-8', 'TZ': 'UTC'}\n"
    "os.execve(sys.argv[4], sys.argv[4:] + ['--user-data-dir=' + home + '/profile'], env)\n"
)


class Chromium(Browser):
    """One Chromium process; `tab` opens pages."""

    def _start(self, program: Path, memory_mib: int) -> None:
        to_browser, self._out = os.pipe()
        self._in, from_browser = os.pipe()
        command = [sys.executable, "-I", "-S", "-c", LAUNCH, str(to_browser), str(from_browser), str(self._folder)]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*command, str(program), *FLAGS],
                pass_fds=(to_browser, from_browser),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                start_new_session=True,
            )
        os.close(to_browser)
        os.close(from_browser)
        threading.Thread(target=self._read, name="browser-pipe", daemon=True).start()
        self.version: str = self.call("Browser.getVersion", timeout=START_SECONDS)["product"]

    def tab(self, width: int = 1280, height: int = 900, dark: bool = False) -> Tab:
        """Open an empty page of a size."""
        return Tab(self, width, height, dark)

    @contextlib.contextmanager
    def looking(self, address: str) -> Iterator[Tab]:
        """The page at an address, which logs no error."""
        tab = self.tab()
        tab.go(address)
        yield tab
        assert tab.errors == []
        tab.close()


class Tab:
    """A page: go somewhere, evaluate JavaScript, press keys, wait, look. What it logs as an error is in `errors`."""

    def __init__(self, browser: Chromium, width: int, height: int, dark: bool) -> None:
        self.browser, self.errors = browser, list[str]()
        target = browser.call("Target.createTarget", url="about:blank")["targetId"]
        self.target = target
        self.session = browser.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        browser.listen(self.session, self._heard)
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.size(width, height)
        if dark:
            self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self.browser.call(method, self.session, 60.0, **parameters)

    def size(self, width: int, height: int) -> None:
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def go(self, address: str) -> None:
        """Load an address and wait until the page says that its table is complete."""
        self.call("Page.navigate", url="about:blank")
        self.call("Page.navigate", url=address)
        self.until("document.body && document.body.dataset.ready === 'yes'")

    def to(self, fragment: str) -> None:
        """Go to another address of the same page."""
        self.js(f"location.hash = {json.dumps(fragment.removeprefix('#'))}; 0")
        self.settle()

    def js(self, expression: str) -> Any:
        """Evaluate an expression; an exception in it fails the test."""
        reply = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in reply:
            raise AssertionError(reply["exceptionDetails"].get("exception", {}).get("description", reply))
        return reply["result"].get("value")

    def until(self, expression: str, seconds: float = 20.0) -> Any:
        """Wait for an expression to be true, and return its value."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            value = self.js(expression)
            if value:
                return value
            time.sleep(0.03)
        raise AssertionError(
            f"never true: {expression}\n{self.errors}\n{self.js('document.body.innerText.slice(0, 800)')}"
        )

    def settle(self) -> None:
        """Wait for two frames, so that what follows from a change has been drawn."""
        self.js("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done, 0))))")

    def key(self, key: str) -> None:
        """Press a key."""
        text = {"text": key} if len(key) == 1 else {"text": "\r"} if key == "Enter" else {}
        codes = {"Enter": 13, "Escape": 27, "ArrowDown": 40, "ArrowUp": 38, "Tab": 9}
        code = {"windowsVirtualKeyCode": codes[key]} if key in codes else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, **text, **code)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, **code)
        self.settle()

    def text(self, selector: str = "body") -> str:
        return str(self.js(f"(document.querySelector({json.dumps(selector)}) || {{}}).innerText || ''"))

    def click(self, selector: str) -> None:
        """Click the first element of a selector, which is there."""
        self.until(f"!!document.querySelector({json.dumps(selector)})", 15)
        self.js(f"document.querySelector({json.dumps(selector)}).click(); 0")
        self.settle()

    def press(self, words: str) -> None:
        """Click the first button that says `words`."""
        says = f"el => el.textContent.includes({json.dumps(words)})"
        self.js(f"[...document.querySelectorAll('button')].find({says}).click(); 0")
        self.settle()

    def picture(self, path: Path) -> None:
        """Write the visible part of the page as PNG."""
        self.settle()
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def close(self) -> None:
        self.browser.call("Target.closeTarget", targetId=self.target)

    def _heard(self, method: str, parameters: dict[str, Any]) -> None:
        if method == "Runtime.exceptionThrown":
            self.errors.append(str(parameters["exceptionDetails"].get("exception", {}).get("description")))
        elif method == "Log.entryAdded" and parameters["entry"]["level"] == "error":
            self.errors.append(str(parameters["entry"].get("text")) + " " + str(parameters["entry"].get("url")))


def wait_for(holds: Callable[[], Any], seconds: float = 30.0) -> Any:
    """Wait until `holds` returns something true."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if value := holds():
            return value
        time.sleep(0.03)
    raise AssertionError("never true")


@contextlib.contextmanager
def serving(viewer: Viewer) -> Iterator[str]:
    """Serve the viewer at a free port; yield the address."""
    from sweetrl.viewer.server import make_app
    from tests.signals import answering

    with answering(make_app(viewer)) as url:
        yield f"{url}/"
