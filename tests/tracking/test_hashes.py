"""Hashes computed without DVC are DVC's own."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import yaml

from sweetrl.tracking.hashes import dvc_hash


def test_hashes_of_files_and_folders_are_those_of_dvc(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    (folder / "deep" / "er").mkdir(parents=True)
    (folder / "b.txt").write_text("two")
    (folder / "deep" / "a.txt").write_text("one")
    (folder / "deep" / "er" / "ä c.txt").write_text("umlaut and blank")
    (folder / "deep-er.txt").write_text("sorts differently as text and as path")
    (tmp_path / "one.bin").write_bytes(b"\x00\x01")
    for arguments in (["init", "--no-scm", "-q"], ["add", "-q", "data"], ["add", "-q", "one.bin"]):
        subprocess.run([sys.executable, "-m", "dvc", *arguments], cwd=tmp_path, check=True)
    for name in ("data", "one.bin"):
        wanted = yaml.safe_load((tmp_path / f"{name}.dvc").read_text())["outs"][0]["md5"]
        assert dvc_hash(tmp_path / name) == wanted


def test_what_dvc_ignores_does_not_change_a_folder(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1")
    before = dvc_hash(tmp_path)
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__" / "a.pyc").write_bytes(b"compiled")
    assert dvc_hash(tmp_path) == before


def test_a_folder_from_a_hub_has_the_hash_that_dvc_gives_it(tmp_path: Path) -> None:
    """The hub's client leaves times beside the weights; by the project's .dvcignore they are no part of the folder."""
    folder = tmp_path / "model"
    (folder / ".cache/huggingface").mkdir(parents=True)
    (folder / "weights").write_bytes(b"w")
    before = dvc_hash(folder)
    for name in (".gitignore", ".cache/huggingface/.gitignore", ".cache/huggingface/w.metadata", "x.pyc", ".w.part"):
        (folder / name).write_text("1764144000.5")
    shutil.copyfile(Path(__file__).parents[2] / ".dvcignore", tmp_path / ".dvcignore")
    for arguments in (["init", "--no-scm", "-q"], ["add", "-q", "model"]):
        subprocess.run([sys.executable, "-m", "dvc", *arguments], cwd=tmp_path, check=True)
    assert dvc_hash(folder) == before == yaml.safe_load((tmp_path / "model.dvc").read_text())["outs"][0]["md5"]
