"""Recorded answers of users: what was said after which dialogue, a JSON object a line; so reruns cost nothing."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Sequence
from pathlib import Path

from sweetrl.colbench.jsonl import field, read_rows
from sweetrl.errors import SimulatorError, UserError
from sweetrl.io import private_file
from sweetrl.types import Message, Task


class Recording:
    """Answers in the file `path`, found by the speaker and the whole dialogue before them.

    `add` appends a line at once, so a killed run keeps what it has paid for; a line that a kill has broken off is left
    out, and fixed by the next one. Thread-safe. Raises UserError for a file of another kind.
    """

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        self._lock = threading.Lock()
        self._known: dict[tuple[str, str], str] = {}
        self._anyone: dict[str, str] = {}
        self._whole = True
        if self.path.exists():
            self._read()

    def __len__(self) -> int:
        return len(self._known)

    def find(self, task: Task, messages: Sequence[Message], speaker: str | None = None) -> str | None:
        """Return what `speaker` (None: whoever was recorded first) answered, or None."""
        key = dialogue_key(task, messages)
        with self._lock:
            return self._anyone.get(key) if speaker is None else self._known.get((speaker, key))

    def add(self, task: Task, messages: Sequence[Message], speaker: str, reply: str) -> None:
        """Keep what `speaker` answered."""
        key = dialogue_key(task, messages)
        line = json.dumps({"speaker": speaker, "dialogue": key, "task": task.id, "reply": reply}) + "\n"
        with self._lock:
            if (speaker, key) in self._known:
                return
            self._known[speaker, key] = reply
            self._anyone.setdefault(key, reply)
            with private_file(self.path).open("a", encoding="utf-8", newline="\n") as target:
                target.write(line if self._whole else "\n" + line)
            self._whole = True

    def _read(self) -> None:
        text = self.path.read_text(encoding="utf-8", errors="replace")
        self._whole = not text or text.endswith("\n")
        for number, line in enumerate(text.split("\n"), start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
                speaker, key, reply = str(row["speaker"]), str(row["dialogue"]), str(row["reply"])
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                if isinstance(error, ValueError) and not line.endswith("}"):
                    continue  # broken off by a kill
                raise UserError(
                    f"{self.path}: line {number}: this is no recorded answer (speaker, dialogue, reply); name another "
                    "file in `simulator.recording`."
                ) from error
            self._known.setdefault((speaker, key), reply)
            self._anyone.setdefault(key, reply)


class RecordedSimulator:
    """Says what is recorded for exactly this dialogue, by whomever; a dialogue that left the recording is lost."""

    name = "replay"
    instant = checked = True

    def __init__(self, recording: Recording) -> None:
        self.recording = recording

    def reply(self, task: Task, messages: Sequence[Message], seed: int) -> str:
        """Return the recorded answer; SimulatorError where there is none."""
        found = self.recording.find(task, messages)
        if found is None:
            raise SimulatorError(
                f"task {task.id!r}: no recorded reply after {len(messages)} messages; the agent has left the recording"
            )
        return found


def dialogue_key(task: Task, messages: Sequence[Message]) -> str:
    """Return what identifies a dialogue about a task so far: a digest of the request, the reference and every word."""
    content = [task.problem_description, task.ground_truth, *[[one.role, one.content] for one in messages]]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:32]


def is_recording(path: Path) -> bool:
    """Whether a JSON Lines file holds recorded answers (not trajectories), by its first row."""
    for number, row in read_rows(path):
        if "dialogue" in row and "speaker" in row:
            field(row, "reply", str, f"{path}: line {number}")
            return True
        return False
    return False
