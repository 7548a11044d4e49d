"""One zygote as the client sees it: started, given jobs one after the other, timed, and replaced when it is gone."""

from __future__ import annotations

import array
import contextlib
import json
import os
import selectors
import socket
import struct
import subprocess
import sys
import time
from concurrent.futures import Future
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sweetrl.errors import UserError
from sweetrl.sandbox.claims import describe_status, library_paths, parse_frame, schedule_of
from sweetrl.sandbox.limits import CallResult, Job, Limits, Outcome

_HERE = Path(__file__).parent
_READY_SECONDS = 60.0
_REPORT = struct.Struct(">i?dq")
# Where the kernel does not say how long a child waited for a core: below this share of one it is taken to be asleep.
_ASLEEP = 0.05
# A child that does not get a core is waited for at most this many times as long.
_PATIENCE = 10.0
# So long may a child take to begin, before any untrusted code runs in it.
_START_SECONDS = 60.0
UNSAFE = "UNSAFE"


def describe_isolation(layers: tuple[str, ...]) -> str:
    """Layer names joined by "+"; prefixed with UNSAFE unless seccomp and a view of the files of its own hold."""
    name = "+".join(layers)
    return name if is_safe(layers) else f"{UNSAFE}:{name}"


def is_safe(layers: tuple[str, ...]) -> bool:
    """Whether these layers are a boundary: a system-call allowlist, and files shut off by an own root or Landlock."""
    return "seccomp" in layers and ("namespaces" in layers or "landlock" in layers)


class Attempt:
    """One child at work on the calls of a job from `first` on."""

    def __init__(self, first: int, out: int) -> None:
        self.first = first
        self.out = out
        self.buffer = bytearray()
        self.begun = False  # the child has told that it starts; until then it waits for the zygote and for a core
        self.started = self.progress = time.monotonic()
        self.ended = False  # the pipe is at its end
        self.killing = False
        self.verdict: CallResult | None = None  # why the call in progress is lost, once that is known


