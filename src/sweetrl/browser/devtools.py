"""The DevTools protocol over two pipes: one browser process, calls from any thread, events to their listeners."""

from __future__ import annotations

import itertools
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from shutil import rmtree
from typing import Any

from sweetrl.browser.binary import INSTALL
from sweetrl.errors import UserError

logger = logging.getLogger("sweetrl")
Handler = Callable[[str, dict[str, Any]], None]
START_SECONDS = 60.0
LONGEST = 512 * 2**20  # bytes of a message: the picture of a large page has some 60 MiB
_LAUNCHER = Path(__file__).with_name("launch.py")

# No --no-sandbox, ever. Flags serve repeatable pixels, or silence: the browser fetches and writes nothing by itself.
FLAGS = (
    "--headless", "--remote-debugging-pipe", "--force-color-profile=srgb", "--force-device-scale-factor=1",
    "--disable-lcd-text", "--font-render-hinting=none", "--hide-scrollbars", "--disable-checker-imaging",
    "--disable-image-animation-resync", "--disable-threaded-animation", "--disable-new-content-rendering-timeout",
    "--enable-begin-frame-control", "--run-all-compositor-stages-before-draw",
    "--blink-settings=primaryHoverType=2,availableHoverTypes=2,primaryPointerType=4,availablePointerTypes=4",
    "--lang=en-US", "--disable-gpu", "--mute-audio", "--autoplay-policy=user-gesture-required", "--no-first-run",
    "--no-default-browser-check", "--disable-extensions", "--disable-component-update",
    "--disable-component-extensions-with-background-pages", "--disable-background-networking",
    "--disable-client-side-phishing-detection", "--disable-default-apps", "--disable-domain-reliability",
    "--disable-sync", "--disable-breakpad", "--disable-crash-reporter", "--disable-prompt-on-repost",
    "--disable-popup-blocking", "--disable-hang-monitor", "--disable-back-forward-cache",
    "--disable-features=Translate,MediaRouter,OptimizationHints,PaintHolding,DialMediaRouteProvider,WebUsb,Prerender2",
    "--metrics-recording-only", "--no-pings", "--password-store=basic", "--use-mock-keychain",
    "--host-resolver-rules=MAP * ~NOTFOUND", "--proxy-server=127.0.0.1:9", "--proxy-bypass-list=<-loopback>",
    "--dns-prefetch-disable", "--webrtc-ip-handling-policy=disable_non_proxied_udp", "about:blank",
)  # fmt: skip


class BrowserGone(Exception):
    """The browser process ended; what was under way must be called again."""


class PageCrashed(Exception):
    """The process that holds one page ended."""


class CallTimeout(Exception):
    """No answer in time."""


class CallError(Exception):
    """The browser refused a call, or its answer cannot be read."""


@dataclass(eq=False)
class Call:
    """A command that was sent: `done` is set with its answer or failure."""

    session: str | None
    done: threading.Event = field(default_factory=threading.Event)
    answer: dict[str, Any] = field(default_factory=dict)
    failure: Exception | None = None


