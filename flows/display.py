"""What is seen of a flow while it works: at a terminal stage k of n, a bar and the minutes left; the rest is in a log.

Without a terminal (a file, a scheduler) every line is printed as it comes: that output is the log. With --quiet nothing
is shown, and all goes into the log.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Literal

from sweetrl.console.logs import FOLDER, quiet
from sweetrl.console.screen import Screen
from sweetrl.io import private_file

if TYPE_CHECKING:
    from rich.progress import Progress

STAGE = re.compile(r"stage (?P<number>\d+) of (?P<count>\d+): (?P<stage>\S+)$")
PROGRESS = re.compile(r"(?P<what>.+?): (?:step )?(?P<done>\d+) of (?P<total>\d+)\b[^,]*(?P<note>.*)$")
SECONDS_BETWEEN_LINES = "3"  # of a stage's progress, for the bar


class Display:
    """Shows a flow of the project at `root`; use it as a context."""

    def __init__(self, root: Path) -> None:
        self.log = root / FOLDER / "run.log"
        self.mode: Literal["bar", "plain", "quiet"] = "quiet" if quiet() else "bar" if sys.stderr.isatty() else "plain"
        self.stage, self.heading = "", ""
        self._bar: Progress | None = None
        self._written = False
        self._handlers: list[logging.Handler] = []

    def __enter__(self) -> Display:
        if self.mode == "bar":
            from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

            os.environ["SWEETRL_PROGRESS_SECONDS"] = SECONDS_BETWEEN_LINES
            columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn())
            note = TextColumn("{task.fields[note]}", markup=False)
            # Libraries that are loaded meanwhile keep the stdout they find: it must not be the bar's.
            self._bar = Progress(
                *columns,
                note,
                console=Screen(stderr=True),
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._bar.start()
            self._task = self._bar.add_task("", total=None, note="")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.pause()
        for handler in self._handlers:
            handler.removeFilter(self._take)
        if self._written and (error is not None or not quiet()):
            print(f"log:     {self.log}", file=sys.stderr)

    def pause(self) -> None:
        """Take the bar off the screen."""
        if self._bar is not None:
            self._bar.stop()

    def loading(self, what: str) -> None:
        """Say what is awaited before the first stage."""
        self.stage = ""
        if self._bar is not None:
            self._bar.reset(self._task, description=f"{what} ...", total=None, note="")
        elif self.mode == "plain":
            print(f"{what} ...", file=sys.stderr, flush=True)

    def attach(self) -> None:
        """Take over what is logged, now that Prefect has set up its handlers."""
        if self.mode == "plain":
            return
        for name in ("", *logging.root.manager.loggerDict):  # MLflow, uvicorn and others have handlers of their own
            for handler in list(logging.getLogger(name).handlers):
                if isinstance(handler, logging.StreamHandler) and not isinstance(handler, logging.FileHandler):
                    handler.addFilter(self._take)
                    self._handlers.append(handler)

    def _take(self, record: logging.LogRecord) -> bool:
        """Show or keep one record in the handler's place; none is left to it."""
        if getattr(record, "displayed", False):  # by another handler
            return False
        record.displayed = True
        text = record.getMessage()
        self._keep(text)
        if record.name.startswith(("prefect.flow_runs", "prefect.task_runs")):
            self.line(text)
        return False

    def line(self, text: str) -> None:
        """Show one line of the flow or of a stage, if it is for people."""
        if self._bar is None:
            return
        if found := STAGE.match(text):
            self.stage = found["stage"]
            self.heading = text
            self._bar.reset(self._task, description=text, total=None, note="")
        elif self.stage and (found := PROGRESS.match(text)):
            note = f"{found['done']} of {found['total']}{found['note']}"
            done, total = int(found["done"]), int(found["total"])
            what = "" if found["what"] == self.stage else f" ({found['what'].removeprefix(f'{self.stage}: ')})"
            self._bar.update(self._task, completed=done, total=total, description=self.heading + what, note=note)
        elif not self.stage or text.startswith(f"{self.stage}: "):
            self._bar.console.print(text)

    def _keep(self, text: str) -> None:
        if not self._written:
            private_file(self.log).write_text("", encoding="utf-8")
            self._written = True
        with self.log.open("a", encoding="utf-8") as file:
            file.write(text + "\n")
