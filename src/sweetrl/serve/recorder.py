"""Dialogues with a served agent, kept to learn from: with the client's consent, once their outcome is reported.

A dialogue is open from its first answer on, in memory and in a hidden file of its own; the server that comes after a
death goes on with it. When its outcome comes, it is one row of a file as `sweetrl import` reads them
(docs/own-dialogues.md). These files have a hidden name while they grow, and are renamed when they are full or old:
whoever lists the folder sees complete files. All is for its owner alone. What nobody agreed to is written nowhere.
"""

from __future__ import annotations

import fcntl
import json
import logging
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sweetrl.colbench.markers import visible_reply
from sweetrl.engines.remote import clean
from sweetrl.errors import UserError
from sweetrl.io import PART, append_row, private_file, private_folder, read_rows, write_text
from sweetrl.serve.chat_requests import BadRequest, ChatRequest, Feedback
from sweetrl.thoughts import assistant_message, split_thoughts

logger = logging.getLogger("sweetrl")

FULL = 16 * 2**20  # bytes of a file before the next one is begun
OLD = 3600.0  # seconds before a file that is not full is handed on
FORGOTTEN = 7 * 86400.0  # seconds without a word after which no outcome is waited for
OPEN = 10_000  # dialogues that wait for their outcome; the oldest gives way
OPEN_BYTES = 256 * 2**20  # of all of them together

Words = list[dict[str, str]]
Split = Callable[[str], tuple[str, str]]
# A dialogue without an outcome: its id (`dialogue`), its `messages`, the agent's last version in it (`model`), and when
# its last turn came (`time`).
Open = dict[str, Any]


