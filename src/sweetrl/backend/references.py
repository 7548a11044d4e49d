"""What the reference solutions return: run in the same sandbox as everything else, each once."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from dataclasses import replace
from typing import Literal

from sweetrl.sandbox.client import Sandbox
from sweetrl.sandbox.limits import CallResult, Job, Outcome

_SEED = 1  # answers are run with seed 0, so that a random answer does not agree with a random reference


class References:
    """Results of references by (namespace, reference, calls), from memory or from the sandbox. Thread-safe."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self._results: dict[tuple[str, str, tuple[str, ...]], Future[tuple[CallResult, ...]]] = {}
        self._lock = threading.Lock()
        base = sandbox.limits
        # The official evaluator does not limit the reference; a machine that must go on has to, generously.
        self._limits = replace(
            base,
            wall_seconds=max(60.0, base.wall_seconds),
            call_seconds=max(20.0, base.call_seconds),
            output_kib=max(8192, base.output_kib),
            nodes=max(1_000_000, base.nodes),
        )

    def results(
        self, reference: str, calls: tuple[str, ...], namespace: Literal["one", "split"]
    ) -> Future[tuple[CallResult, ...]]:
        """The results of `calls` on `reference`; runs it only if nobody has."""
        key = (namespace, reference, calls)
        with self._lock:
            if key in self._results:
                return self._results[key]
            future = self._results[key] = Future()

        def finish(done: Future[Outcome]) -> None:
            if done.cancelled() or done.exception() is not None:
                self._forget(key, future, done.exception() if not done.cancelled() else RuntimeError("cancelled"))
            else:
                future.set_result(done.result().calls)

        try:
            job = Job((reference,), calls, namespace, _SEED, self._limits)
            self._sandbox.submit(job).add_done_callback(finish)
        except BaseException as error:
            self._forget(key, future, error)
        return future

    def _forget(
        self, key: tuple[str, str, tuple[str, ...]], future: Future[tuple[CallResult, ...]], error: BaseException | None
    ) -> None:
        """Fail whoever waits, and run the reference anew for the next one."""
        with self._lock:
            self._results.pop(key, None)
        future.set_exception(error)
