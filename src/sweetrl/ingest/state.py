"""What has been seen and taken, in a folder that DVC tracks; every ingest adds files and changes none.

seen/000007.jsonl        the files that ingest 7 has looked at: source, name, size, tag, and what came of them
rows/000007.txt          a digest of every row that it has taken, so that none is taken twice
quarantine/000007.jsonl  the files and rows that it has not taken, with the reason; rows as they came
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from sweetrl.errors import UserError
from sweetrl.ingest.sources import Entry
from sweetrl.io import private_file

SEEN, ROWS, QUARANTINE = "seen", "rows", "quarantine"


@dataclass(frozen=True)
class Bad:
    """A file (`line` is None) or a row of it that was not taken, and why; `row` is the row's bytes."""

    file: str
    line: int | None
    why: str
    row: bytes = b""

    def as_row(self) -> dict[str, object]:
        """What the quarantine holds: the row as text, or where it is no UTF-8, its bytes in base64."""
        facts: dict[str, object] = {"file": self.file, "line": self.line, "why": self.why}
        if self.line is None:
            return facts
        try:
            return {**facts, "row": self.row.decode("utf-8")}
        except UnicodeDecodeError:
            return {**facts, "base64": base64.b64encode(self.row).decode()}


@dataclass
class Look:
    """What came of one file: rows taken, taken before, without consent, and bad ones (a bad file counts as one)."""

    source: str
    name: str
    size: int
    tag: str
    taken: int = 0
    repeated: int = 0
    without_consent: int = 0
    bad: int = 0


class State:
    """The state in `folder`, which may be missing: nothing was ever seen then."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def seen(self, source: str) -> dict[Entry, tuple[str, int]]:
        """Return the files of `source` that were looked at: the last ingest that did, and how much was bad in them."""
        found = dict[Entry, tuple[str, int]]()
        for path in sorted((self.folder / SEEN).glob("*.jsonl")):
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
                try:
                    look = Look(**json.loads(line))
                except (ValueError, TypeError) as error:
                    raise UserError(
                        f"{path}: line {number} is no ingest's; take the data of the branch `ingest` once more."
                    ) from error
                if look.source == source:
                    found[Entry(look.name, look.size, look.tag)] = (path.stem, look.bad)
        return found

    def digests(self) -> set[str]:
        """Return the digests of all rows that were taken."""
        files = sorted((self.folder / ROWS).glob("*.txt"))
        return {line for path in files for line in path.read_text(encoding="ascii").split()}

    def add(self, number: str, looks: Iterable[Look], rows: Iterable[str], bad: Iterable[Bad]) -> None:
        """Add what ingest `number` has seen, taken and put aside."""
        self._write(SEEN, f"{number}.jsonl", (json.dumps(asdict(look)) for look in looks))
        self._write(ROWS, f"{number}.txt", rows)
        self._write(QUARANTINE, f"{number}.jsonl", (json.dumps(one.as_row()) for one in bad))

    def _write(self, kind: str, name: str, lines: Iterable[str]) -> None:
        lines = list(lines)
        if lines:
            private_file(self.folder / kind / name).write_text("".join(f"{line}\n" for line in lines), "utf-8")


def digest_of(row: bytes) -> str:
    """Return 32 hex digits that stand for a row, without the blanks around it."""
    return hashlib.sha256(row.strip()).hexdigest()[:32]
