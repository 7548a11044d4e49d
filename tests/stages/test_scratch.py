"""A folder of unfinished work belongs to one process at a time."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sweetrl.errors import UserError
from sweetrl.io import publish
from sweetrl.stages.scratch import alone


def test_a_folder_is_one_process_at_a_time_and_is_left_as_it_was(tmp_path: Path) -> None:
    folder = tmp_path / "work"
    with alone(folder):
        with pytest.raises(UserError, match="work: another process is at this very work"), alone(folder):
            pass
        with alone(tmp_path / "other"):
            pass
        (folder / "shard").write_text("x")
        publish(folder, tmp_path / "out")
    assert [path.name for path in folder.iterdir()] == ["shard"], "what is finished stays"
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["shard"], "the lock is no part of it"
    with pytest.raises(RuntimeError), alone(tmp_path / "other"):
        raise RuntimeError
    assert not (tmp_path / "other").exists(), "nothing is left of nothing"


def test_who_held_a_folder_may_remove_it(tmp_path: Path) -> None:
    folder = tmp_path / "work"
    with alone(folder):
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()
    with alone(folder):
        assert folder.is_dir()


def test_a_killed_process_lets_go(tmp_path: Path) -> None:
    pid = os.fork()
    if pid == 0:
        alone(tmp_path / "work").__enter__()
        os._exit(0)
    os.waitpid(pid, 0)
    with alone(tmp_path / "work"):
        pass
