"""Progress in words: how many, how fast, and how many minutes are left; and threads that wait keep nobody waiting."""

from __future__ import annotations

import logging
import os
import subprocess
import sys

import pytest

from sweetrl.console import progress
from sweetrl.console.progress import SPINS, Meter, StepProgress, time_left


def test_lines_name_the_minutes_left(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    assert time_left(9, 10, 60) == "less than a minute left"
    assert time_left(0, 10, 60) == time_left(1, 100, 60) == time_left(50, 100, 9) == "", "too early to be right"
    clock = iter(range(0, 10_000, 60))
    monkeypatch.setattr(progress.time, "monotonic", lambda: float(next(clock)))
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 15.0)
    caplog.set_level(logging.INFO, "sweetrl")
    with Meter("collect", 300, "dialogues") as meter:
        for _ in range(3):
            meter(100)
    steps = StepProgress("train-critic")
    for step in range(50, 53):
        steps(step, 52, {"loss": 0.5})
    lines = [record.getMessage() for record in caplog.records]
    assert lines[0].startswith("collect: 100 of 300 dialogues, ") and lines[0].endswith(" a second, about 2 min left")
    assert lines[2].startswith("collect: 300 of 300 dialogues, ") and lines[2].endswith(" a second")
    assert lines[3] == "train-critic: step 50 of 52  loss 0.5000", "a training that goes on: nothing is known yet"
    assert lines[4].startswith("train-critic: step 51 of 52  loss 0.5000  ") and lines[4].endswith(" min left")


CODE = "import sys, os, sweetrl.stages; print(os.environ.get('GOMP_SPINCOUNT'), 'torch' in sys.modules)"


@pytest.mark.parametrize(
    ("variables", "expected"),
    [({}, f"{SPINS} False"), ({"GOMP_SPINCOUNT": "7"}, "7 False"), ({"OMP_WAIT_POLICY": "ACTIVE"}, "None False")],
)
def test_a_stage_says_it_before_torch_is_imported(variables: dict[str, str], expected: str) -> None:
    environment = {key: value for key, value in os.environ.items() if "OMP_" not in key} | variables
    done = subprocess.run([sys.executable, "-c", CODE], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == expected
