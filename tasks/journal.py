"""The journal of a retraining: what has been done, step by step, so that whoever comes after a death can go on.

A file of JSON lines for each retraining in git's common folder (`.git/sweetrl/retrain/`), which all worktrees of a
repository share and no clean-up of the checkout removes. The process at work holds the file's lock, which the system
takes back when the process ends, however it ends: a journal that is neither locked nor done has been left by a death.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sweetrl.errors import UserError
from sweetrl.io import append_row, private_file, read_rows
from sweetrl.tracking.registry import utc_now
from tasks.workspace import git

DONE = "done"


def common_folder(root: Path) -> Path:
    """Return the folder of this project in git's common folder; a UserError where `root` is in no repository."""
    folder = git(root, "rev-parse", "--path-format=absolute", "--git-common-dir", check=False)
    if folder.returncode:
        raise UserError(f"{root}: this is not a git repository with a commit; batches and retrainings need one.")
    return Path(folder.stdout.strip()) / "sweetrl"


@contextlib.contextmanager
def one_at_a_time(root: Path, what: str, say: Callable[[str], object] | None = None) -> Iterator[None]:
    """Let one process of this machine after the other do `what` in the repository; the others wait, and `say` so."""
    path = common_folder(root) / f"{what}.lock"
    with private_file(path).open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if say is not None:
                say(f"{root}: waiting until another process of this repository has ended its {what}")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def promoting(root: Path, say: Callable[[str], object] | None = None) -> Iterator[None]:
    """Let one process after the other move the champion's alias, a branch and a checkout; without git nobody waits."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(UserError):
            stack.enter_context(one_at_a_time(root, "promotion", say))
        yield


class Record:
    """The steps of one retraining that are done, oldest first, as the journal `path` has them."""

    def __init__(self, path: Path, rows: list[dict[str, Any]]) -> None:
        self.path, self.rows = path, rows

    def last(self, step: str) -> dict[str, Any]:
        """Return the facts of the last `step` of this name, {} where it was never done."""
        return next((row for row in reversed(self.rows) if row["step"] == step), {})

    @property
    def order(self) -> dict[str, Any]:
        """What the retraining is to do, as it was written down before its batch was taken."""
        return self.last("taking")

    @property
    def branch(self) -> str:
        """The retraining's branch; "" where it died before it had one."""
        return str(self.order.get("branch", ""))


class Journal(Record, contextlib.AbstractContextManager["Journal"]):
    """A record that is written; a context manager that holds its lock.

    BlockingIOError where a process is at work on it; a `new` one is looked at for a moment at most, and waits.
    """

    def __init__(self, path: Path, new: bool = False) -> None:
        super().__init__(path, [])
        self._handle = private_file(path).open("ab")
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | (0 if new else fcntl.LOCK_NB))
        except BlockingIOError:
            self._handle.close()
            raise
        read_rows(path, lambda row: self.rows.append({"step": row["step"], **row}))

    def note(self, step: str, **facts: Any) -> None:
        """Write that `step` is done, with what must be known to go on from there; on the disk when this returns."""
        row = {"step": step, "time": utc_now(), **facts}
        append_row(self.path, row, durable=True)
        self.rows.append(row)

    def close(self) -> None:
        """Give the lock back."""
        self._handle.close()

    def __exit__(self, *error: object) -> None:
        self.close()


def journals(root: Path) -> Iterator[Journal]:
    """Yield the journals on which no process is at work, oldest first, each held until the next one is asked for."""
    for path in sorted((common_folder(root) / "retrain").glob("*.jsonl")):
        with contextlib.suppress(BlockingIOError), Journal(path) as journal:
            yield journal


def recorded(root: Path) -> Iterator[tuple[Record, bool]]:
    """Yield each journal, oldest first, and whether a process is at work on it; nothing is written or held.

    The lock is tried for a moment: nobody else is kept from the journal while it is read.
    """
    for path in sorted((common_folder(root) / "retrain").glob("*.jsonl")):
        with path.open("rb") as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
                fcntl.flock(handle, fcntl.LOCK_UN)
                at_work = False
            except BlockingIOError:
                at_work = True
            rows: list[dict[str, Any]] = []
            with contextlib.suppress(ValueError):  # what a power cut has broken
                for line in handle.read().split(b"\n")[:-1]:
                    rows.append(json.loads(line))
        yield Record(path, rows), at_work


def new_journal(root: Path) -> Journal:
    """Return the journal of a new retraining; by name they are in the order of time."""
    now = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    return Journal(common_folder(root) / "retrain" / f"{now}-{uuid.uuid4().hex[:8]}.jsonl", new=True)
