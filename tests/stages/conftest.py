"""Stages on their own: they write their run files, and nothing into a store of MLflow unless a test wants that."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from sweetrl.colbench.store import TrajectoryStore
from sweetrl.errors import UserError
from sweetrl.types import Score, TestResult, Trajectory


def sweetrl(*words: Any) -> str:
    """What the command line prints; the UserError that it would print is raised."""
    from sweetrl.cli.main import app

    done = CliRunner().invoke(app, [str(word) for word in words])
    if isinstance(done.exception, UserError):
        raise done.exception
    assert done.exit_code == 0, done.output + str(done.exception)
    return done.stdout


@pytest.fixture(autouse=True)
def untracked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWEETRL_TRACKING", "off")


def content(folder: Path | str) -> dict[str, bytes]:
    """The files of a folder by name."""
    return {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir())}


def kill_at(index: int, monkeypatch: pytest.MonkeyPatch, folder: str = "") -> list[int]:
    """Let writing shard `index` (of `folder`) end the process once; return the shards that are written, as they are."""
    write, written, kills = TrajectoryStore.write_shard, list[int](), [index]

    def dies(self: TrajectoryStore, number: int, trajectories: Any) -> Path:
        if number in kills and self.folder.name.endswith(folder):
            kills.remove(number)
            raise KeyboardInterrupt
        written.append(number)
        return write(self, number, trajectories)

    monkeypatch.setattr(TrajectoryStore, "write_shard", dies)
    return written


def start(project: Path, *words: str) -> subprocess.Popen[str]:
    """Start Python with `words` in a project."""
    environment = os.environ | {"SWEETRL_TRACKING": "off", "OMP_NUM_THREADS": "1"}
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen([sys.executable, *words], cwd=project, env=environment, **pipes)


def finish(process: subprocess.Popen[str]) -> str:
    """Wait for a program that must succeed; return what it has printed."""
    output, _ = process.communicate()
    assert process.returncode == 0, output
    return output


def kill_when(process: subprocess.Popen[str], so_far: Callable[[], object]) -> None:
    """SIGKILL as soon as it has come `so_far`."""
    while not so_far():
        if process.poll() is not None:
            pytest.fail(process.communicate()[0])
        time.sleep(0.002)
    process.kill()
    process.communicate()
    assert process.returncode == -9


class LongScorer:
    """Scores without a sandbox: the longer the better; the first test passes if the answer is longer than 40."""

    def __init__(self, settings: Any) -> None:
        """Needs nothing."""

    def __enter__(self) -> LongScorer:
        return self

    def __exit__(self, *error: object) -> None:
        """Nothing to free."""

    def score(self, dialogues: Sequence[Trajectory]) -> list[Score]:
        return [self._score(dialogue, len(dialogue.answer or "")) for dialogue in dialogues]

    def _score(self, dialogue: Trajectory, length: int) -> Score:
        names = [name for name, _ in dialogue.task.test_cases]
        tests = tuple(TestResult(name, at == 0 and length > 40, "passed") for at, name in enumerate(names))
        return Score(min(1.0, length / 50), tests, semantics="fixed", notes={"length": str(length)})


@pytest.fixture
def long_answers_win(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sweetrl.backend.rewards.CodeScorer", LongScorer)
