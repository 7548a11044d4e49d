"""Terminals and pipes that do not take every letter, and what is typed at them."""

from __future__ import annotations

import json
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


@pytest.mark.parametrize(("encoding", "words"), [("ascii", "h\u00e9 \u4e2d"), ("latin-1", "\u4e2d")])
def test_letters_that_a_terminal_lacks_are_numbers_and_json_stays_json(
    tmp_path: Path, encoding: str, words: str
) -> None:
    path = tmp_path / "f.py"
    path.write_text(f"def f():\n    return {words!r}\n", encoding="utf-8")
    done = sweetrl(path, PYTHONIOENCODING=encoding)
    assert done.returncode == 0 and r"\u4e2d" in done.stdout, done.stderr
    done = sweetrl(path, "--json", PYTHONIOENCODING=encoding)
    assert json.loads(done.stdout)["calls"][0]["value"] == repr(words), done.stderr


def test_what_is_typed_in_another_encoding_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", TextIOWrapper(BytesIO(b"it is \xe9 7\n"), encoding="utf-8"))
    any_letters()
    assert input() == "it is \ufffd 7"
