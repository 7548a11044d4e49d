"""Progress of long work: a bar where a person watches, a plain line now and then where a log is written."""

from __future__ import annotations

import logging
import sys
import time
from types import TracebackType
from typing import Any

logger = logging.getLogger("sweetrl")

SECONDS_BETWEEN_LINES = 15.0


class Meter:
    """Counts `total` things called `unit`; call it with how many more are done."""

    def __init__(self, name: str, total: int, unit: str) -> None:
        self.name, self.total, self.unit = name, total, unit
        self.done = 0
        self.started = self._line = time.monotonic()
        self._bar: Any = None

    def __enter__(self) -> Meter:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            self._bar = Progress(*columns, console=Console(stderr=True))
            self._bar.start()
            self._task = self._bar.add_task(f"{self.name}: {self.unit}", total=self.total)
        return self

    def __call__(self, more: int) -> None:
        """Report `more` finished things."""
        self.done += more
        now = time.monotonic()
        if self._bar is not None:
            self._bar.update(self._task, completed=self.done)
        elif self.done >= self.total or now - self._line > SECONDS_BETWEEN_LINES:
            self._line = now
            rate = self.done / max(now - self.started, 1e-9)
            logger.info("%s: %d of %d %s, %.1f a second", self.name, self.done, self.total, self.unit, rate)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
