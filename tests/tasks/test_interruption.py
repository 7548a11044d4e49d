"""What a flow leaves behind when its stage fails or when it is interrupted; with Prefect's embedded server."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).resolve().parents[2]


def start(toy) -> subprocess.Popen[str]:
    plain = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    return subprocess.Popen(
        [sys.executable, "-m", "flows.train"],
        cwd=toy.root,
        env={**plain, "PYTHONUNBUFFERED": "1", "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")])},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def at_work(toy) -> list[str]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.cwd() == str(toy.root) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(" ".join(process.cmdline()))
        except psutil.Error:
            continue
    return found


@pytest.mark.slow
def test_a_failing_stage_ends_the_flow_with_one_sentence(toy) -> None:
    toy.set(second="crash")
    flow = start(toy)
    printed, _ = flow.communicate(timeout=300)
    assert flow.returncode == 1
    assert "error: stage second failed: ZeroDivisionError: division by zero" in printed
    assert printed.count("Traceback") == 1, "the stage's own trace, none of Prefect's"
    assert at_work(toy) == []


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_flow_ends_soon_with_everything_it_started(toy, number: int) -> None:
    toy.set(first="hang")
    flow = start(toy)
    assert flow.stdout is not None
    for line in flow.stdout:
        if "hanging" in line:
            break
    os.killpg(flow.pid, number)  # as a terminal does: the embedded server gets it too
    started = time.monotonic()
    printed = flow.stdout.read()
    assert flow.wait(timeout=120) in {130, 143}, printed
    assert time.monotonic() - started < 60
    assert "interrupted; finished work is kept" in printed
    assert at_work(toy) == []
