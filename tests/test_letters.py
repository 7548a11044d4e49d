"""Terminals and pipes that do not take every letter, and what is typed at them."""

from __future__ import annotations

import os
import subprocess
import sys
from io import BytesIO, TextIOWrapper
from pathlib import Path

import pytest

from sweetrl.console.logs import any_letters


def sweetrl(path: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "sweetrl.cli.main", "sandbox", "run", str(path), "--call", "f()", *words]
    return subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=False)


def test_what_is_typed_in_another_encoding_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", TextIOWrapper(BytesIO(b"it is \xe9 7\n"), encoding="utf-8"))
    any_letters()
    assert input() == "it is \ufffd 7"
