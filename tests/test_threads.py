"""Threads that wait must not keep others from running; what the environment says wins."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from sweetrl.progress import SPINS

CODE = "import sys, os, sweetrl.stages; print(os.environ.get('GOMP_SPINCOUNT'), 'torch' in sys.modules)"


@pytest.mark.parametrize(
    ("said", "expected"),
    [({}, f"{SPINS} False"), ({"GOMP_SPINCOUNT": "7"}, "7 False"), ({"OMP_WAIT_POLICY": "ACTIVE"}, "None False")],
)
def test_a_stage_says_it_before_torch_is_imported(said: dict[str, str], expected: str) -> None:
    environment = {key: value for key, value in os.environ.items() if "OMP_" not in key} | said
    done = subprocess.run([sys.executable, "-c", CODE], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == expected