class Recorder:
    """Keeps dialogues in `folder`, which is this process's alone; `close` hands the last file on."""

    def __init__(self, folder: Path, clock: Callable[[], float] = time.time) -> None:
        self.folder, self.clock = private_folder(folder), clock
        self.open: dict[str, Open] = {}
        self._lock = private_file(folder / ".lock").open("r+")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self._lock.close()
            raise UserError(f"{folder}: another server keeps dialogues there; name a folder for this one.") from error
        if not (folder / ".gitignore").exists():  # `git add -A` would put people's words into a checkout's history
            write_text(folder / ".gitignore", "*\n")
        self._part: Path | None = None
        self._begun = 0.0
        self._recover()

    def turn(
        self, request: ChatRequest, replies: Sequence[str], model: str, split: Split = split_thoughts
    ) -> str | None:
        """Take a turn that was answered; return the dialogue's id, None where it is not kept.

        `split` tells the thoughts of a raw reply from what the client was shown. A request that names an open dialogue,
        and is not its next turn or has no consent, ends it unkept.
        """
        name = request.dialogue
        before = self.open.get(name)
        words = _followed(before["messages"] if before else [], request.messages)
        if not request.consent or len(replies) != 1 or words is None:
            if before is not None:
                self._end(name)
            return None
        if before is None:
            name = secrets.token_hex(16)
        words = [*words, assistant_message(*map(clean, split(replies[0])))]
        self.open.pop(name, None)  # now it is the youngest
        self.open[name] = {"dialogue": name, "time": self.clock(), "messages": words, "model": model}
        try:
            temporary = private_file(self._path(name).with_suffix(PART))
            temporary.write_text(json.dumps(self.open[name]), encoding="utf-8")
            temporary.replace(self._path(name))
        except (OSError, UserError) as error:  # the answer is what counts
            logger.warning("a dialogue cannot be kept: %s", error)
            self._end(name)
            return None
        self._make_room()
        return name

    def feedback(self, given: Feedback) -> str:
        """Close a dialogue: return "kept" where it was written, "dropped" where the client no longer agrees.

        BadRequest where it is not open, and where it cannot be written now: it stays open then.
        """
        dialogue = self.open.get(given.dialogue)
        if dialogue is None:
            raise BadRequest(
                "There is no open dialogue of this id: it has its outcome, was forgotten, or was held without consent.",
                404,
                "dialogue_not_found",
            )
        if not given.consent:
            self._end(given.dialogue)
            return "dropped"
        when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(dialogue["time"]))
        row = {"id": given.dialogue, **given.facts, "messages": dialogue["messages"], "model": dialogue["model"]}
        try:
            self._write(row | {"consent": True, "metadata": {"time": when}})
        except (OSError, UserError) as error:
            logger.warning("a dialogue cannot be written: %s", error)
            raise BadRequest("The dialogue cannot be written now; try again later.", 503, "not_written") from error
        self._end(given.dialogue)
        return "kept"

    def tidy(self) -> None:
        """Forget dialogues whose outcome never came, and hand a file on that is old."""
        now = self.clock()
        for name in [name for name, dialogue in self.open.items() if now - dialogue["time"] >= FORGOTTEN]:
            self._end(name)
        if now - self._begun >= OLD:
            self.rotate()

    def rotate(self) -> None:
        """Give the file that is being written its name, if there is one."""
        if self._part is not None:
            _hand_on(self._part)
            self._part = None

    def close(self) -> None:
        """Hand the last file on and let others have the folder."""
        self.rotate()
        self._lock.close()

    def _recover(self) -> None:
        """Take up what a server before has left: open dialogues, and files without their name."""
        written = set[str]()
        for part in sorted(self.folder.glob(f".served-*{PART}")):
            read_rows(part, lambda row: written.add(row["id"]))
            if part.stat().st_size:
                _hand_on(part)
            else:
                part.unlink()
        rows = list[Open]()
        for path in self.folder.glob(".open-*"):
            try:
                row = json.loads(path.read_bytes())
                rows.append({key: row[key] for key in ("time", "dialogue", "messages", "model")})
            except (ValueError, KeyError, TypeError):  # the server, or the machine, died as it was written
                path.unlink()
        self.open = {row["dialogue"]: row for row in sorted(rows, key=lambda row: row["time"])}
        for name in written & self.open.keys():  # written, and dead before that was noted
            self._end(name)

    def _path(self, name: str) -> Path:
        """Where an open dialogue is kept: hidden, so that an ingest of the folder passes it over."""
        return self.folder / f".open-{name}.json"

    def _end(self, name: str) -> None:
        """Forget a dialogue that is open no longer; where its file stays, a later server forgets it in time."""
        self.open.pop(name, None)
        try:
            for suffix in (".json", PART):
                self._path(name).with_suffix(suffix).unlink(missing_ok=True)
        except OSError as error:
            logger.warning("a dialogue cannot be removed: %s", error)

    def _make_room(self) -> None:
        size = sum(map(_size, self.open.values()))
        while len(self.open) > OPEN or (size > OPEN_BYTES and len(self.open) > 1):
            oldest = next(iter(self.open))
            size -= _size(self.open[oldest])
            self._end(oldest)

    def _write(self, row: Mapping[str, Any]) -> None:
        """Append a row, on the disk when this returns, or not at all."""
        if self._part is None:
            now = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(self.clock()))
            self._part = private_file(self.folder / f".served-{now}-{secrets.token_hex(4)}.jsonl{PART}")
            self._begun = self.clock()
        append_row(self._part, row, durable=True)
        if self._part.stat().st_size >= FULL:
            self.rotate()


def _size(dialogue: Open) -> int:
    """Characters of its words, about."""
    return sum(len(words) for message in dialogue["messages"] for words in message.values())


def _followed(words: Words, messages: Sequence[Mapping[str, str]]) -> Words | None:
    """Return the words before the agent's next reply, as they are kept; None where the client's are others.

    A client may go back to an earlier turn, and may send the visible part of a reply in place of all of it.
    """
    past = len(messages) - 1
    if past > len(words):
        return None
    for kept, sent in zip(words[:past], messages[:past], strict=True):
        same = {kept["content"].strip(), visible_reply(kept["content"]).strip()}
        if kept["role"] != sent["role"] or sent["content"].strip() not in same:
            return None
    return [*words[:past], {"role": "user", "content": messages[-1]["content"]}]


def _hand_on(part: Path) -> None:
    """Give a file its lasting name, under which nothing is written any more."""
    part.replace(part.with_name(part.name.removeprefix(".").removesuffix(PART)))
