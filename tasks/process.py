"""Run a program in its own process group: its lines are passed on as they come, and nothing of it is left behind."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import Event, Thread

from sweetrl.io import OWNER_UMASK

GRACE_SECONDS = 10.0  # between SIGTERM and SIGKILL
PR_SET_PDEATHSIG = 1


def run_program(
    command: Sequence[str], cwd: Path, env: Mapping[str, str], limit: float, line: Callable[[str], None]
) -> int | None:
    """Run `command` and return its exit status, None past `limit` seconds; `line` gets each line of stdout and stderr.

    What it writes is for its owner alone. Past the limit, when this process is interrupted, and when the program has
    ended without its children, the whole process group is stopped: SIGTERM, then SIGKILL.
    """
    process = subprocess.Popen(
        list(command),
        cwd=cwd,
        env=dict(env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        umask=OWNER_UMASK,
        start_new_session=True,
        preexec_fn=_die_with_parent,
    )
    overdue = Event()

    def watch() -> None:
        try:
            process.wait(limit)
        except subprocess.TimeoutExpired:
            overdue.set()
        _stop_group(process)  # a child that is left would keep the pipe open

    watcher = Thread(target=watch, daemon=True)
    watcher.start()
    assert process.stdout is not None
    try:
        for text in process.stdout:
            line(text.decode("utf-8", errors="replace").rstrip().split("\r")[-1])
    finally:
        _stop_group(process)
        watcher.join()
        process.stdout.close()
    return None if overdue.is_set() else process.returncode


def _stop_group(process: subprocess.Popen[bytes]) -> None:
    """Stop the process and everything in its group."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=GRACE_SECONDS)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _die_with_parent() -> None:
    """In the child: ask the kernel for SIGTERM when the flow is killed so hard that it cannot stop us itself."""
    with contextlib.suppress(OSError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
