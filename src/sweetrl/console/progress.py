"""Progress of long work: a bar where a user watches, a plain line now and then where a log is written."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from sweetrl.console.logs import quiet

logger = logging.getLogger("sweetrl")

SECONDS_BETWEEN_LINES = 15.0
_SHOWN = (("loss", "loss"), ("accuracy", "accuracy"), ("reward/margin", "margin"))  # of a step's metrics

SPINS = "10000"
"""How often a waiting thread looks again before it sleeps: libgomp's own 300,000 are for a machine of one's own."""


def wait_briefly() -> None:
    """Let OpenMP's threads sleep soon while they wait; call it before torch is imported, which reads it then.

    Where another program has one of the cores, a thread that looks again and again keeps the one it waits for from
    running (benchmarks/busy_machine.py). What the environment says already wins. Results are the same bytes.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPINS)


def first_process() -> bool:
    """Whether this process writes results: the first of a launcher (torchrun, `accelerate launch`), or the only one."""
    return os.environ.get("RANK", "0") == "0" or os.environ.get("WORLD_SIZE", "1") == "1"


def time_left(done: float, total: float, seconds: float) -> str:
    """Return in words how many minutes the rest takes, after `done` of `total` in `seconds`.

    "" before a twentieth is done, and in the first 10 seconds: what begins slowly would be estimated at hours.
    """
    if not total / 20 <= done < total or seconds < 10:
        return ""
    minutes = seconds * (total - done) / done / 60
    return f"about {minutes:.0f} min left" if minutes >= 1 else "less than a minute left"


class _Display:
    """A bar at a terminal; elsewhere a line now and then."""

    def __init__(self, words: str, total: int | None, shown: bool = True) -> None:
        self._started = self._line = time.monotonic()
        self._bar: Any = None
        if shown and sys.stderr.isatty() and not quiet():
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

            from sweetrl.console.screen import Screen

            columns = [TextColumn(f"{{task.{name}}}", markup=False) for name in ("description", "fields[note]")]
            self._bar = Progress(columns[0], BarColumn(), MofNCompleteColumn(), columns[1], console=Screen(stderr=True))
            self._bar.start()
            self._task = self._bar.add_task(words, total=total, note="")

    def _show(self, done: int, total: int, note: str, line: str) -> None:
        """Move the bar, with a `note` behind it; without a bar say `line`, if it is time for one."""
        if self._bar is not None:
            self._bar.update(self._task, completed=done, total=total, note=note)
        elif (now := time.monotonic()) - self._line > SECONDS_BETWEEN_LINES or done >= total:
            self._line = now
            logger.info("%s", line)

    def close(self) -> None:
        """Take the bar off the screen."""
        if self._bar is not None:
            self._bar.stop()


class Meter(_Display):
    """Counts `total` things called `unit`; call it with how many more are done. Without `bar` it says lines alone."""

    def __init__(self, name: str, total: int, unit: str, bar: bool = True) -> None:
        super().__init__(f"{name}: {unit}", total, bar)
        self.name, self.total, self.unit, self.done = name, total, unit, 0

    def __enter__(self) -> Meter:
        return self

    def __call__(self, more: int) -> None:
        """Report `more` finished things."""
        self.done += more
        seconds = time.monotonic() - self._started
        left = time_left(self.done, self.total, seconds)
        speed = f"{self.done / max(seconds, 1e-9):.1f} a second"
        parts = [f"{self.name}: {self.done} of {self.total} {self.unit}", speed, *filter(None, [left])]
        self._show(self.done, self.total, left, ", ".join(parts))

    def __exit__(self, *ended: object) -> None:
        self.close()


class StepProgress(_Display):
    """Takes every training step's metrics (call it): curves go to `log`, and now and then something to the screen."""

    def __init__(self, name: str, log: Callable[[Mapping[str, float], int], None] | None = None) -> None:
        super().__init__(name, None, first_process())
        self.name, self.log = name, log
        self._first: tuple[int, float] | None = None  # a training that goes on does not begin at step 0

    def __call__(self, step: int, steps: int, metrics: Mapping[str, float]) -> None:
        """Report one step."""
        if "loss" not in metrics:
            return
        if self.log is not None:
            self.log(metrics, step)
        self._first = self._first or (step, time.monotonic())
        left = time_left(step - self._first[0], steps - self._first[0], time.monotonic() - self._first[1])
        shown = [f"{short} {metrics[name]:.4f}" for name, short in _SHOWN if name in metrics]
        note = "  ".join([*shown, *filter(None, [left])])
        self._show(step, steps, note, f"{self.name}: step {step} of {steps}  {note}")
