"""What the reference solutions return: run in the same sandbox as everything else, once, and kept on disk by content.

A file holds the results of one reference on the calls of one task. Its name is a digest of everything that decides
them: source, calls, namespace, Python, library versions and hash seed. A broken file is computed again.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import platform
import tempfile
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Literal

from sweetrl.errors import UserError
from sweetrl.io import private_folder
from sweetrl.sandbox.claims import distribution_of, well_formed
from sweetrl.sandbox.client import Sandbox
from sweetrl.sandbox.limits import CallResult, Job, Limits, Outcome

_FORMAT = 1
_SEED = 1  # answers are run with seed 0, so that a random answer does not agree with a random reference


class References:
    """Results of references, from memory, from `folder`, or from the sandbox."""

    def __init__(self, sandbox: Sandbox, libraries: Sequence[str], folder: Path | None) -> None:
        self._sandbox = sandbox
        self._folder = folder
        self._known: dict[tuple[str, str, tuple[str, ...]], Future[tuple[CallResult, ...]]] = {}
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
        versions = []
        for name in libraries:
            try:
                versions.append(f"{name} {importlib.metadata.version(distribution_of(name))}")
            except importlib.metadata.PackageNotFoundError:
                continue
        self._machine = [_FORMAT, platform.python_version(), sorted(versions), "PYTHONHASHSEED=0"]

    @property
    def limits(self) -> Limits:
        """What a reference may spend."""
        return self._limits

    def results(
        self, reference: str, calls: tuple[str, ...], namespace: Literal["one", "split"]
    ) -> Future[tuple[CallResult, ...]]:
        """The results of `calls` on `reference`; runs it only if nobody has."""
        name = (namespace, reference, calls)
        with self._lock:
            known = self._known.get(name)
            if known is not None:
                return known
            future: Future[tuple[CallResult, ...]] = Future()
            self._known[name] = future
        text = json.dumps([*self._machine, namespace, reference, calls])
        key = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
        stored = self._read(key, len(calls))
        if stored is not None:
            future.set_result(stored)
            return future
        try:
            job = Job((reference,), calls, namespace, _SEED, self._limits)
            self._sandbox.submit(job).add_done_callback(lambda done: self._finish(name, key, future, done))
        except BaseException as error:
            self._finish(name, key, future, None)
            future.set_exception(error)
        return future

    def _finish(
        self,
        name: tuple[str, str, tuple[str, ...]],
        key: str,
        future: Future[tuple[CallResult, ...]],
        done: Future[Outcome] | None,
    ) -> None:
        if done is None or done.cancelled() or done.exception() is not None:
            with self._lock:
                self._known.pop(name, None)
            if done is not None:
                future.set_exception(done.exception() or RuntimeError("cancelled"))
            return
        results = done.result().calls
        self._write(key, results)
        future.set_result(results)

    def _read(self, key: str, count: int) -> tuple[CallResult, ...] | None:
        if self._folder is None:
            return None
        try:
            rows = json.loads((self._folder / key[:2] / f"{key}.json").read_text(encoding="utf-8"))
            found = tuple(CallResult(kind, tree, detail) for kind, tree, detail in rows)
        except (OSError, ValueError, TypeError, RecursionError):
            return None
        whole = all(type(one.detail) is str and well_formed(one.tree, self._limits.nodes) for one in found)
        return found if whole and len(found) == count else None

    def _write(self, key: str, results: tuple[CallResult, ...]) -> None:
        # What a slow or full machine did to a reference is not a fact about the reference.
        if self._folder is None or any(result.kind in ("timeout", "killed", "memory") for result in results):
            return
        target = self._folder / key[:2] / f"{key}.json"
        try:
            private_folder(target.parent)
            handle, name = tempfile.mkstemp(prefix=".", suffix=".part", dir=target.parent)
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump([[result.kind, result.tree, result.detail] for result in results], file)
            Path(name).replace(target)
        except (OSError, UserError):  # a cache that cannot be written is no reason to stop
            pass