class Browser:
    """One browser process and the pipe to it. Thread-safe; ended by `close` or when this process ends."""

    def __init__(self, program: Path, memory_mib: int):
        self._numbers = itertools.count(1)
        self._calls: dict[int, Call] = {}
        self._handlers: dict[str, Handler] = {}
        self._lock = threading.Lock()
        self._write_lock = threading.Lock()
        self.frames = threading.Lock()  # held while a frame is drawn on request: two at once end the browser
        self._gone = False
        self._listed = 0.0
        self._family: list[int] = []
        self._owner = os.getpid()
        # Used only where the machine allows no namespaces; else the browser has a /tmp of its own.
        self._folder = Path(tempfile.mkdtemp(prefix="sweetrl-browser-"))
        self._log = self._folder / "log"
        if os.geteuid() == 0:
            os.chown(self._folder, 65534, 65534)
        self._start(program, memory_mib)

    def _start(self, program: Path, memory_mib: int) -> None:
        to_browser, self._out = os.pipe()
        self._in, from_browser = os.pipe()
        status_reader, status_writer = os.pipe()
        ends = [str(number) for number in (to_browser, from_browser, status_writer)]
        command = [sys.executable, "-I", "-S", str(_LAUNCHER), *ends, str(memory_mib), str(program), *FLAGS]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                pass_fds=(to_browser, from_browser, status_writer),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                env={"TMPDIR": str(self._folder), "PATH": "/usr/bin:/bin"},
                start_new_session=True,
            )
        for descriptor in (to_browser, from_browser, status_writer):
            os.close(descriptor)
        # No network, and none of the machine's data folders.
        self.isolated = os.read(status_reader, 200) == b"isolated"
        os.close(status_reader)
        threading.Thread(target=self._read, name="browser-pipe", daemon=True).start()
        try:
            version = self.call("Browser.getVersion", timeout=START_SECONDS)
            self.version = str(version["product"])[:100]
        except (BrowserGone, CallTimeout, CallError, KeyError) as error:
            lines = self._log.read_text(errors="replace").strip().splitlines()
            self.close()
            why = next((line for line in reversed(lines) if "sandbox" in line.lower()), (lines or ["it ended"])[-1])
            advice = INSTALL
            if "sandbox" in why.lower():  # it is never switched off
                advice = "its own sandbox needs user namespaces: allow them to unprivileged users, or " + INSTALL
            raise UserError(f"{program}: the browser does not start ({why[-300:]}); {advice}.") from error

    @property
    def alive(self) -> bool:
        """Whether the pipe is still open."""
        return not self._gone

    @property
    def pid(self) -> int:
        """The process that leads the browser's process group."""
        return self._process.pid

    def cpu_seconds(self) -> float:
        """Processor time of all the browser's processes that run now (0 where the kernel does not tell)."""
        now = time.monotonic()
        if now - self._listed > 1.0:
            self._listed, self._family = now, _descendants(self._process.pid)
        return sum(_cpu_ticks(pid) for pid in self._family) / os.sysconf("SC_CLK_TCK")

    def call(self, method: str, session: str | None = None, timeout: float = 10.0, **parameters: Any) -> dict[str, Any]:
        """Send one command and wait for its result."""
        return self.wait(self.send(method, session, **parameters), timeout)

    def send(self, method: str, session: str | None = None, **parameters: Any) -> Call:
        """Send one command; `wait` fetches the result. Safe in handlers. Raises BrowserGone."""
        number, call = next(self._numbers), Call(session)
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        with self._lock:
            if self._gone:
                raise BrowserGone
            self._calls[number] = call
        self._write(message)
        return call

    @staticmethod
    def wait(call: Call, limit: float | Clock) -> dict[str, Any]:
        """Return the result of a sent command; raises CallTimeout, CallError, PageCrashed or BrowserGone."""
        if isinstance(limit, Clock):
            limit.wait(call.done)
        elif not call.done.wait(limit):
            raise CallTimeout
        if call.failure is not None:
            raise call.failure
        return call.answer

    def listen(self, session: str, handler: Handler) -> None:
        """Give a session's events to `handler` (method, params), on the pipe's thread: it must not wait."""
        with self._lock:
            self._handlers[session] = handler

    def forget(self, session: str, failure: Exception) -> None:
        """Drop a session: whoever waits for it gets `failure`."""
        with self._lock:
            self._handlers.pop(session, None)
            numbers = [number for number, call in self._calls.items() if call.session == session]
            calls = [self._calls.pop(number) for number in numbers]
        for call in calls:
            self._fail(call, failure)

    def close(self) -> None:
        """End the browser and everything it started."""
        if os.getpid() != self._owner:
            return  # a fork's copy: the browser is not its own
        self._gone = True
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        with self._write_lock:
            if self._out >= 0:
                os.close(self._out)
                self._out = -1
        self._end()
        rmtree(self._folder, ignore_errors=True)

    def _write(self, message: dict[str, Any]) -> None:
        data = memoryview(json.dumps(message, ensure_ascii=False).encode("utf-8", "replace") + b"\0")
        try:
            with self._write_lock:
                if self._out < 0:
                    raise BrowserGone
                while data:
                    data = data[os.write(self._out, data) :]
        except OSError as error:
            raise BrowserGone from error

    def _read(self) -> None:
        """The pipe's thread: hand out answers and events until the browser ends.

        Processes that have met a page write here: whatever cannot be read ends the browser, and nothing else.
        """
        try:
            for message in self._messages():
                self._take(json.loads(message))
        except Exception as error:
            logger.warning("the browser is ended: what it says cannot be read (%s)", type(error).__name__)
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        os.close(self._in)
        self._end()

    def _messages(self) -> Iterator[bytes]:
        """Yield what comes between two zeros, until the pipe is closed; one longer than LONGEST is an error."""
        pieces, size = list[bytes](), 0
        while True:
            try:
                piece = os.read(self._in, 1 << 20)
            except OSError:
                return
            if not piece:
                return
            *ends, rest = piece.split(b"\0")
            for end in ends:
                yield b"".join([*pieces, end])
                pieces, size = [], 0
            if rest:
                pieces.append(rest)
                size += len(rest)
            if size > LONGEST:
                raise ValueError("a message without an end")

    def _take(self, message: dict[str, Any]) -> None:
        number = message.get("id")
        if number is None:
            handler = self._handlers.get(message.get("sessionId", ""))
            if handler is not None:
                with suppress(BrowserGone):
                    handler(message["method"], message.get("params", {}))
            return
        answer, error = message.get("result"), message.get("error")
        refused = "" if isinstance(answer, dict) else str(error.get("message") if isinstance(error, dict) else error)
        with self._lock:
            call = self._calls.pop(number, None)
        if call is None:
            return
        if isinstance(answer, dict):
            call.answer = answer
        else:
            call.failure = CallError(refused[:200])
        call.done.set()

    def _fail(self, call: Call, failure: Exception) -> None:
        if not call.done.is_set():
            call.failure = failure
            call.done.set()

    def _end(self) -> None:
        with self._lock:
            self._gone = True
            calls, self._calls = list(self._calls.values()), {}
            handlers, self._handlers = list(self._handlers.values()), {}
        for call in calls:
            self._fail(call, BrowserGone())
        for handler in handlers:
            handler("Inspector.detached", {})


