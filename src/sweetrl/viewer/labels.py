"""What people say of dialogues in the viewer: a label, which is a reward, and a note; in the project's data/labels/.

labels.jsonl    labelled dialogues, as rows that `sweetrl import`, `sweetrl ingest` and `collect.source: files` take
.notes.jsonl    those with a note alone, in the same form but for the reward; who imports the folder passes it over

Both are written anew at every change, under a lock: several servers may be at work. A dialogue is identified by its
words and its reference: a label stays with it when a stage runs again, and other words in its place have none.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field

from sweetrl.bounded import MIB, read_bytes
from sweetrl.colbench.jsonl import parse_row, read_as
from sweetrl.colbench.logs import LogRow, parse_log
from sweetrl.errors import UserError
from sweetrl.io import digest, private_file, write_text
from sweetrl.paths import LABELS, project_cache
from sweetrl.thoughts import assistant_message, split_thoughts

if TYPE_CHECKING:
    from sweetrl.colbench.domain import Domain
    from sweetrl.types import Trajectory

LONGEST_NOTE = 2_000  # characters
MOST_BYTES = 64 * MIB  # of either file
PEOPLE = ("", "human", "replay")  # users who are or may be people: whether they agree is not for us to say


class Label(BaseModel):
    """The label of a dialogue: its reward, None for no label, and a note."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", allow_inf_nan=False)

    reward: float | None = None
    note: str = Field("", max_length=LONGEST_NOTE)


class Change(Label):
    """A new label; `before` is the one that whoever changes it has seen."""

    before: Label


class Labels:
    """The labels of the project that we stand in; without one there is no place for them."""

    def __init__(self, suite: str) -> None:
        self.suite, self.folder = suite, project_cache(LABELS)

    def all(self) -> dict[str, Label]:
        """Return the labels by the dialogues' keys; UserError for files that nobody can read."""
        return {key: _label(row) for key, row in self._rows().items()}

    def put(self, dialogue: Trajectory, domain: Domain, change: Change) -> str:
        """Keep a dialogue's new label, in place of what is kept; return the dialogue's key.

        UserError where somebody else has said something since, where an import would refuse the dialogue, or where it
        is of another domain than the project's.
        """
        if self.folder is None:
            raise UserError("Labels are kept in a project: start `sweetrl view` in its folder.")
        if (suite := dialogue.task.suite) != self.suite:
            raise UserError(f"This dialogue is of {suite}, the project of {self.suite}: label another one.")
        with self._locked(self.folder):
            rows, key = self._rows(), key_of(dialogue)
            if _label(rows.get(key, {})) != change.before:
                raise UserError("Somebody else has said something of this dialogue since; load the page again.")
            rows[key] = _row(key, dialogue, domain, change)
            parse_row(json.dumps(rows[key]).encode(), "label")
            if change.reward is not None:
                parse_log(rows[key], "label", domain)
            elif not change.note:
                del rows[key]
            # What comes into a file is written before it leaves the other one.
            for labelled in (True, False) if change.reward is not None else (False, True):
                text = "".join(json.dumps(row) + "\n" for row in rows.values() if ("reward" in row) is labelled)
                if len(text) > MOST_BYTES:
                    raise UserError(f"{self.folder}: the labels are too many; move the files away, and begin anew.")
                write_text(self._path(labelled), text)
        return key

    def _path(self, labelled: bool) -> Path:
        return (self.folder or Path()) / ("labels.jsonl" if labelled else ".notes.jsonl")

    def _rows(self) -> dict[str, dict[str, Any]]:
        """The rows of both files by key; those that somebody has written by hand stay."""
        rows = dict[str, dict[str, Any]]()
        for path in (self._path(False), self._path(True)) if self.folder else ():
            content = read_bytes(path, MOST_BYTES) if path.exists() else b""
            for number, line in enumerate(content.split(b"\n"), start=1):
                if line.strip():
                    row = parse_row(line, where := f"{path}: line {number}")
                    read_as(LogRow, row, where)
                    rows[str(row.get("id", where))] = row
        return rows

    @contextmanager
    def _locked(self, folder: Path) -> Iterator[None]:
        with private_file(folder / ".lock").open("r+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def key_of(dialogue: Trajectory) -> str:
    """Return what tells a dialogue: a digest of its words and its reference."""
    return digest(dialogue.task.ground_truth, [[message.role, message.content] for message in dialogue.messages])


def _label(row: Mapping[str, Any]) -> Label:
    note = (row.get("metadata") or {}).get("note", "")
    return Label.model_construct(reward=row.get("reward"), note=str(note))


def _row(key: str, dialogue: Trajectory, domain: Domain, label: Label) -> dict[str, Any]:
    """A labelled dialogue as docs/own-dialogues.md has it."""
    raw, marks = {turn.message_index: turn.raw for turn in dialogue.turns}, domain.settings.model.marks
    messages = [
        assistant_message(*split_thoughts(raw.get(index, message.content), marks))
        if message.role == "assistant"
        else {"role": message.role, "content": message.content}
        for index, message in enumerate(dialogue.messages)
    ]
    row: dict[str, Any] = {"id": key, "task_id": dialogue.task.id, "messages": messages}
    fields = {"reward": label.reward, "reference": dialogue.task.ground_truth or None, "model": dialogue.policy or None}
    row |= {name: value for name, value in fields.items() if value is not None}
    row |= {"metadata": {"note": label.note}} if label.note else {}
    return row | ({} if dialogue.simulator in PEOPLE else {"consent": True})
