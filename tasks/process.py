"""Run a program in its own process group: its lines are passed on as they come, and nothing of it is left behind."""

from __future__ import annotations

import contextlib
import ctypes
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from sweetrl.io import OWNER_UMASK

GRACE_SECONDS = 10.0  # between SIGTERM and SIGKILL
PR_SET_PDEATHSIG = 1


class TimeLimitExceeded(Exception):
    """The program ran past its limit and was stopped with all its children."""


def run_program(
    command: Sequence[str],
    cwd: Path,
    env: Mapping[str, str],
    limit: float,
    line: Callable[[str], None],
) -> int:
    """Run `command` and return its exit status; `line` gets every line of its stdout and stderr, in order.

    What it writes is for its owner alone.
    Past `limit` seconds, or when this process is interrupted, the whole process group is stopped: SIGTERM, then
    SIGKILL. Raises TimeLimitExceeded past the limit.
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
    deadline = time.monotonic() + limit
    try:
        for text in _lines(process, deadline):
            line(text)
        return process.wait(timeout=max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired as error:
        raise TimeLimitExceeded from error
    finally:
        stop_group(process)


def stop_group(process: subprocess.Popen[bytes]) -> None:
    """Stop the process and everything in its group."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=GRACE_SECONDS)
    # Whoever is left in the group has lost its leader: children that ignored SIGTERM or were never waited for.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


def _lines(process: subprocess.Popen[bytes], deadline: float) -> Iterator[str]:
    """Yield lines until the program has ended; a child that keeps the pipe open does not hold us up."""
    assert process.stdout is not None
    rest = b""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeLimitExceeded
            ready = selector.select(timeout=min(left, 0.5))
            if not ready:
                if process.poll() is not None:
                    break
                continue
            chunk = os.read(process.stdout.fileno(), 65536)
            if not chunk:
                break
            *complete, rest = (rest + chunk).split(b"\n")
            for item in complete:
                yield _text(item)
    if rest:
        yield _text(rest)


def _text(line: bytes) -> str:
    return line.decode("utf-8", errors="replace").rstrip().split("\r")[-1]


def _die_with_parent() -> None:
    """In the child: ask the kernel for SIGTERM when the flow is killed so hard that it cannot stop us itself."""
    with contextlib.suppress(OSError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
