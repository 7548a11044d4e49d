"""One zygote as the client sees it: started, given jobs to queue, timed, and replaced when it is gone."""

from __future__ import annotations

import contextlib
import json
import marshal
import math
import os
import selectors
import socket
import struct
import subprocess
import sys
import sysconfig
import tempfile
import time
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any

from sweetrl.errors import UserError
from sweetrl.sandbox.attempt import Attempt, Running, socket_pair
from sweetrl.sandbox.claims import describe_isolation, describe_status, is_safe, library_paths, schedule_of
from sweetrl.sandbox.limits import CallResult, Job, Limits, Outcome

_HERE = Path(__file__).parent
_MODULES = [
    *("zygote", "child", "values", "official", "semaphores"),
    *("guards", "landlock", "namespaces", "seccomp", "canaries"),
]
# What the interpreter of a zygote is started with: it reads its configuration and its code from a memory file.
_START = """
import marshal, os
config, parts = marshal.loads(os.read(0, os.fstat(0).st_size))
exec(parts.pop("zygote"))
main(config, parts)
"""
_READY_SECONDS = 60.0
_REPORT, _TIME = struct.Struct(">cQi?d"), struct.Struct(">cQdq?")  # as in zygote.py
# Jobs that a zygote is given in advance, so that neither side waits for the other to get a core.
_DEPTH = 4
# Where the kernel does not say how long a child waited for a core: below this share of a core it counts as asleep.
_ASLEEP = 0.05
# A child that does not get a core is waited for at most this many times as long.
_PATIENCE = 10.0
# Seconds that a child may take to begin, before any untrusted code runs in it.
_START_SECONDS = 60.0
_GLANCE_SECONDS = 0.05
_LATE = f"the sandbox process did not start within {_READY_SECONDS:.0f} s: run `sweetrl doctor`."


@lru_cache(maxsize=1)
def _code() -> dict[str, Any]:
    """The zygote's modules, compiled: a compiler would leave two megabytes of gaps in its memory and its children's."""
    paths = {name: _HERE / f"{name}.py" for name in _MODULES}
    return {
        name: compile(path.read_bytes(), str(path), "exec", dont_inherit=True, optimize=2)
        for name, path in paths.items()
    }


