"""One child at work on (the rest of) a solution's calls, as the client sees it: the memory file that they share.

The client writes the job into it, and the child appends a frame for each call. That wakes nobody: the client reads the
frames when the child has ended, or when a time limit is near. The file's modification time, which the kernel keeps,
says when the last frame came. What is in the file is a claim, and may change while it is read.
"""

from __future__ import annotations

import array
import fcntl
import marshal
import os
import socket
import struct
import time
from concurrent.futures import Future
from functools import lru_cache
from types import CodeType

from sweetrl.sandbox.claims import parse_frame
from sweetrl.sandbox.limits import CallResult, Job, Limits, Outcome
from sweetrl.sandbox.official import compiled

_MESSAGE = struct.Struct(">QQ")  # as in zygote.py
_BEGUN = struct.Struct(">Id")  # the frame before all others: from here on the clock runs
_CHUNK = 1 << 16


@lru_cache(maxsize=4096)
def _compiled(calls: tuple[str, ...], namespace: str) -> bytes:
    """The calls with their code, marshalled for the child. Cached, as all answers to a task are tested by the same.

    They come from the task and not from a model. A call that does not compile is sent as text and fails in the child.
    """
    pairs: list[tuple[str, CodeType | None]] = []
    for call in calls:
        try:
            pairs.append((call, compiled(call.lstrip(" \t"), "<string>", "eval", namespace)))
        except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError):
            pairs.append((call, None))
    return marshal.dumps(pairs)


def _fitting(sources: tuple[str, ...], most: int) -> tuple[str, ...]:
    """The first of `sources` that have at most `most` bytes together."""
    for count, text in enumerate(sources):
        most -= _size(text)
        if most < 0:
            return sources[:count]
    return sources


def _size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """Two connected sockets, neither of which takes the place of a standard stream that is closed here.

    A zygote has streams of its own in those places, and code of ours may still write to the streams it thinks are open.
    """
    client, zygote = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    return _moved_up(client), _moved_up(zygote)


def _moved_up(end: socket.socket) -> socket.socket:
    if end.fileno() > 2:
        return end
    with end:
        return socket.socket(fileno=fcntl.fcntl(end.fileno(), fcntl.F_DUPFD_CLOEXEC, 3))


class Running:
    """A job and its results so far."""

    def __init__(self, job: Job, future: Future[Outcome], limits: Limits) -> None:
        self.job = job
        self.future = future
        self.limits = limits
        self.results: list[CallResult] = []
        self.queued = time.monotonic()
        self.spent = self.cpu = 0.0  # seconds: of its wall-clock limit, on a core
        self.children = self.losses = 0
        self.sources = _fitting(job.sources, limits.source_kib << 10)
        if not self.sources:
            size, most = _size(job.sources[0]), limits.source_kib << 10
            text = f"the source has {size:,} bytes, more than {most:,}"
            self.results += [CallResult("refused", None, text)] * len(job.calls)

    @property
    def complete(self) -> bool:
        """Whether every call has its result."""
        return len(self.results) == len(self.job.calls)

    def resolve(self, isolation: str) -> None:
        """Hand the results over."""
        seconds = time.monotonic() - self.queued
        self.future.set_result(Outcome(tuple(self.results), isolation, seconds, self.cpu, self.children))


class Attempt:
    """A child's work on the calls of `running` that have no result yet. The times are those of time.monotonic()."""

    def __init__(self, number: int, running: Running) -> None:
        self.number = number
        self.running = running
        self.begun = False  # the clock runs
        self.opened = False  # its first frame has been read; a hostile child can overwrite it
        self.first = self.started = self.progress = time.monotonic()  # first in its queue; begun; last result
        self.killing = False
        self.verdict: CallResult | None = None  # why the call in progress is lost, once that is known
        job, limits = running.job, running.limits
        body = (
            running.sources,
            _compiled(job.calls[len(running.results) :], job.namespace),
            job.namespace,
            job.seed,
            limits.output_kib << 10,
            limits.nodes,
        )
        text = marshal.dumps(body)
        self.file = os.memfd_create("job", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        self._position = self._length = len(text)
        try:
            while text:
                text = text[os.write(self.file, text) :]
            # The child cannot remove what it has added: a file that has grown shows that the child began (`touched`).
            fcntl.fcntl(self.file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL)
        except OSError:
            os.close(self.file)
            raise

    def send(self, jobs: socket.socket) -> None:
        """Queue it for the children that wait at the other end of `jobs`."""
        rights = array.array("i", [self.file]).tobytes()
        jobs.sendmsg([_MESSAGE.pack(self.number, self._length)], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])

    def begin(self, moment: float) -> None:
        """The clock runs since `moment`."""
        self.begun = True
        self.started = self.progress = moment

    @property
    def touched(self) -> bool:
        """Whether the child has written anything at all."""
        return os.fstat(self.file).st_size > self._length

    def read(self) -> bool:
        """Take the frames that are complete as results; False where one is longer than allowed."""
        running, results, number = self.running, self.running.results, int.from_bytes
        total = len(running.job.calls)
        if len(results) == total:
            return True
        now, limit, chunk = time.monotonic(), (running.limits.output_kib << 10) + 1024, _CHUNK
        before = len(results)
        while True:
            data = os.pread(self.file, chunk, self._position)
            position, size = 0, 0
            if not self.opened:
                if len(data) < _BEGUN.size:
                    return True
                size, stamp = _BEGUN.unpack_from(data)
                if size != _BEGUN.size - 4:
                    return True
                self.opened = True
                if not self.begun:
                    self.begin(stamp if self.first <= stamp <= now else self.first)
                position = _BEGUN.size
            available = len(data)
            while available - position >= 4 and len(results) < total:
                start = position + 4
                size = number(data[position:start], "big")
                if size > limit or available - start < size:
                    break
                position = start + size
                results.append(parse_frame(data[start:position], running.limits.nodes))
                size = 0
            self._position += position
            if size > limit:
                return False
            if len(results) == total or len(data) < chunk:
                break
            chunk = max(_CHUNK, size + 4)
        if len(results) > before:
            age = max(0.0, time.time() - os.fstat(self.file).st_mtime)
            self.progress = max(self.progress, now - age)
        return True
