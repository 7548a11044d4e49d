"""Files appear whole or not at all."""

import errno
import os
import resource
import shutil
from pathlib import Path

import pytest

from sweetrl.errors import UserError
from sweetrl.io import (
    append_row,
    atomic_path,
    digest,
    private_folder,
    publish,
    read_json,
    read_rows,
    write_json,
    write_text,
)


def test_a_file_appears_whole_and_leaves_nothing_beside_it(tmp_path: Path):
    path = tmp_path / "new" / "a.txt"
    write_text(path, "zwölf\n")
    assert path.read_text(encoding="utf-8") == "zwölf\n"
    assert [each.name for each in path.parent.iterdir()] == ["a.txt"]


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077, 0o277])
def test_a_file_is_for_its_owner_alone_unless_it_is_shared(tmp_path: Path, umask: int):
    before = os.umask(umask)
    try:
        write_text(tmp_path / "new" / "own.txt", "x")
        write_text(tmp_path / "new" / "shared.txt", "x", shared=True)
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.rglob("*")}
    assert modes == {"new": 0o700, "own.txt": 0o600, "shared.txt": 0o666 & ~umask}


def test_an_error_keeps_the_old_file(tmp_path: Path):
    path = tmp_path / "a.txt"
    write_text(path, "old")
    with pytest.raises(RuntimeError), atomic_path(path) as temporary:
        temporary.write_text("half of the ne")
        raise RuntimeError("killed")
    assert path.read_text() == "old"
    assert [each.name for each in tmp_path.iterdir()] == ["a.txt"]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_one_sentence_that_names_the_file(tmp_path: Path, number: int):
    path = tmp_path / "a.txt"
    with pytest.raises(UserError, match=r"a\.txt: no space left on the disk; .*run the same command again"):  # noqa: SIM117
        with atomic_path(path):
            raise OSError(number, os.strerror(number))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("place", ["file", "file/below", "file/far/below", "dangling"])
def test_what_stands_in_the_way_of_a_folder_is_one_sentence(tmp_path: Path, place: str):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "dangling").symlink_to(tmp_path / "nothing" / "at" / "all")
    with pytest.raises(UserError, match=rf"{place}: no folder can be made here \(.*\); name another one\."):
        private_folder(tmp_path / place)
    assert (tmp_path / "file").read_text() == "mine"


def test_equal_values_give_equal_bytes(tmp_path: Path):
    write_json(tmp_path / "a.json", {"b": 1, "a": ["ü"]})
    write_json(tmp_path / "b.json", {"a": ["ü"], "b": 1})
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()
    assert read_json(tmp_path / "a.json") == {"a": ["ü"], "b": 1}


def test_a_missing_or_broken_json_file_is_one_sentence(tmp_path: Path):
    with pytest.raises(UserError, match="run the stage that writes it first"):
        read_json(tmp_path / "a.json")
    (tmp_path / "a.json").write_text('{"a": 1,\n "b": }\n')
    with pytest.raises(UserError, match=r"a\.json: this is not JSON \(.*line 2 "):
        read_json(tmp_path / "a.json")


def test_digests_tell_values_apart_and_ignore_the_order_of_keys():
    assert digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1})
    assert digest({"a": 1}) != digest({"a": 2})
    assert digest("a", "b") != digest("ab")
    assert len(digest()) == 16


def test_a_full_disk_spoils_no_row_that_is_appended_later(tmp_path: Path):
    path = tmp_path / "rows.jsonl"
    append_row(path, {"n": 1})
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 4, limits[1]))  # what fits of the next row
    try:
        with pytest.raises(UserError, match=r"rows\.jsonl: no space left on the disk"):
            append_row(path, {"n": 2})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    append_row(path, {"n": 3})
    rows: list[dict[str, int]] = []
    read_rows(path, rows.append)
    assert rows == [{"n": 1}, {"n": 3}]


def test_a_folder_is_published_to_where_a_link_leads_again_and_again(tmp_path: Path):
    source, disk, out = tmp_path / "made", tmp_path / "disk" / "results", tmp_path / "project" / "out"
    disk.mkdir(parents=True)
    out.parent.mkdir()
    out.symlink_to(disk)
    (disk / "old").write_text("x")
    for text in ("one", "two"):
        write_text(source / "a.txt", text)
        publish(source, out)
        assert out.is_symlink() and [path.name for path in disk.iterdir()] == ["a.txt"]
        assert (disk / "a.txt").read_text() == text
    assert [path.name for path in (*disk.parent.iterdir(), *out.parent.iterdir())] == ["results", "out"]


def test_a_file_in_the_place_of_a_folder_is_kept(tmp_path: Path):
    (tmp_path / "out").write_text("mine")
    write_text(tmp_path / "made" / "a.txt", "x")
    with pytest.raises(UserError, match="out: a file stands in the place of this folder"):
        publish(tmp_path / "made", tmp_path / "out")
    assert (tmp_path / "out").read_text() == "mine"


def test_the_old_folder_is_there_where_publishing_was_killed_and_then_the_disk_was_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    source, out, moves = tmp_path / "made", tmp_path / "out", list[Path]()
    write_text(out / "a.txt", "old")
    write_text(source / "a.txt", "new")
    rename = Path.rename

    def killed(path: Path, target: Path) -> Path:
        moves.append(path)
        if len(moves) == 2:
            raise KeyboardInterrupt
        return rename(path, target)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Path, "rename", killed)
        publish(source, out)
    assert not out.exists()

    def full(*_: object, **__: object) -> None:
        raise shutil.Error([("a", "b", os.strerror(errno.ENOSPC))])

    with monkeypatch.context() as patch, pytest.raises(UserError, match="no space left"):
        patch.setattr(shutil, "copytree", full)
        publish(source, out)
    assert (out / "a.txt").read_text() == "old"
    publish(source, out)
    assert (out / "a.txt").read_text() == "new"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["made", "out"]