class Worker:
    """A zygote process and the job it is busy with. Used by the client's thread only, except where noted."""

    def __init__(self, limits: Limits, options: dict[str, Any], preload: tuple[str, ...]) -> None:
        self.limits = limits
        self.options = options
        self.preload = preload
        self.layers: tuple[str, ...] = ()
        self.due = float("inf")
        self._isolation = ""
        self._selector: selectors.BaseSelector | None = None
        self._queue: deque[Attempt] = deque()  # the first is at work, the others wait for it
        self._lost: list[Running] = []  # what the last zygote did not finish
        self._owner = os.getpid()
        self._process: subprocess.Popen[bytes] | None = None
        self._refused: float | None = None  # since when the machine has started no process for it
        self._sockets: tuple[socket.socket, ...] = ()
        self._take_bait: Callable[[], object] = lambda: None
        self._launch()

    # -- the process -------------------------------------------------------------------------------------------------

    def _launch(self) -> None:
        """Start a zygote; where others have taken all processes that the machine allows, say when to try again."""
        self.ready, now = False, time.monotonic()
        try:
            self._process = self._started()
        except OSError as error:
            self._take_bait()
            self._refused = self._refused or now
            if now - self._refused > _READY_SECONDS:
                text = f"the sandbox can start no process here ({error.strerror}): run `sweetrl doctor`."
                raise UserError(text) from error
            self.due = now + 0.2
            return
        self._refused = None
        if self._selector is not None:
            self.attach(self._selector)

    def _started(self) -> subprocess.Popen[bytes]:
        pairs = [socket_pair() for _ in range(2)]
        # The kernel's limit on a child's computing, where no clock stops it: more than all cores can do in its time.
        most = max(120.0, 2 * self.limits.wall_seconds * (os.cpu_count() or 1))
        config = {
            "control": pairs[0][1].fileno(),
            "jobs": pairs[1][1].fileno(),
            "limits": {**asdict(self.limits), "cpu_seconds": math.ceil(min(most, 1e9))},
            "preload": self.preload,
            "without": self.options["without"],
            "canaries": not self.options["unsafe"],
            "bait": self._lay_bait(),
            "stdlib": [sysconfig.get_path(name) for name in ("stdlib", "platstdlib")],
            "libraries": library_paths(self.options["libraries"]),
        }
        environment = {
            # -I would ignore it, and the order of sets would change from run to run
            "PYTHONHASHSEED": str(self.options["hash_seed"]),
            "PYTHONDONTWRITEBYTECODE": "1",
            "LC_ALL": "C.UTF-8",
            "TZ": "UTC",
            "PATH": "/nonexistent",
            "USER": "nobody",
            "LOGNAME": "nobody",
            "MALLOC_ARENA_MAX": "1",  # an arena for each thread would count against the memory's limit
            "LD_BIND_NOW": "1",  # every child would look its symbols up again
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
        }
        if library_path := os.environ.get("LD_LIBRARY_PATH"):  # without it an interpreter may not find its own library
            environment["LD_LIBRARY_PATH"] = library_path
        start = os.memfd_create("zygote", os.MFD_CLOEXEC)
        os.write(start, marshal.dumps((config, _code())))
        os.lseek(start, 0, os.SEEK_SET)
        self._sockets = self._control, self._jobs = pairs[0][0], pairs[1][0]
        self._jobs.setblocking(False)
        self._number = 0
        try:
            return subprocess.Popen(
                [sys.executable, "-S", "-s", "-P", "-c", _START, str(_HERE / "zygote.py")],
                stdin=start,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=environment,
                cwd="/",
                pass_fds=[zygote_end.fileno() for _, zygote_end in pairs],
                start_new_session=True,
            )
        finally:
            os.close(start)
            for _, zygote_end in pairs:
                zygote_end.close()

    def _lay_bait(self) -> str:
        """The path of a file that any user may write to, for the zygote to attack; removed when the zygote is ready."""
        handle, path = tempfile.mkstemp(prefix="sweetrl-canary-")
        self._take_bait = weakref.finalize(self, Path(path).unlink, missing_ok=True)
        os.write(handle, b"whole")
        os.fchmod(handle, 0o666)
        os.close(handle)
        return path

    def wait_ready(self) -> None:
        """Wait for the zygote's report; raises UserError where it is not safe to go on."""
        while self._process is None:
            time.sleep(0.2)
            self._launch()
        self._control.settimeout(_READY_SECONDS)
        try:
            self._greet(self._control.recv(1 << 16))
        except TimeoutError:
            raise UserError(_LATE) from None
        self._control.setblocking(False)

    def _greet(self, message: bytes) -> None:
        """Judge the zygote's report; raises UserError where it is not safe to go on."""
        self._take_bait()
        if not message:
            raise UserError("the sandbox process ended before it was ready: run `sweetrl doctor`.")
        hello = json.loads(message)
        if "error" in hello:
            raise UserError(f"the sandbox process could not start ({hello['error']}): run `sweetrl doctor`.")
        self.layers = tuple(hello["layers"])
        # Attacks without a report count as successful: they ended the process that should have reported.
        attacks = {**json.loads(hello["attacks"] or '{"report": true}'), "scratch": not hello["clean"]}
        succeeded = sorted(name for name, success in attacks.items() if success)
        if not self.options["unsafe"]:
            if not is_safe(self.layers):
                raise UserError(
                    f"this machine offers too little to hold untrusted code (only {', '.join(self.layers)}): use Linux "
                    "5.13 or newer with seccomp and Landlock or user namespaces, or accept the risk with "
                    "reward.unsafe: true."
                )
            if succeeded:
                raise UserError(
                    f"the sandbox's own attacks succeeded ({', '.join(succeeded)}), so nothing is scored: run "
                    "`sweetrl doctor`."
                )
        self._isolation = describe_isolation(self.layers)
        self.ready, self.due = True, float("inf")

    def attach(self, selector: selectors.BaseSelector) -> None:
        """Let `selector` watch the zygote's socket, from which its report may still have to come."""
        self._selector = selector
        if self._process is None:
            return
        self._control.setblocking(False)
        if not self.ready:
            self.due = time.monotonic() + _READY_SECONDS
        selector.register(self._control, selectors.EVENT_READ, self._on_control)

    def stop(self) -> None:
        """End the zygote and reap it."""
        if self._owner != os.getpid():
            return
        while self._queue:
            os.close(self._queue.popleft().file)
        self.forget()
        self._take_bait()
        process, self._process = self._process, None
        if process is None:
            return
        try:
            process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def forget(self) -> None:
        """In a forked copy of the client: let go of the sockets, so that the copy does not keep the zygote alive."""
        for end in self._sockets:
            end.close()

    def _replace(self) -> None:
        """The zygote is gone or useless: start another, and do again what was lost with it."""
        assert self._selector is not None
        if self._queue and not self._queue[0].killing:
            self._queue[0].read()
        self._lost += [attempt.running for attempt in self._queue]
        self._selector.unregister(self._control)
        self.stop()
        if self._lost and not self._lost[0].complete:
            self._lost[0].losses += 1
            if self._lost[0].losses > 1:  # twice is no accident: the call in progress is to blame
                self._lost[0].losses = 0
                self._lost[0].results.append(CallResult("killed", None, "the sandbox process died with it, twice"))
        self._launch()

    # -- jobs --------------------------------------------------------------------------------------------------------

    @property
    def room(self) -> int:
        """How many more jobs it may be given now."""
        return _DEPTH - len(self._queue) if self.ready else 0

    def begin(self, job: Job, future: Future[Outcome]) -> None:
        """Queue `job`; `future` is resolved when it is done."""
        if future.set_running_or_notify_cancel():
            self._try(Running(job, future, job.limits or self.limits))

    def _try(self, running: Running) -> None:
        """Queue the calls that are left for a fresh child."""
        if running.complete:
            running.resolve(self._isolation)
            return
        try:
            attempt = Attempt(self._number, running)
        except Exception as error:  # no descriptor is left here, or the job is invalid: the future gets the error
            running.future.set_exception(error)
            return
        self._number += 1
        running.children += 1
        with contextlib.suppress(OSError):  # the zygote is gone: the control socket's end tells
            attempt.send(self._jobs)
        self._queue.append(attempt)
        if len(self._queue) == 1:
            self._arm(attempt)

    def _arm(self, attempt: Attempt) -> None:
        """Set when to look at the first in the queue again if no report comes before."""
        if attempt.killing:
            self.due = float("inf")
        elif not attempt.begun:
            self.due = max(attempt.first + self._allowed(attempt), time.monotonic() + _GLANCE_SECONDS)
        else:
            self.due = attempt.progress + max(0.0, self._allowed(attempt)) + 0.002

    @staticmethod
    def _allowed(attempt: Attempt, scale: float = 1.0) -> float:
        """Seconds that the call in progress may take, of which `scale` count."""
        limits = attempt.running.limits
        used = attempt.running.spent + (attempt.progress - attempt.started) * scale
        return min(limits.call_seconds, limits.wall_seconds - used)

    def check(self) -> None:
        """The call in progress may have used its time by the clock: ask how much of it was spent on a core."""
        if self._process is None:
            self._launch()
            return
        if not self.ready:
            raise UserError(_LATE)
        attempt = self._queue[0]
        if self._read(attempt):
            self._arm(attempt)
            now = time.monotonic()
            if self.due <= now or not attempt.begun:
                self.due = float("inf")
                self._send(b"C")

    def _read(self, attempt: Attempt) -> bool:
        """Take what the child has written so far; False if the child is being killed."""
        if attempt.killing:
            return False
        if not attempt.read():
            self._kill(attempt, CallResult("refused", None, "a frame longer than allowed"))
        elif attempt.running.complete:
            self._kill(attempt, None)
        return not attempt.killing

    def _judge_time(self, number: int, cpu: float, inside: int, taken: bool) -> None:
        """Count the time that the child ran or slept, but not its wait for a core: a busy machine is not its fault."""
        if not self._queue or self._queue[0].number != number or not self._read(self._queue[0]):
            return
        attempt = self._queue[0]
        now = time.monotonic()
        if not attempt.begun:
            if not taken:
                if now - attempt.first > _START_SECONDS:
                    self._kill(attempt, CallResult("killed", None, "the machine was too busy to start it"))
                else:
                    self._arm(attempt)
                return
            attempt.begin(attempt.first)
        elapsed, call = max(now - attempt.started, 1e-6), now - attempt.progress
        schedule = schedule_of(self._process.pid, inside) if self._process else None
        if schedule is None:
            active = elapsed if cpu < _ASLEEP * elapsed else cpu
        elif schedule[0]:  # the time that it does not spend on a core, it waits for one
            active = cpu
        else:
            active = max(cpu, elapsed - schedule[1])
        counted = min(1.0, max(active / elapsed, 1.0 / _PATIENCE))
        allowed = self._allowed(attempt, counted)
        if call * counted >= 0.95 * allowed:
            self._kill(attempt, CallResult("timeout", None, f"no result after {min(call, allowed):.1f} s"))
        else:
            self.due = now + max(0.01, allowed - call * counted)

    def _kill(self, attempt: Attempt, verdict: CallResult | None) -> None:
        attempt.killing = True
        attempt.verdict = verdict
        self.due = float("inf")
        self._send(struct.pack(">cQ", b"K", attempt.number))

    def _send(self, message: bytes) -> None:
        with contextlib.suppress(OSError):  # the zygote is gone: the socket's end tells
            self._control.send(message)

    # -- events ------------------------------------------------------------------------------------------------------

    def _on_control(self) -> None:
        while True:
            try:
                message = self._control.recv(4096)
            except BlockingIOError:
                return
            except OSError:
                message = b""
            if not self.ready:
                self._greet(message)
                lost, self._lost = self._lost, []
                for running in lost:
                    self._try(running)
                continue
            if not message:
                self._replace()
                return
            if message[:1] == b"D":
                if not self._child_ended(*_REPORT.unpack(message)[1:]):
                    self._replace()
                    return
            elif message[:1] == b"T":
                self._judge_time(*_TIME.unpack(message)[1:])

    def _child_ended(self, number: int, status: int, clean: bool, cpu: float) -> bool:
        """Take what the child left; False if the zygote's report and the child's file contradict each other."""
        attempt = self._queue[0] if self._queue else None
        if attempt is None or attempt.number != number:
            return False
        running = attempt.running
        if not attempt.killing and not attempt.read():
            attempt.verdict = CallResult("refused", None, "a frame longer than allowed")
        if not attempt.killing and os.WIFSIGNALED(status) and not attempt.touched:  # ended before it could begin
            return False
        running.cpu += cpu
        os.close(self._queue.popleft().file)
        if not running.complete:
            self._charge(attempt, status, cpu)
        if self._queue:
            self._queue[0].first = time.monotonic()
            self._arm(self._queue[0])
        else:
            self.due = float("inf")
        self._try(running)
        return True

    def _charge(self, attempt: Attempt, status: int, cpu: float) -> None:
        """The call in progress is lost: say why, and what that costs the solution."""
        running, limits, verdict = attempt.running, attempt.running.limits, attempt.verdict
        # What came back in time is charged by the clock where a core was free; a call that timed out costs its full
        # limit, and one that ended its process all the time until then.
        seconds = attempt.progress - attempt.started
        running.spent += min(seconds, cpu + seconds / _PATIENCE)
        if verdict is not None and verdict.kind == "timeout":
            running.spent += limits.call_seconds
        elif attempt.begun:
            running.spent += min(limits.call_seconds, time.monotonic() - attempt.progress)
        running.results.append(verdict or CallResult("killed", None, describe_status(status)))
        if running.spent >= 0.95 * limits.wall_seconds:
            text = f"the solution's {limits.wall_seconds:g} s were used up"
            running.results += [CallResult("timeout", None, text)] * (len(running.job.calls) - len(running.results))

    def abandon(self) -> list[Future[Outcome]]:
        """The futures that will not be answered any more."""
        unfinished = [*self._lost, *(attempt.running for attempt in self._queue)]
        return [running.future for running in unfinished]
