"""Programs that tests start and interrupt."""

from __future__ import annotations

import contextlib
import signal
from pathlib import Path

import psutil


def as_at_a_terminal() -> None:
    """In the child: take SIGINT, which whoever runs the tests in the background may have had ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def at_work(root: Path) -> list[str]:
    """The command lines of processes at work below a folder."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if Path(process.cwd()).is_relative_to(root) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(" ".join(process.cmdline()))
    return found
