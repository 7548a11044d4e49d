"""`official` semantics on every Python of this machine: its verdicts are those of Python 3.11."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import sweetrl.sandbox
from tests.sandbox.official_programs import PROGRAMS

HERE = Path(__file__).parent


@pytest.mark.parametrize("python", [sys.executable, "python3.11", "python3.12", "python3.13", "python3.14"])
def test_programs_that_pythons_read_differently(python: str) -> None:
    if not (path := shutil.which(python)) or subprocess.run([path, "-V"], capture_output=True).returncode:
        pytest.skip(f"no {python} starts here")
    folder = Path(sweetrl.sandbox.__file__).parent
    command = [path, "-S", str(HERE / "official_programs.py"), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    values = [[title, value] for (title, _, _, _), value in zip(PROGRAMS, json.loads(done.stdout), strict=True)]
    assert values == [[title, value] for title, _, _, value in PROGRAMS]
