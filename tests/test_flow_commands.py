"""Commands that hand over to a flow: with which words, and what is said where there is no project."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from sweetrl.cli import app
from sweetrl.errors import UserError


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the process would go on as, in a project's root."""
    found: list[Any] = []
    for name in ("dvc.yaml", "params.yaml"):
        (tmp_path / name).write_text("")
    (tmp_path / "flows").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "execv", lambda program, words: found.append(words[1:]))
    return found


def test_ingest_goes_on_as_the_flow(started: list[Any]) -> None:
    words = ["ingest", "s3://team/x/", "--kind", "tasks", "--again", "--no-push", "--no-event", "--json"]
    for line in (["ingest"], words):
        done = CliRunner().invoke(app, line)
        assert done.exit_code == 0, done.output
    assert started == [
        ["-m", "flows.ingest"],
        ["-m", "flows.ingest", "s3://team/x/", "--kind=tasks", "--again", "--no-push", "--no-event", "--json"],
    ]


def test_outside_of_a_project_it_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "execv", lambda *arguments: sys.exit("started"))
    done = CliRunner().invoke(app, ["ingest"])
    assert isinstance(done.exception, UserError) and "run from the project's root" in str(done.exception)
