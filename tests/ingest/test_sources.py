"""Files of a folder and objects of a bucket: what is listed, what is fetched, and names that strangers have chosen."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from sweetrl.errors import UserError
from sweetrl.ingest import sources
from sweetrl.ingest.sources import Bucket, Changed, Entry, Folder, name_fault, open_source

LIMIT = 1000
NOW = datetime.now(UTC)
BAD_NAMES = (
    *("../up.jsonl", "a/../../up.jsonl", "/etc/x.jsonl", "a\\b.jsonl", "a\x1b[2Jb.jsonl", "a\nb.jsonl"),
    *("exe\u202elnosj.jsonl", "half\udcff.jsonl", "x" * 2000 + ".jsonl", "a.csv"),
)


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A bucket `team` in this process, without a network."""
    import boto3
    from moto import mock_aws

    for name in ("AWS_ENDPOINT_URL", "AWS_PROFILE", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a-secret-key")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    with mock_aws():
        client = boto3.client("s3")
        client.create_bucket(Bucket="team")
        yield client


def test_a_name_that_may_do_harm_is_refused_and_usual_ones_are_taken() -> None:
    assert all(map(name_fault, BAD_NAMES)) and "a `/` in front" in str(name_fault("/etc/x.jsonl"))
    for name in ("a.jsonl", "2026/11/23/served-00.jsonl", "a..b.jsonl", "übung 1.jsonl", "日志.jsonl"):
        assert name_fault(name) is None


def test_a_folder_lists_what_is_whole_and_its_own(tmp_path: Path) -> None:
    place = tmp_path / "in"
    (place / "deep").mkdir(parents=True)
    (place / "b.jsonl").write_text("b")
    (place / "deep/a.jsonl").write_text("a")
    (place / ".b.jsonl.123.part").write_text("half")
    (place / ".hidden").mkdir()
    (place / ".hidden/c.jsonl").write_text("c")
    (tmp_path / "secret.jsonl").write_text("secret")
    (place / "link.jsonl").symlink_to(tmp_path / "secret.jsonl")
    (place / "up").symlink_to(tmp_path)
    os.mkfifo(place / "pipe.jsonl")
    (place / "large.jsonl").write_text("x" * (LIMIT + 1))
    entries = {entry.name: entry for entry in Folder(place).entries(LIMIT)}
    assert set(entries) == {"b.jsonl", "deep/a.jsonl", "large.jsonl"}
    assert entries["b.jsonl"] == Entry("b.jsonl", 1, "md5:92eb5ffee6ae2fec3ad71c777531578f")
    assert entries["large.jsonl"].tag == "", "what is too large is not read"


def test_a_file_that_changes_meanwhile_is_left_for_the_next_time(tmp_path: Path) -> None:
    place, target = tmp_path / "in", tmp_path / "got"
    place.mkdir()
    (place / "a.jsonl").write_text("one")
    source = Folder(place)
    (entry,) = source.entries(LIMIT)
    source.fetch(entry, target, LIMIT)
    assert target.read_text() == "one"
    for spoil in (
        lambda: (place / "a.jsonl").write_text("two"),
        lambda: (place / "a.jsonl").unlink(),
        lambda: (place / "a.jsonl").symlink_to("/etc/passwd"),
    ):
        spoil()
        with pytest.raises(Changed):
            source.fetch(entry, target, LIMIT)


def test_a_bucket_is_listed_page_by_page(bucket: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for number in range(7):
        bucket.put_object(Bucket="team", Key=f"served/{number}.jsonl", Body=b"row %d" % number)
    for key in ("served/", "served/.part.jsonl", "other/x.jsonl", "served/../up.jsonl", "served/\u202ex.jsonl"):
        bucket.put_object(Bucket="team", Key=key, Body=b"x")
    monkeypatch.setattr(sources, "PAGE", 2)
    source = open_source("s3://team/served/")
    entries = {entry.name: entry for entry in source.entries(LIMIT)}
    assert sorted(name for name in entries if name_fault(name) is None) == [f"served/{n}.jsonl" for n in range(7)]
    assert {name for name in entries if name_fault(name)} == {"served/../up.jsonl", "served/\u202ex.jsonl"}
    entry = entries["served/3.jsonl"]
    assert abs(entry.since - NOW.timestamp()) < 600 and entry.folder == "", "when it came, as the store says"
    source.fetch(entry, tmp_path / "got", LIMIT)
    assert (tmp_path / "got").read_bytes() == b"row 3"
    bucket.put_object(Bucket="team", Key="served/3.jsonl", Body=b"row x")
    with pytest.raises(Changed):
        source.fetch(entry, tmp_path / "got", LIMIT)
    bucket.delete_object(Bucket="team", Key="served/3.jsonl")
    with pytest.raises(Changed):
        source.fetch(entry, tmp_path / "got", LIMIT)


def test_a_store_that_refuses_is_one_sentence_without_keys(bucket: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        UserError, match=r"s3://nowhere/x: the store refuses to list its files \(NoSuchBucket\)"
    ) as raised:
        list(Bucket("nowhere", "x").entries(LIMIT))
    assert "\n" not in str(raised.value) and "nothing was taken" in str(raised.value)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setattr(sources, "ATTEMPTS", 1)
    with pytest.raises(UserError, match="the store refuses to list its files") as raised:
        list(Bucket("team", "").entries(LIMIT))
    assert "a-secret-key" not in str(raised.value)


def test_folders_in_folders_have_an_end_and_those_that_go_are_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tmp_path.joinpath(*["d"] * 40).mkdir(parents=True)
    (tmp_path / "/".join("d" * 40) / "b.jsonl").write_text("{}\n")
    (tmp_path / "d/a.jsonl").write_text("{}\n")
    assert [entry.name for entry in Folder(tmp_path).entries(LIMIT)] == ["d/a.jsonl"]
    assert "lies 32 folders deep" in caplog.text
    scandir = os.scandir

    def refuse(place: str) -> Any:
        if Path(place) != tmp_path:
            raise PermissionError(13, "Permission denied", place)
        return scandir(place)

    monkeypatch.setattr(sources.os, "scandir", refuse)
    with pytest.raises(UserError, match="d: this may not be read; let it be read"):
        list(Folder(tmp_path).entries(LIMIT))


def test_a_source_that_names_nothing_says_so(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="names no bucket"):
        open_source("s3://")
    for place in ("https://example.org/x", str(tmp_path / "gone")):
        with pytest.raises(UserError, match="no such folder"):
            open_source(place)