class Worker:
    """A zygote process and the job it is busy with. Used by the client's thread only, except where noted."""

    def __init__(self, limits: Limits, options: dict[str, Any]) -> None:
        self.limits = limits
        self.options = options
        self.layers: tuple[str, ...] = ()
        self.due = float("inf")
        self._selector: selectors.BaseSelector | None = None
        self._job: Job | None = None
        self._future: Future[Outcome] | None = None
        self._attempt: Attempt | None = None
        self._usage: list[Future[dict[str, float]]] = []
        self._owner = os.getpid()
        self._launch()

    # -- the process -------------------------------------------------------------------------------------------------

    def _launch(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        config = {
            "control": theirs.fileno(),
            "limits": {**asdict(self.limits), "cpu_seconds": 120},
            "preload": self.options["preload"],
            "without": self.options["without"],
            "canaries": not self.options["unsafe"],
            "libraries": library_paths(self.options["libraries"]),
        }
        environment = {
            "PYTHONHASHSEED": "0",  # -I would ignore it, and the order of sets would change from run to run
            "PYTHONDONTWRITEBYTECODE": "1",
            "LC_ALL": "C.UTF-8",
            "TZ": "UTC",
            "PATH": "/nonexistent",
            "HOME": "/",
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
        }
        self._process = subprocess.Popen(
            [sys.executable, "-S", "-s", "-P", str(_HERE / "zygote.py"), json.dumps(config)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment,
            cwd="/",
            pass_fds=[theirs.fileno()],
            start_new_session=True,
        )
        theirs.close()
        self._control = ours

    def wait_ready(self) -> None:
        """Wait for the zygote's report; raises UserError where it is not safe to go on."""
        self._control.settimeout(_READY_SECONDS)
        try:
            message = self._control.recv(1 << 16)
        except TimeoutError:
            message = b""
        if not message:
            raise UserError(f"the sandbox process did not start within {_READY_SECONDS:.0f} s: run `sweetrl doctor`.")
        hello = json.loads(message)
        if "error" in hello:
            raise UserError(f"the sandbox process could not start ({hello['error']}): run `sweetrl doctor`.")
        self.layers = tuple(hello["layers"])
        self.hello = hello
        succeeded = sorted(name for name, open_ in hello["canaries"].items() if open_)
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
        self._control.setblocking(False)

    def attach(self, selector: selectors.BaseSelector) -> None:
        """Let `selector` watch the zygote's socket."""
        self._selector = selector
        selector.register(self._control, selectors.EVENT_READ, self._on_control)

    def stop(self) -> None:
        """End the zygote and reap it."""
        if self._owner != os.getpid():
            return
        if self._attempt is not None:
            os.close(self._attempt.out)
            self._attempt = None
        self._control.close()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def forget(self) -> None:
        """In a forked copy of the client: let go of the socket, so that the copy does not keep the zygote alive."""
        self._control.close()

    def _replace(self) -> None:
        """The zygote is gone: start another, and do again what was lost with it (once)."""
        assert self._selector is not None
        self._selector.unregister(self._control)
        self._drop_attempt()
        self.stop()
        self._launch()
        self.wait_ready()
        self.attach(self._selector)
        for future in self._usage:
            future.set_result({"cpu": 0.0, "rss_kib": 0.0})
        self._usage.clear()

    # -- jobs --------------------------------------------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        """Whether it can begin a job."""
        return self._job is None

    def begin(self, job: Job, future: Future[Outcome]) -> None:
        """Start `job`; `future` is resolved when it is done."""
        if not future.set_running_or_notify_cancel():
            return
        self._job, self._future = job, future
        self._limits = job.limits or self.limits
        self._results: list[CallResult] = []
        self._began = time.monotonic()
        self._spent = self._cpu = 0.0
        self._children = self._losses = 0
        self._try()

    def _try(self) -> None:
        """Give the calls that are left to a fresh child."""
        assert self._job is not None and self._selector is not None
        first = len(self._results)
        if first == len(self._job.calls):
            self._resolve()
            return
        limits = self._limits
        body = {
            "sources": self._job.sources,
            "calls": self._job.calls[first:],
            "namespace": self._job.namespace,
            "seed": self._job.seed,
            "output": limits.output_kib << 10,
            "nodes": limits.nodes,
        }
        out, theirs = os.pipe2(os.O_CLOEXEC)
        memory = os.memfd_create("job", os.MFD_CLOEXEC)
        try:
            with os.fdopen(memory, "wb", closefd=False) as file:
                file.write(json.dumps(body).encode())
            seconds = _START_SECONDS + _PATIENCE * (limits.wall_seconds + limits.call_seconds)
            self._control.sendmsg(
                [b"R" + struct.pack(">d", seconds)],
                [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [memory, theirs]).tobytes())],
            )
        except OSError:  # its end is read from the socket next
            pass
        finally:
            os.close(memory)
            os.close(theirs)
        os.set_blocking(out, False)
        self._children += 1
        self._attempt = Attempt(first, out)
        self._selector.register(out, selectors.EVENT_READ, self._on_output)
        self._arm()

    def _arm(self) -> None:
        attempt = self._attempt
        if attempt is None or attempt.killing:
            self.due = float("inf")
            return
        if not attempt.begun:
            self.due = attempt.started + _START_SECONDS
            return
        left = self._limits.wall_seconds - self._spent - (attempt.progress - attempt.started)
        self.due = attempt.progress + max(0.0, min(self._limits.call_seconds, left)) + 0.002

    def check(self) -> None:
        """The call in progress has had its time on the clock: ask what of it was spent on a core."""
        self.due = float("inf")
        self._send(b"C")

    def _judge_time(self, cpu: float, inside: int) -> None:
        """Count what the child ran or slept, but not what it waited for a core: a busy machine is not its fault."""
        attempt = self._attempt
        if attempt is None or attempt.killing:
            return
        self._read(attempt)
        if attempt.killing:
            return
        now = time.monotonic()
        whole, call = max(now - attempt.started, 1e-6), now - attempt.progress
        if not attempt.begun:
            self._kill(CallResult("killed", None, "the machine was too busy to start it"))
            return
        schedule = schedule_of(self._process.pid, inside)
        if schedule is None:
            active = whole if cpu < _ASLEEP * whole else cpu
        elif schedule.ready:  # what it does not spend on a core it spends waiting for one
            active = cpu
        else:
            active = max(cpu, whole - schedule.waited)
        counted = min(1.0, max(active / whole, 1.0 / _PATIENCE))
        left = self._limits.wall_seconds - self._spent - (whole - call) * counted
        allowed = min(self._limits.call_seconds, left)
        if call * counted >= 0.95 * allowed:
            text = f"no result after {min(call, allowed):.1f} s"
            self._kill(CallResult("timeout", None, text))
        else:
            self.due = now + max(0.01, allowed - call * counted)

    def _kill(self, verdict: CallResult | None) -> None:
        attempt = self._attempt
        assert attempt is not None
        attempt.killing = True
        attempt.verdict = verdict
        self.due = float("inf")
        self._send(b"K")

    def _send(self, message: bytes) -> None:
        with contextlib.suppress(OSError):  # the zygote is gone: the socket's end tells
            self._control.send(message)

    # -- events ------------------------------------------------------------------------------------------------------

    def _on_output(self) -> None:
        if self._attempt is not None:
            self._read(self._attempt)

    def _read(self, attempt: Attempt) -> None:
        """Take what the child wrote; complete frames become results."""
        assert self._selector is not None and self._job is not None
        while not attempt.ended:
            try:
                data = os.read(attempt.out, 1 << 17)
            except BlockingIOError:
                break
            if not data:
                attempt.ended = True
                self._selector.unregister(attempt.out)
                break
            if not attempt.killing:
                attempt.buffer += data
                self._take_frames(attempt)
            if attempt.killing and not self._selector_has(attempt):
                break
        if not attempt.killing:
            self._arm()

    def _selector_has(self, attempt: Attempt) -> bool:
        """Stop listening to a child that is being killed: what it still writes is of no interest."""
        assert self._selector is not None
        self._selector.unregister(attempt.out)
        attempt.ended = True
        return False

    def _take_frames(self, attempt: Attempt) -> None:
        assert self._job is not None
        limit = (self._limits.output_kib << 10) + 1024
        buffer, position, wanted = attempt.buffer, 0, len(self._job.calls)
        while len(buffer) - position >= 4 and len(self._results) < wanted:
            size = int.from_bytes(buffer[position : position + 4], "big")
            if size > limit:
                self._kill(CallResult("refused", None, f"a frame of {size} bytes"))
                break
            if len(buffer) - position - 4 < size:
                break
            if not attempt.begun:
                attempt.begun = True
                attempt.started = attempt.progress = time.monotonic()
                position += 4 + size
                continue
            self._results.append(parse_frame(bytes(buffer[position + 4 : position + 4 + size])))
            attempt.progress = time.monotonic()
            position += 4 + size
        del buffer[:position]
        if len(self._results) == wanted and not attempt.killing:
            self._kill(None)

    def _on_control(self) -> None:
        try:
            message = self._control.recv(4096)
        except BlockingIOError:
            return
        except OSError:
            message = b""
        if not message:
            self._zygote_died()
        elif message[:1] == b"T":
            self._judge_time(*struct.unpack(">dq", message[1:]))
        elif message[:1] == b"U":
            self._usage.pop(0).set_result(json.loads(message[1:]))
        elif message[:1] == b"D":
            self._child_ended(*_REPORT.unpack(message[1:]))

    def _child_ended(self, status: int, clean: bool, cpu: float, memory_kib: int) -> None:
        attempt, job = self._attempt, self._job
        if attempt is None or job is None:
            return
        if not attempt.killing:
            self._read(attempt)
        self._cpu += cpu
        # What came back in time is charged by the clock where a core was free; a call that timed out costs its full
        # limit.
        self._spent += min(attempt.progress - attempt.started, cpu + (attempt.progress - attempt.started) / _PATIENCE)
        verdict = attempt.verdict
        if verdict is not None and verdict.kind == "timeout":
            self._spent += self._limits.call_seconds
        self._drop_attempt()
        if len(self._results) < len(job.calls):
            self._results.append(verdict or CallResult("killed", None, describe_status(status)))
        if self._spent >= 0.95 * self._limits.wall_seconds:
            text = f"the solution's {self._limits.wall_seconds:g} s were used up"
            left = len(job.calls) - len(self._results)
            self._results += [CallResult("timeout", None, text)] * left
        self._try()

    def _drop_attempt(self) -> None:
        attempt, self._attempt = self._attempt, None
        if attempt is not None:
            assert self._selector is not None
            if not attempt.ended:
                self._selector.unregister(attempt.out)
            os.close(attempt.out)
        self.due = float("inf")

    def _zygote_died(self) -> None:
        self._replace()
        if self._job is None:
            return
        self._losses += 1
        if self._losses > 1:  # twice is no accident: the call in progress is to blame
            self._losses = 0
            self._results.append(CallResult("killed", None, "the sandbox process died with it, twice"))
        self._try()

    def _resolve(self) -> None:
        job, future = self._job, self._future
        assert job is not None and future is not None
        self._job = self._future = None
        self.due = float("inf")
        seconds = time.monotonic() - self._began
        results = tuple(self._results)
        future.set_result(Outcome(results, describe_isolation(self.layers), seconds, self._cpu, self._children))

    def abandon(self) -> list[Future[Any]]:
        """The futures that will not be answered any more."""
        futures: list[Future[Any]] = [*self._usage, *([self._future] if self._future is not None else [])]
        self._usage.clear()
        return futures

    def ask_usage(self) -> Future[dict[str, float]]:
        """Ask the zygote for its CPU time and memory (any thread, under the client's lock)."""
        future: Future[dict[str, float]] = Future()
        self._usage.append(future)
        self._send(b"S")
        return future
