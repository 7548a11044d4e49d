"""git and DVC around a run, in real repositories."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sweetrl.errors import UserError
from tasks import workspace
from tasks.training import Steps, run_pipeline


def quiet(text: str) -> None:
    """Say nothing."""


def git(root: Path, *arguments: str) -> str:
    return workspace.git(root, *arguments).stdout.strip()


def test_parameters_are_changed_in_place_and_checked(toy) -> None:
    path = toy.root / "params.yaml"
    workspace.change_parameters(toy.root, {"collect.first": 400, "seed": 8})
    assert path.read_text().startswith(
        "# the toy's\nseed: 8\ncollect: {tasks: 4, first: 400}\ntracking: {uri: 'sqlite:"
    )
    for changes, sentence in [
        ({"collect.last": 1}, "there is no parameter `collect.last`"),
        ({"sead": 1}, "there is no parameter `sead`"),
        ({"seed.deep": 1}, "there is no parameter `seed.deep`"),
        ({"collect.tasks": 0}, r"parameter `collect\.tasks` = 0"),
    ]:
        with pytest.raises(UserError, match=sentence):
            workspace.change_parameters(toy.root, changes)
        assert "first: 400" in path.read_text() and "tasks: 4," in path.read_text()


def test_a_worktree_runs_beside_the_checkout_shares_its_cache_and_is_merged(toy, tmp_path: Path) -> None:
    home = toy.root
    remote, bare = tmp_path / "remote", tmp_path / "bare.git"
    subprocess.run(
        [sys.executable, "-m", "dvc", "remote", "add", "-q", "-d", "store", str(remote)], cwd=home, check=True
    )
    subprocess.run(["git", "init", "-q", "--bare", str(bare)], check=True)
    git(home, "remote", "add", "origin", str(bare))
    git(home, "-c", "user.name=t", "-c", "user.email=t@example.org", "commit", "-qam", "a remote")
    (home / "data").mkdir()
    (home / "data/accepted.json").write_text("first batch")
    steps = Steps(say=quiet, before_register=lambda root: workspace.commit_records(root, "Retrain"))
    with workspace.worktree(home, "retrain/1") as tree:
        assert workspace.cache_folder(tree.root) == home / ".dvc/cache"
        workspace.change_parameters(tree.root, {"collect.first": 4})
        outcome = run_pipeline(tree.root, steps, home)
        assert (tree.root / "data/accepted.json").read_text() == "first batch"
        (tree.root / "data/accepted.json").write_text("second batch")
        assert [result.status for result in outcome.stages] == ["ran", "ran", "ran"]
        pushed = workspace.push(tree.root, "retrain/1")
        assert pushed == ["data to store", "branch retrain/1 to origin"]
        folder = tree.root
    assert not folder.exists()
    assert (home / "data/accepted.json").read_text() == "second batch"
    assert not (home / "data/first.txt").exists(), "nothing has happened in the main checkout yet"
    assert "collect: {tasks: 4, first: 4}" in git(home, "show", "retrain/1:params.yaml")
    assert any(path.is_file() for path in remote.rglob("*"))

    (home / "stage.py").write_text((home / "stage.py").read_text() + "# edited\n")
    assert "uncommitted changes" in workspace.merge(home, "retrain/1")
    git(home, "checkout", "-q", "stage.py")
    assert workspace.merge(home, "retrain/1").startswith("merged retrain/1")
    assert (home / "data/third.txt").read_text() == "third a"
    assert run_pipeline(home, Steps(say=quiet)).unchanged, "the merged branch brings its results along"


def test_restoring_brings_back_lock_parameters_and_data_or_changes_nothing(toy, tmp_path: Path) -> None:
    home, kept = toy.root, tmp_path / "kept"
    run_pipeline(home, Steps(say=quiet))
    kept.mkdir()
    for name in workspace.RECORDS:
        (kept / name).write_bytes((home / name).read_bytes())
    toy.set(third="b")
    run_pipeline(home, Steps(say=quiet))
    newer = (home / "dvc.lock").read_bytes()
    assert (home / "data/third.txt").read_text() == "third b"

    workspace.restore(home, lambda folder: kept)
    assert (home / "dvc.lock").read_bytes() == (kept / "dvc.lock").read_bytes()
    assert (home / "data/third.txt").read_text() == "third a"
    assert (home / ".scratch/before-rollback/dvc.lock").read_bytes() == newer

    broken = tmp_path / "broken"
    broken.mkdir()
    lock = (kept / "dvc.lock").read_text()
    digest = next(line.split()[-1] for line in lock.splitlines() if "md5:" in line)
    (broken / "dvc.lock").write_text(lock.replace(digest, "0" * 32))
    before = (home / "dvc.lock").read_bytes()
    with pytest.raises(UserError, match="are as they were"):
        workspace.restore(home, lambda folder: broken)
    assert (home / "dvc.lock").read_bytes() == before
    assert (home / "data/third.txt").read_text() == "third a"


def test_a_worktree_needs_a_commit(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    with (
        pytest.raises(UserError, match="not a git repository with a commit"),
        workspace.worktree(tmp_path, "retrain/1"),
    ):
        pass


def test_a_failing_git_command_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="`git rev-parse HEAD` failed: "):
        workspace.git(tmp_path, "rev-parse", "HEAD")
