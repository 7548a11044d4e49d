"""A large file is read once; whatever can be noticed of a change makes it be read again."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from sweetrl import file_hashes
from sweetrl.file_hashes import LARGE, dvc_hash, file_hash


@pytest.fixture
def reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that are read, one for each time; the working directory is a project."""
    names: list[str] = []
    true = file_hashes._read
    monkeypatch.setattr(file_hashes, "_read", lambda path: names.append(path.name) or true(path))
    monkeypatch.setattr(file_hashes, "SETTLED_NS", 0)  # tests do not wait
    monkeypatch.chdir(tmp_path)
    Path("params.yaml").touch()
    return names


@pytest.fixture
def again(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], str]:
    """Ask as another process would."""

    def ask(path: Path) -> str:
        monkeypatch.setattr(file_hashes, "_hashes", {})
        return file_hash(path)

    return ask


def large(path: Path, letter: bytes) -> str:
    content = letter * (LARGE + 1)
    path.write_bytes(content)
    time.sleep(0.02)  # past the clock's tick
    return hashlib.md5(content).hexdigest()


def test_a_large_file_is_read_once_by_all_processes(reads: list[str], again: Callable[[Path], str]) -> None:
    path = Path("model.safetensors")
    expected = large(path, b"a")
    assert [file_hash(path), file_hash(path), again(path), again(path.resolve())] == [expected] * 4
    link = Path("link")
    link.symlink_to(path)
    assert again(link) == expected
    assert reads == ["model.safetensors"]
    small = Path("config.json")
    small.write_text("{}")
    assert again(small) == again(small) and reads[1:] == ["config.json"] * 2


def test_the_hash_of_a_folder_reads_its_large_files_once(reads: list[str], again: Callable[[Path], str]) -> None:
    folder = Path("models/base")
    folder.mkdir(parents=True)
    large(folder / "model.safetensors", b"a")
    (folder / "config.json").write_text("{}")
    before = dvc_hash(folder)
    reads.clear()
    assert dvc_hash(folder) == before and reads == ["config.json"]
    (folder / "model.safetensors").rename(folder / "other.safetensors")
    assert dvc_hash(folder) != before


def test_every_change_that_the_file_system_tells_is_noticed(reads: list[str], again: Callable[[Path], str]) -> None:
    path, other = Path("model.safetensors"), Path("other")
    large(path, b"a")
    state = path.stat()
    file_hash(path)

    # Written in place with the old size and, afterwards, the old time.
    written = large(path, b"b")
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert path.stat().st_mtime_ns == state.st_mtime_ns and again(path) == written

    # Replaced by another file of equal size and time.
    replaced = large(other, b"c")
    os.utime(other, ns=(state.st_atime_ns, state.st_mtime_ns))
    other.replace(path)
    assert path.stat().st_mtime_ns == state.st_mtime_ns and again(path) == replaced
    assert reads == ["model.safetensors"] * 3


def test_a_file_that_was_just_written_is_not_trusted(
    reads: list[str], again: Callable[[Path], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another write within the same tick of the clock would leave its times as they are."""
    monkeypatch.setattr(file_hashes, "SETTLED_NS", 10**9)
    path = Path("model.safetensors")
    large(path, b"a")
    assert again(path) == again(path) and len(reads) == 2
    time.sleep(1.05)
    assert again(path) == again(path) and len(reads) == 3


def test_a_file_that_changes_while_it_is_read_is_not_remembered(
    reads: list[str], again: Callable[[Path], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = Path("model.safetensors")
    large(path, b"a")
    true = file_hashes._read

    def slowly(name: Path) -> str:
        digest = true(name)
        large(path, b"b")
        return digest

    with monkeypatch.context() as patched:
        patched.setattr(file_hashes, "_read", slowly)
        again(path)
    assert again(path) == large(Path("b"), b"b")


def test_nothing_is_written_outside_of_a_project(reads: list[str], again: Callable[[Path], str]) -> None:
    Path("params.yaml").unlink()
    path = Path("model.safetensors")
    large(path, b"a")
    assert file_hash(path) == file_hash(path) and len(reads) == 1
    again(path)
    assert len(reads) == 2 and not Path(".cache").exists()


def test_a_stage_in_a_folder_of_its_own_remembers_in_the_project(
    reads: list[str], again: Callable[[Path], str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "model.safetensors"
    large(path, b"a")
    file_hash(path)
    folder = tmp_path / ".scratch" / "iteration"
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("SWEETRL_ROOT", str(tmp_path))
    again(path)
    assert len(reads) == 1


def test_hashes_of_files_and_folders_are_those_of_dvc(tmp_path: Path) -> None:
    """The hub's client leaves times beside the weights; by the project's .dvcignore they are no part of the folder."""
    folder = tmp_path / "data"
    (folder / "deep" / "er").mkdir(parents=True)
    (folder / "b.txt").write_text("two")
    (folder / "deep" / "a.txt").write_text("one")
    (folder / "deep" / "er" / "ä c.txt").write_text("umlaut and blank")
    (folder / "deep-er.txt").write_text("sorts differently as text and as path")
    (tmp_path / "one.bin").write_bytes(b"\x00\x01")
    before = dvc_hash(folder)
    ignored = (".gitignore", ".cache/huggingface/.gitignore", ".cache/huggingface/w.metadata", "x.pyc", ".w.part")
    for name in (*ignored, "__pycache__/x"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("1764144000.5")
    shutil.copyfile(Path(__file__).parents[1] / ".dvcignore", tmp_path / ".dvcignore")
    for arguments in (["init", "--no-scm", "-q"], ["add", "-q", "data"], ["add", "-q", "one.bin"]):
        subprocess.run([sys.executable, "-m", "dvc", *arguments], cwd=tmp_path, check=True)
    for name in ("data", "one.bin"):
        locked = yaml.safe_load((tmp_path / f"{name}.dvc").read_text())["outs"][0]["md5"]
        assert dvc_hash(tmp_path / name) == locked
    assert dvc_hash(folder) == before