class Clock:
    """The time of one page: `seconds` on the wall, or more where a busy machine kept the browser from running.

    Time is over when `seconds` have passed *and* the browser has used as much processor time (it may be other pages';
    then the page gets its second try, alone), or when BUSY times `seconds` have passed.
    """

    BUSY = 6.0

    def __init__(self, browser: Browser, seconds: float):
        self._browser = browser
        self._seconds = seconds
        self._began = time.monotonic()
        self._cpu = browser.cpu_seconds()

    def wait(self, condition: threading.Event) -> None:
        """Wait until `condition`; raises CallTimeout when the time is over."""
        while not condition.wait(self.left()):
            pass

    def left(self) -> float:
        """Return the seconds until it is worth looking again; raises CallTimeout when the time is over."""
        passed = time.monotonic() - self._began
        if passed < self._seconds:
            return self._seconds - passed
        left = 0.9 * self._seconds - (self._browser.cpu_seconds() - self._cpu)
        if left <= 0 or passed >= self.BUSY * self._seconds:
            raise CallTimeout
        return max(left, 0.1)


def _descendants(pid: int) -> list[int]:
    processes, waiting = [], [pid]
    while waiting:
        process = waiting.pop()
        processes.append(process)
        try:
            for thread in Path(f"/proc/{process}/task").iterdir():
                waiting.extend(int(child) for child in (thread / "children").read_text().split())
        except OSError:
            continue  # it ended, or the kernel does not list children
    return processes


def _cpu_ticks(pid: int) -> int:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return int(fields[11]) + int(fields[12])
