"""One ingest: what is new in a source is read, validated, and made a batch; all the rest is named and kept.

Everything goes into two folders, the batch's and the state's, which nobody else sees yet. Whoever calls this makes them
known afterwards, both at once (tasks/ingestion.py): a death in between has changed nothing.
"""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from sweetrl.config.settings import IngestSettings, Settings
from sweetrl.errors import UserError
from sweetrl.ingest.checks import Checks, DialogueChecks, TaskChecks
from sweetrl.ingest.sources import Changed, Entry, Source, name_fault, read_rows
from sweetrl.io import PART, private_file, private_folder
from sweetrl.paths import TEST_TASKS, VALIDATION_TASKS

MIB = 2**20
BAD_ROWS = 1000  # of one file; one with more is put aside as a whole
MOST_BAD = 10 * BAD_ROWS  # of one ingest; the files behind are left for the next one
SEEN, ROWS, QUARANTINE = "seen", "rows", "quarantine"  # the folders of a `State`


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
    """What has been seen and taken, in `folder`, which DVC tracks; every ingest adds files and changes none.

    seen/000007.jsonl        the files that ingest 7 has looked at: source, name, size, tag, and what came of them
    rows/000007.txt          a digest of every row that it has taken, so that none is taken twice
    quarantine/000007.jsonl  the files and rows that it has not taken, with the reason; rows as they came

    A folder that is missing is that of a project which has never ingested.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def seen(self, source: str) -> dict[Entry, tuple[str, int]]:
        """Return the files of `source` that were looked at: the last ingest that did, and how much was bad in them."""
        seen = dict[Entry, tuple[str, int]]()
        for path in sorted((self.folder / SEEN).glob("*.jsonl")):
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
                try:
                    look = Look(**json.loads(line))
                except (ValueError, TypeError) as error:
                    raise UserError(
                        f"{path}: line {number} is no ingest's; take the data of the branch `ingest` once more."
                    ) from error
                if look.source == source:
                    seen[Entry(look.name, look.size, look.tag)] = (path.stem, look.bad)
        return seen

    def digests(self) -> set[str]:
        """Return the digests of all rows that were taken."""
        files = sorted((self.folder / ROWS).glob("*.txt"))
        return {line for path in files for line in path.read_text(encoding="ascii").split()}

    def add(self, number: str, looks: Iterable[Look], rows: Iterable[str], bad: Iterable[Bad]) -> None:
        """Add what ingest `number` has seen, taken and put aside."""
        self._write(SEEN, f"{number}.jsonl", (json.dumps(asdict(look)) for look in looks))
        self._write(ROWS, f"{number}.txt", rows)
        self._write(QUARANTINE, f"{number}.jsonl", (json.dumps(row.as_row()) for row in bad))

    def _write(self, kind: str, name: str, lines: Iterable[str]) -> None:
        lines = list(lines)
        if lines:
            private_file(self.folder / kind / name).write_text("".join(f"{line}\n" for line in lines), "utf-8")


def digest_of(row: bytes) -> str:
    """Return 32 hex digits that stand for a row, without the blanks around it."""
    return hashlib.sha256(row.strip()).hexdigest()[:32]


@dataclass(frozen=True)
class Made:
    """What an ingest came to. `batch` is "" where no row could be taken; `files` counts those that were looked at.

    `holds` names the batches whose rows it has, its own among them, oldest first. `lacks` says why nothing can be
    trained on it alone, "" where it can. `later` counts files that are left for the next run.
    """

    number: str
    source: str
    kind: str
    batch: str = ""
    files: int = 0
    rows: int = 0
    repeated: int = 0
    without_consent: int = 0
    bad: int = 0
    later: int = 0
    holds: tuple[str, ...] = ()
    lacks: str = ""


@dataclass
class _Taken:
    """The rows that are taken so far: where each line of the new file came from."""

    looks: list[Look] = field(default_factory=list)
    origins: list[tuple[int, int, str]] = field(default_factory=list)  # look, line, digest
    bad: list[Bad] = field(default_factory=list)


def checks_of(settings: Settings, root: Path, docs: Path) -> Checks:
    """Return the checks of `ingest.kind`; the project at `root` says which tasks are held out, if it has any yet."""
    from sweetrl.colbench.store import read_task_table

    if settings.ingest.kind == "tasks":
        return TaskChecks(settings, root, docs)
    tables = [root / path for path in (VALIDATION_TASKS, TEST_TASKS) if (root / path).exists()]
    return DialogueChecks(settings, [task for table in tables for task in read_task_table(table)], docs)


def make_batch(
    settings: Settings,
    source: Source,
    state: State,
    number: str,
    out: Path,
    checks: Callable[[], Checks],
    earlier: Callable[[], Sequence[Path]],
    again: bool = False,
) -> Made | None:
    """Take what is new in `source` as batch `out.name`, a new folder, and add to `state`; None where nothing is new.

    `earlier` returns the files of the batch before, oldest first, which the window is filled up with. With `again`,
    files in which something was bad are looked at once more: rows that were taken before are not taken twice.
    """
    limits = settings.ingest
    new, later = _new(source, state.seen(source.place), again, limits)
    if not new:
        return None
    private_folder(out)
    part = out / f"{out.name}.jsonl"
    taken, left = _read(source, new, part, state.digests(), limits)
    if not taken.looks:  # all of them have changed while they were read
        shutil.rmtree(out)
        return None
    holds, lacks = tuple[str, ...](), ""
    if taken.origins:
        files, rules = [*_window(earlier(), limits.window, out), part], checks()
        _sift(rules, files, taken)
    if taken.origins:
        rules.finish([path for path in files if path.exists()], out)
        holds, lacks = tuple(path.stem for path in files), rules.lacks
    else:
        shutil.rmtree(out)
    for look, _, _ in taken.origins:
        taken.looks[look].taken += 1
    state.add(number, taken.looks, (digest for *_, digest in taken.origins), taken.bad)
    return Made(
        number,
        source.place,
        limits.kind,
        batch=out.name if holds else "",
        files=len(taken.looks),
        rows=len(taken.origins),
        repeated=sum(look.repeated for look in taken.looks),
        without_consent=sum(look.without_consent for look in taken.looks),
        bad=len(taken.bad),
        later=later + left,
        holds=holds,
        lacks=lacks,
    )


def _new(
    source: Source, seen: Mapping[Entry, tuple[str, int]], again: bool, limits: IngestSettings
) -> tuple[list[Entry], int]:
    """The files to look at now, and how many are left for later.

    With `again` also those in which something was bad: behind the new ones, that looked at longest ago first.
    """
    entries: Iterable[Entry] = source.entries(limits.file_mib * MIB)
    if again:
        entries = sorted(entries, key=lambda entry: seen.get(entry, ("", 0))[0])
    chosen, size, later = list[Entry](), 0, 0
    for entry in entries:
        if entry in seen and not (again and seen[entry][1]):
            continue
        fits = not chosen or size + entry.size <= limits.total_mib * MIB or _file_fault(entry, limits)
        if later or len(chosen) >= limits.files or not fits:
            later += 1
            continue
        chosen.append(entry)
        size += 0 if _file_fault(entry, limits) else entry.size
    return chosen, later


def _file_fault(entry: Entry, limits: IngestSettings) -> str | None:
    """Why a file is not read, None where it is."""
    if entry.size > limits.file_mib * MIB:
        return f"it is larger than {limits.file_mib} MiB (ingest.file_mib); it was not read and is where it was"
    return name_fault(entry.name)


def _read(
    source: Source, entries: Sequence[Entry], part: Path, known: set[str], limits: IngestSettings
) -> tuple[_Taken, int]:
    """Write the rows of `entries` that are new and can be read to `part`; the second value counts files left for later.

    Those have changed while they were read, or so much was bad before them that the next ingest is to look at them.
    """
    taken, left = _Taken(), 0
    with tempfile.TemporaryDirectory(dir=part.parents[1]) as folder, part.open("wb") as out:
        staged = Path(folder) / "file"
        for entry in entries:
            if len(taken.bad) >= MOST_BAD:
                left += 1
                continue
            look = Look(source.place, entry.name, entry.size, entry.tag)
            if fault := _file_fault(entry, limits):
                look.bad = 1
                taken.looks.append(look)
                taken.bad.append(Bad(entry.name, None, fault))
                continue
            try:
                source.fetch(entry, staged, limits.file_mib * MIB)
            except Changed:  # the next run sees it as it is then
                left += 1
                continue
            before = (out.tell(), len(taken.origins), len(taken.bad))
            taken.looks.append(look)
            for row in read_rows(staged, limits):
                if limits.kind == "dialogues" and row.consent is False:
                    look.without_consent += 1
                elif row.fault:
                    look.bad += 1
                    taken.bad.append(Bad(entry.name, row.number, row.fault, row.line))
                elif (digest := digest_of(row.line)) in known:
                    look.repeated += 1
                else:
                    known.add(digest)
                    out.write(row.line + b"\n")
                    taken.origins.append((len(taken.looks) - 1, row.number, digest))
                if look.bad > BAD_ROWS:  # a file of nothing else would fill memory and the quarantine
                    known.difference_update(digest for *_, digest in taken.origins[before[1] :])
                    del taken.origins[before[1] :], taken.bad[before[2] :]
                    out.seek(before[0])
                    out.truncate()
                    look.bad, look.repeated, look.without_consent = 1, 0, 0
                    taken.bad.append(Bad(entry.name, None, f"more than {BAD_ROWS} of its rows are bad; none was taken"))
                    break
    return taken, left


def _window(earlier: Sequence[Path], window: int, out: Path) -> list[Path]:
    """Copy the last `window` - 1 (0: all) of the files `earlier` into `out`, and return the copies."""
    kept = earlier if window == 0 else earlier[max(0, len(earlier) - window + 1) :]
    return [Path(shutil.copyfile(path, out / path.name)) for path in kept]


def _sift(checks: Checks, files: Sequence[Path], taken: _Taken) -> None:
    """Put rows aside until nothing is wrong with those that stay; an older file may be gone then."""
    while True:
        here = [path for path in files if path.exists()]
        faults = checks.faults(here)
        if not faults:
            return
        for index, path in enumerate(here):
            bad = {number: why for (place, number), why in faults.items() if place == index}
            if bad:
                _put_aside(path, bad, taken, own=path == files[-1])
        if not taken.origins:
            return


def _put_aside(path: Path, bad: dict[int, str], taken: _Taken, own: bool) -> None:
    """Take the lines `bad` out of `path`; of one that has none left nothing is kept but the batch's `own`."""
    staying = path.with_name(f".{path.name}{PART}")
    with path.open("rb") as lines, staying.open("wb") as out:  # a line ends at a line feed and nowhere else
        for number, line in enumerate(lines, start=1):
            if number not in bad:
                out.write(line)
                continue
            name, where = f"batch {path.stem}", number
            if own:
                look, where, _ = taken.origins[number - 1]
                name = taken.looks[look].name
                taken.looks[look].bad += 1
            taken.bad.append(Bad(name, where, bad[number], line.rstrip(b"\n")))
    if own:
        taken.origins = [origin for number, origin in enumerate(taken.origins, start=1) if number not in bad]
    staying.replace(path)
    if not own and not path.stat().st_size:
        path.unlink()


def kind_of(batch: str) -> str:
    """Return the kind of a batch by its name, as in `dialogues-000007`."""
    kind, _, number = batch.rpartition("-")
    if kind not in ("dialogues", "tasks") or not number.isdecimal():
        raise UserError(f"{batch}: this is no batch's name; batches are called as in dialogues-000007.")
    return kind
