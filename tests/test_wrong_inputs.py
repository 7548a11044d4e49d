"""Every wrong input is answered in one sentence that says what, where and what to do, and leaves nothing behind."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from sweetrl.cli import main
from sweetrl.cli.app import run_app
from tests.wrong_inputs import WRONG, Wrong


def become(program: str, words: list[str]) -> None:
    """What `os.execv` would do: the flow's own command line, in this process."""
    from flows import run

    sys.argv = words[2:]
    raise SystemExit(run.main())


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: wrong.what)
def test_a_wrong_input_is_answered_in_one_sentence(
    wrong: Wrong, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    wrong.prepare(tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setattr(sys, "argv", ["sweetrl", *wrong.words.split()])
    monkeypatch.setattr(os, "execv", become)
    try:
        code = run_app(main.app)
    except SystemExit as left:
        code = int(left.code or 0)
    out, err = capfd.readouterr()
    # What is being loaded is no error; bad rows are listed below the sentence about them.
    errors = [line for line in err.splitlines() if not line.endswith(" ...") and not line.startswith("- ")]
    assert (code, out, len(errors)) == (wrong.code, "", 1), err
    assert errors[0].startswith("error: ") and errors[0].endswith((".", ":")) and wrong.message in err
    after = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and path.name != "run.lock"}
    assert after == before
