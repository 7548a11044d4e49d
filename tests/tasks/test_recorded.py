"""No result without data behind it, and no finished work lost before DVC has recorded it; on a toy with real DVC."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sweetrl.errors import UserError
from sweetrl.file_hashes import cached, file_hash
from sweetrl.stages.scratch import remove_recorded
from tasks import workspace
from tasks.pipeline import StageFailed, execute_stage, stage_environment
from tests.tasks.fake_project import git, quiet


def obstruct(folder: Path, content: str) -> Path:
    """Let DVC fail to copy `content` into the store `folder`, as a full disk does: its place is a link to nowhere."""
    place = folder / "files/md5" / hashlib.md5(content.encode(), usedforsecurity=False).hexdigest()[:2]
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to("/proc/nowhere")
    return place


FOLDERS = """
stages:
  before: {cmd: mkdir -p data && echo > data/before.txt, outs: [data/before.txt]}
  one: {cmd: mkdir -p data/one && printf 1 > data/one/file, outs: [data/one]}
  two: {cmd: mkdir -p data && printf 2 > data/two.txt, outs: [data/two.txt]}
"""


@pytest.mark.parametrize(("stage", "content"), [("one", "1"), ("two", "2")])
def test_a_result_that_dvc_could_not_store_is_no_result(toy, stage: str, content: str) -> None:
    (toy.root / "dvc.yaml").write_text(FOLDERS)  # of a folder DVC says so and ends with 0
    obstacle, lock = obstruct(toy.root / ".dvc/cache", content), toy.root / "dvc.lock"
    before = None
    for _ in range(2):
        with pytest.raises(StageFailed) as caught:
            execute_stage(toy.root, stage, {}, quiet)
        assert str(caught.value).startswith(f"stage {stage} failed: DVC could not put its result into the cache; make")
        assert caught.value.explained and "\n" not in str(caught.value)
        assert (lock.read_bytes() if lock.exists() else None) == before, "dvc.lock names no data that are nowhere"
        if before is None:
            execute_stage(toy.root, "before", {}, quiet)
            before = lock.read_bytes()
    obstacle.unlink()
    assert execute_stage(toy.root, stage, {}, quiet).status == "ran"


@pytest.mark.slow
def test_a_commit_and_a_push_that_leave_data_out_are_failures(toy, tmp_path: Path) -> None:
    store = tmp_path / "store"
    workspace.dvc(toy.root, "remote", "add", "-q", "-d", "store", str(store))
    execute_stage(toy.root, "first", {}, quiet)
    cache = toy.root / ".dvc/cache"
    (toy.root / "data/first.txt").write_text("by hand")
    obstacle = obstruct(cache, "by hand")
    with pytest.raises(UserError, match=r"`dvc commit`"):
        workspace.dvc(toy.root, "commit", "-f", "first")
    obstacle.unlink()
    workspace.dvc(toy.root, "commit", "-f", "first")
    shutil.rmtree(cache / "files")
    with pytest.raises(UserError, match=r"`dvc push` left data out: Some of the cache files"):
        workspace.push(toy.root)  # dvc.lock names what is in no cache
    workspace.dvc(toy.root, "commit", "-f", "first")
    assert workspace.push(toy.root)[0].startswith("data to store")


@pytest.mark.slow
def test_the_run_cache_is_pushed_and_pulled_with_the_pipeline(toy, tmp_path: Path) -> None:
    store, other = tmp_path / "store", tmp_path / "other"
    (toy.root / "sub").mkdir()  # a pipeline that was never run
    (toy.root / "sub/dvc.yaml").write_text("stages: {never: {wdir: .., cmd: 'true', outs: [data/never.txt]}}\n")
    workspace.dvc(toy.root, "remote", "add", "-q", "-d", "store", str(store))
    for stage in ("first", "second", "third"):
        execute_stage(toy.root, stage, {}, quiet)
    workspace.push(toy.root)
    entries = {path.name for path in (store / "runs").rglob("*") if path.is_file()}
    assert entries

    git(toy.root, "add", "-A")
    git(toy.root, "commit", "-qm", "run")
    git(tmp_path, "clone", "-q", str(toy.root), "other")
    with pytest.raises(UserError, match="failed to pull data"):
        workspace.dvc(other, "pull", "--run-cache")
    workspace.dvc(other, "pull", "--run-cache", "dvc.yaml")  # docs/operations.md
    assert (other / "data/third.txt").read_text() == "third a"
    assert {path.name for path in (other / ".dvc/cache/runs").rglob("*") if path.is_file()} == entries


# A stage as stage_main and stage_run make it, whose work takes long; killed in the seconds that DVC takes to record.
LONG = """
import contextlib, os, pathlib, signal
from sweetrl.stages.run import stage_main, stage_run

