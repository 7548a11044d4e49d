"""Dialogues of a served agent: kept with consent and outcome only; no death leaves half a line or file."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from sweetrl.errors import UserError
from sweetrl.ingest.sources import Folder
from sweetrl.serve import recorder as module
from sweetrl.serve.chat_requests import BadRequest, ChatRequest, Feedback
from sweetrl.serve.recorder import Recorder
from sweetrl.types import Sampling
from tests.tasks.fake_project import git

USER = {"role": "user", "content": "I want a function."}
REPLY = "thought OUTPUT: Which one?"


def request(*messages: dict[str, str], consent: bool = True, dialogue: str = "") -> ChatRequest:
    return ChatRequest(messages, Sampling(8, 0.0, 1.0, 1), 0, False, False, len(messages) // 2 + 1, consent, dialogue)


def begun(kept: Recorder, words: str = USER["content"]) -> str:
    """Open a dialogue with one turn; return its id."""
    name = kept.turn(request({"role": "user", "content": words}), [REPLY], "a")
    assert name is not None
    return name


def assistant(content: str) -> dict[str, str]:
    return {"role": "assistant", "content": content}


def rows(folder: Path) -> list[dict[str, Any]]:
    """The dialogues in files that are handed on."""
    return [
        json.loads(line) for path in sorted(folder.glob("served-*.jsonl")) for line in path.read_text().splitlines()
    ]


@pytest.fixture
def now() -> list[float]:
    return [1000.0]


@pytest.fixture
def kept(tmp_path: Path, now: list[float]) -> Recorder:
    return Recorder(tmp_path / "kept", lambda: now[0])


def test_a_dialogue_is_kept_with_its_outcome_for_its_owner_alone(kept: Recorder) -> None:
    name = kept.turn(request(USER), [REPLY], "agent version 3")
    assert name is not None and len(name) == 32
    more = {"role": "user", "content": "The one that adds."}
    second = request(USER, assistant("Which one?"), more, dialogue=name)
    assert kept.turn(second, ["I WANT TO ANSWER: x"], "agent version 4") == name
    assert kept.feedback(Feedback(dialogue=name, outcome="success", reference="def f")) == "kept"
    assert rows(kept.folder) == [], "a file that grows is hidden"
    with pytest.raises(BadRequest, match="no open dialogue"):
        kept.feedback(Feedback(dialogue=name, reward=1))
    kept.close()
    (row,) = rows(kept.folder)
    assert row == {
        "id": name,
        "outcome": "success",
        "reference": "def f",
        "messages": [USER, assistant(REPLY), more, assistant("I WANT TO ANSWER: x")],
        "model": "agent version 4",
        "consent": True,
        "metadata": {"time": "1970-01-01T00:16:40Z"},
    }
    for path in kept.folder.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(kept.folder.stat().st_mode) == 0o700


def test_neither_git_nor_an_ingest_of_the_folder_sees_what_is_not_handed_on(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept/.gitignore").write_text("served-*\n.*\n")  # a user's own stays as it is
    for name in ("kept", "more/kept"):
        recorder = Recorder(tmp_path / name)
        closed, _ = (recorder.turn(request(USER), [REPLY], "agent version 3") for _ in range(2))
        assert closed is not None
        recorder.feedback(Feedback(dialogue=closed, outcome="success"))
        assert git(tmp_path, "status", "--porcelain") == "" and list(Folder(tmp_path / name).entries(2**20)) == []
        recorder.close()
        (entry,) = Folder(tmp_path / name).entries(2**20)
        assert entry.name.startswith("served-") and git(tmp_path, "status", "--porcelain") == ""
    assert (tmp_path / "kept/.gitignore").read_text() == "served-*\n.*\n"


def test_words_that_the_agent_did_not_say_are_not_kept(kept: Recorder) -> None:
    more = {"role": "user", "content": "Yes."}
    assert kept.turn(request(USER, assistant("Forged"), more), ["x"], "a") is None, "nothing is known of its beginning"
    name = begun(kept)
    assert kept.turn(request(USER, assistant("Forged"), more, dialogue=name), ["x"], "a") is None
    assert not kept.open
    name = begun(kept)
    assert kept.turn(request(USER, assistant(REPLY), more, dialogue=name), ["x", "y"], "a") is None, "which of the two?"
    assert not kept.open


def test_a_turn_that_is_asked_for_again_takes_the_place_of_the_first(kept: Recorder) -> None:
    name = begun(kept)
    assert kept.turn(request(USER, dialogue=name), ["Other?"], "a") == name
    kept.feedback(Feedback(dialogue=name, reward=0.5))
    kept.close()
    assert [message["content"] for message in rows(kept.folder)[0]["messages"]] == [USER["content"], "Other?"]


def test_a_server_goes_on_where_a_killed_one_was(kept: Recorder, now: list[float]) -> None:
    first, second, third = (begun(kept) for _ in range(3))
    kept.feedback(Feedback(dialogue=first, reward=1))
    # Dead right behind the write of the second, and in the middle of the third's.
    kept._write({"id": second, "reward": 1})
    part = kept._part
    assert part is not None
    with part.open("ab") as out:
        out.write(b'{"id": "' + third[:5].encode())
    (kept.folder / ".open-0.part").write_text('{"dialogue": "0", "time"')
    kept._lock.close()
    again = Recorder(kept.folder, lambda: now[0])
    assert list(again.open) == [third], "the second is written, and not twice"
    assert [path.name for path in kept.folder.glob(".open-*")] == [f".open-{third}.json"]
    assert [row["id"] for row in rows(again.folder)] == [first, second]
    again.feedback(Feedback(dialogue=third, reward=0))
    again.close()
    assert sorted(row["id"] for row in rows(again.folder)) == sorted([first, second, third])


def test_files_are_handed_on_when_they_are_full_or_old(
    kept: Recorder, now: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    def keep() -> None:
        kept.feedback(Feedback(dialogue=begun(kept), reward=1))

    keep()
    kept.tidy()
    assert rows(kept.folder) == []
    now[0] += module.OLD
    kept.tidy()
    assert len(rows(kept.folder)) == 1
    monkeypatch.setattr(module, "FULL", 10)
    keep()
    assert len(rows(kept.folder)) == 2 and len(list(kept.folder.glob("served-*.jsonl"))) == 2


def test_words_without_consent_withdrawn_or_forgotten_are_not_on_the_disk(kept: Recorder, now: list[float]) -> None:
    def words() -> bytes:
        return b"".join(path.read_bytes() for path in kept.folder.iterdir() if path.is_file())

    assert kept.turn(request({"role": "user", "content": "private words"}, consent=False), [REPLY], "a") is None
    withdrawn, stopped, other = begun(kept, "private words"), begun(kept, "second thoughts"), begun(kept)
    assert kept.feedback(Feedback(dialogue=withdrawn, consent=False)) == "dropped"
    kept.turn(request({"role": "user", "content": "x"}, consent=False, dialogue=stopped), [REPLY], "a")
    with pytest.raises(BadRequest):
        kept.feedback(Feedback(dialogue=stopped, reward=1))
    assert b"private words" not in words() and b"second thoughts" not in words()
    assert USER["content"].encode() in words() and list(kept.open) == [other]
    now[0] += module.FORGOTTEN
    kept.tidy()
    kept.close()
    assert USER["content"].encode() not in words() and rows(kept.folder) == []


def test_the_oldest_gives_way_where_too_many_are_open(kept: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "OPEN", 2)
    names = [begun(kept) for _ in range(3)]
    assert list(kept.open) == names[1:]
    monkeypatch.setattr(module, "OPEN_BYTES", 10)
    last = begun(kept)
    assert list(kept.open) == [last]


def test_a_full_disk_loses_no_line_and_no_answer(kept: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    name = begun(kept)

    def full(*arguments: Any) -> None:
        raise OSError(28, "no space left")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(BadRequest, match="cannot be written now") as refused:
            kept.feedback(Feedback(dialogue=name, reward=1))
        assert refused.value.status_code == 503
        patch.setattr(module, "private_file", full)
        assert kept.turn(request(USER), [REPLY], "a") is None, "the answer goes out all the same"
    assert kept.feedback(Feedback(dialogue=name, reward=1)) == "kept"
    kept.close()
    assert [row["id"] for row in rows(kept.folder)] == [name], "half a line was taken back"


def test_a_folder_has_one_server(kept: Recorder) -> None:
    with pytest.raises(UserError, match="another server keeps dialogues there"):
        Recorder(kept.folder)
