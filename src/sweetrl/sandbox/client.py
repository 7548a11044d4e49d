"""The client of the sandbox: a trusted thread that drives the zygotes over selectors. No untrusted code runs in this
process.

What comes back from a child is a claim in a length-prefixed frame of tagged JSON, read with bounds and compared by
walking the expected tree (compare.py). It is never unpickled, evaluated or hashed.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any

from sweetrl.errors import UserError
from sweetrl.sandbox.claims import describe_isolation
from sweetrl.sandbox.limits import Job, Limits, Outcome
from sweetrl.sandbox.tiers import lightest, preloads
from sweetrl.sandbox.worker import Worker

_LONGEST_WAIT = 3600.0  # seconds; a selector cannot wait for a month


class _Tier:
    """The zygotes that have imported `preload`, and the jobs that wait for one of them."""

    def __init__(self, preload: tuple[str, ...]) -> None:
        self.preload = preload
        self.queue: deque[tuple[Job, Future[Outcome]]] = deque()
        self.workers: list[Worker] = []

    def distribute(self) -> bool:
        """Give jobs to the zygotes that have least to do; False if jobs remain."""
        while self.queue:
            worker = max(self.workers, key=lambda worker: worker.room, default=None)
            if worker is None or worker.room <= 0:
                return False
            worker.begin(*self.queue.popleft())
        return True


class Sandbox:
    """Runs jobs in `workers` zygotes. Safe to share between threads; a process forked from this one starts its own.

    `libraries` are the third-party modules that solutions may import. Solutions that import one of them, or
    another module that takes its time, are run by zygotes of other kinds (tiers.py), started when they are first
    needed; there are up to `workers` of each kind. `without` leaves isolation layers out and is meant for tests
    ("landlock truncation": what Landlock has learned since Linux 6.2); `unsafe` accepts a machine on which the layers
    that remain are not a boundary, and every result says so. `hash_seed` decides the order of a set of texts.
    """

    def __init__(
        self,
        limits: Limits = Limits(),  # noqa: B008 - frozen
        workers: int = 2,
        libraries: Sequence[str] = ("numpy", "bs4", "soupsieve", "typing_extensions"),
        without: Sequence[str] = (),
        unsafe: bool = False,
        hash_seed: int = 0,
    ) -> None:
        self.limits = limits
        self._options: dict[str, Any] = {
            "libraries": tuple(libraries),
            "without": tuple(without),
            "unsafe": unsafe,
            "hash_seed": hash_seed,
        }
        self._count = workers
        self._lock = threading.RLock()  # a result may lead to the next job
        self._reset()

    def _reset(self) -> None:
        self._process = os.getpid()
        self._thread: threading.Thread | None = None
        self._tiers = [_Tier(preload) for preload in preloads(self._options["libraries"])]
        self._layers: tuple[str, ...] = ()
        self._closed = False
        self._hungry = False  # whether the thread sleeps although a zygote could take a job
        self._wake: tuple[int, int] | None = None

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- what callers use --------------------------------------------------------------------------------------------

    def submit(self, job: Job) -> Future[Outcome]:
        """Queue one job; the future's result is its Outcome. Raises UserError where nothing safe can be started.

        Raises TypeError where the sources or calls of the job are no tuples of texts.
        """
        if type(job.sources) is not tuple or type(job.calls) is not tuple or not job.sources:
            raise TypeError("a job has a tuple of one source or more, and a tuple of calls")
        self._start()
        tier = self._tiers[lightest((*job.sources, *job.calls), self._options["libraries"])]
        future: Future[Outcome] = Future()
        with self._lock:
            if self._closed:
                raise UserError("this sandbox is closed: make a new one.")
            tier.queue.append((job, future))
            hungry, self._hungry = self._hungry, False
        if hungry:
            self._poke()
        return future

    def run(self, jobs: Iterable[Job]) -> Iterator[Outcome]:
        """Yield the outcomes of `jobs` in their order; reads ahead only as far as keeps the zygotes busy."""
        waiting: deque[Future[Outcome]] = deque()
        for job in jobs:
            waiting.append(self.submit(job))
            if len(waiting) >= max(64, 8 * self._count):
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()

    def layers(self) -> tuple[str, ...]:
        """The isolation layers that hold on this machine, outermost first (starts the zygotes if need be)."""
        self._start()
        return self._layers

    @property
    def isolation(self) -> str:
        """The layers as results carry them, joined by "+"; begins with UNSAFE where they are not a boundary."""
        return describe_isolation(self.layers())

    def close(self) -> None:
        """End the zygotes and everything in them; waiting jobs are cancelled. May be called twice."""
        if self._process != os.getpid():
            return
        with self._lock:
            self._closed = True
            thread, self._thread = self._thread, None
        if thread is not None:
            self._poke()
            thread.join()

    # -- the thread --------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        with self._lock:
            if self._process != os.getpid():  # forked: the zygotes are the parent's
                self._reset()
            if self._thread is not None or self._closed:
                return
            if sys.platform != "linux":
                raise UserError(
                    f"untrusted code can only be held on Linux (this is {sys.platform}): run this command in a Linux "
                    "container or virtual machine, for example with Docker Desktop."
                )
            workers: list[Worker] = []
            try:
                for _ in range(self._count):
                    workers.append(Worker(self.limits, self._options, self._tiers[0].preload))
                for worker in workers:
                    worker.wait_ready()
            except BaseException:
                for worker in workers:
                    worker.stop()
                raise
            self._layers = workers[0].layers
            self._tiers[0].workers = workers
            self._wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
            self._thread = threading.Thread(target=self._serve, name="sandbox", daemon=True)
            _LIVE.add(self)
            self._thread.start()

    def _poke(self) -> None:
        if self._wake is not None:
            with contextlib.suppress(BlockingIOError, OSError):
                os.write(self._wake[1], b"x")

    def _serve(self) -> None:
        selector = selectors.DefaultSelector()
        assert self._wake is not None
        selector.register(self._wake[0], selectors.EVENT_READ, None)
        for worker in self._workers():
            worker.attach(selector)
        try:
            while True:
                with self._lock:
                    if self._closed:
                        return
                    for tier in self._tiers:
                        if not tier.distribute() and len(tier.workers) < self._count:
                            tier.workers.append(Worker(self.limits, self._options, tier.preload))
                            tier.workers[-1].attach(selector)
                    self._hungry = not all(tier.queue for tier in self._tiers)
                due = min(worker.due for worker in self._workers())
                wait = None if due == float("inf") else min(max(0.0, due - time.monotonic()), _LONGEST_WAIT)
                for key, _ in selector.select(wait):
                    if key.data is None:
                        os.read(self._wake[0], 4096)
                    else:
                        key.data()
                now = time.monotonic()
                for worker in self._workers():
                    if worker.due <= now:
                        worker.check()
        except UserError as error:  # who waits for a result gets it
            self._fail(error)
        except BaseException as error:
            self._fail(error)
            raise
        finally:
            selector.close()
            self._fail(UserError("the sandbox was closed before this solution was scored."))
            for worker in self._workers():
                worker.stop()
            for descriptor in self._wake:
                os.close(descriptor)
            self._wake = None

    def _workers(self) -> list[Worker]:
        return [worker for tier in self._tiers for worker in tier.workers]

    def _fail(self, error: BaseException) -> None:
        with self._lock:
            self._closed = True
            waiting = [future for tier in self._tiers for _, future in tier.queue]
            for tier in self._tiers:
                tier.queue.clear()
        for worker in self._workers():
            waiting += worker.abandon()
        for future in waiting:
            if not future.done():
                future.set_exception(error)


_LIVE: weakref.WeakSet[Sandbox] = weakref.WeakSet()


def _after_fork() -> None:
    # A forked copy must not keep the zygotes alive after their client is gone: it lets go of their sockets.
    for sandbox in list(_LIVE):
        for worker in sandbox._workers():
            worker.forget()
        sandbox._lock = threading.RLock()


os.register_at_fork(after_in_child=_after_fork)