def long(settings):
    with stage_run("long", settings, torch=False) as run:
        part = run.scratch() / "part"
        if not part.exists():
            with open("count.txt", "a") as stream:
                stream.write("long\\n")
            part.write_text("hours of work")
        pathlib.Path("data").mkdir(exist_ok=True)
        pathlib.Path("data/long.txt").write_text(part.read_text())

with contextlib.suppress(SystemExit):
    stage_main(long)
if os.path.exists("interrupt"):
    os.kill(os.getppid(), signal.SIGKILL)  # DVC or its shell
    os.kill(os.getpgid(0), signal.SIGKILL)
"""


def long_toy(toy) -> Path:
    (toy.root / "long.py").write_text(LONG)
    (toy.root / "dvc.yaml").write_text(
        "stages: {long: {cmd: python long.py, deps: [long.py], outs: [data/long.txt, reports/runs/long.json]}}\n"
    )
    return toy.root


def test_what_a_stage_has_made_is_kept_until_dvc_has_recorded_it(toy) -> None:
    root = long_toy(toy)
    (root / "interrupt").touch()
    with pytest.raises(StageFailed, match="killed"):
        execute_stage(root, "long", {}, quiet)
    assert toy.runs() == ["long"] and not (root / "dvc.lock").exists()
    (kept,) = (root / ".scratch").glob("long-*")
    assert json.loads((kept / "finished.json").read_text())["stage"] == "long"
    remove_recorded(root)
    assert kept.exists(), "dvc.lock does not name it"

    (root / "interrupt").unlink()
    assert execute_stage(root, "long", {}, quiet).status == "ran"
    assert toy.runs() == ["long"], "the work is not done twice"
    assert not kept.exists(), "recorded"


def test_in_a_fresh_clone_dvc_lock_names_what_is_not_recorded_yet(toy) -> None:
    """Killed before a stage's new output is in DVC's cache, while dvc.lock already names those bytes."""
    root = long_toy(toy)
    assert execute_stage(root, "long", {}, quiet).status == "ran"
    lock = (root / "dvc.lock").read_bytes()
    for place in ("data", "reports", ".dvc/cache"):
        shutil.rmtree(root / place)
    (root / "interrupt").touch()
    with pytest.raises(StageFailed, match="killed"):
        execute_stage(root, "long", {}, quiet)
    assert toy.runs() == ["long", "long"]
    (kept,) = (root / ".scratch").glob("long-*")
    run_file = cached(file_hash(root / "reports/runs/long.json"), root)
    run_file.parent.mkdir(parents=True)
    shutil.copy(root / "reports/runs/long.json", run_file)
    remove_recorded(root)
    assert kept.exists(), "the run file alone is no result"

    (root / "interrupt").unlink()
    assert execute_stage(root, "long", {}, quiet).status == "ran"
    assert toy.runs() == ["long", "long"], "the work is not done twice"
    assert not kept.exists() and (root / "dvc.lock").read_bytes() == lock, "the same bytes, run file included"


def test_finished_work_is_taken_up_by_equal_code_only_and_not_after_it_was_recorded(toy) -> None:
    root = long_toy(toy)
    command = [sys.executable, "-m", "dvc", "repro", "-q"]
    subprocess.run(command, cwd=root, env=stage_environment(root), check=True)  # by hand: nobody looks after it
    (kept,) = (root / ".scratch").glob("long-*")
    subprocess.run([*command, "--force"], cwd=root, env=stage_environment(root), check=True)
    assert toy.runs() == ["long", "long"], "asked for again, it is made again"

    facts = json.loads((kept / "finished.json").read_text())
    (root / "dvc.lock").unlink()
    shutil.rmtree(root / ".dvc/cache/runs")
    (kept / "finished.json").write_text(json.dumps(facts | {"code": "other"}))
    assert execute_stage(root, "long", {}, quiet).status == "ran"
    assert toy.runs() == ["long"] * 3
