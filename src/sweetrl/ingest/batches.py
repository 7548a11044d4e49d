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
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from operator import itemgetter
from pathlib import Path

from sweetrl.config.settings import IngestSettings, Settings
from sweetrl.errors import UserError
from sweetrl.ingest.checks import DialogueChecks, TaskChecks
from sweetrl.ingest.sources import Bucket, Changed, Entry, Folder, name_fault, read_rows
from sweetrl.io import PART, private_file, private_folder

MIB = 2**20
FILES, TOTAL = 1000, 1024 * MIB  # that are looked at in one ingest
Checks = DialogueChecks | TaskChecks
BAD_ROWS = 1000  # of one file; one with more is put aside as a whole
MOST_BAD = 10 * BAD_ROWS  # of one ingest; the files behind are left for the next one


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


@dataclass
class _Taken:
    """What was looked at and taken so far, and what was put aside."""

    looks: list[Look] = field(default_factory=list)
    origins: list[tuple[Look, int, str]] = field(default_factory=list)  # for each row taken: its file, line and digest
    bad: list[dict[str, object]] = field(default_factory=list)

    def put_aside(self, file: str, line: int | None, why: str, row: bytes = b"") -> None:
        """Note a file (`line` is None) or a row of it: as text, or where it is no UTF-8, its bytes in base64."""
        facts: dict[str, object] = {"file": file, "line": line, "why": why}
        if line is not None:
            try:
                facts["row"] = row.decode("utf-8")
            except UnicodeDecodeError:
                facts["base64"] = base64.b64encode(row).decode()
        self.bad.append(facts)


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
        for path in sorted((self.folder / "seen").glob("*.jsonl")):
            for look in (Look(**json.loads(line)) for line in path.read_text("ascii").splitlines()):
                if look.source == source:
                    seen[Entry(look.name, look.size, look.tag)] = (path.stem, look.bad)
        return seen

    def digests(self) -> set[str]:
        """Return the digests of all rows that were taken."""
        return {digest for path in (self.folder / "rows").glob("*.txt") for digest in path.read_text("ascii").split()}

    def add(self, number: str, taken: _Taken) -> None:
        """Add what ingest `number` has seen, taken and put aside."""
        for name, lines in (
            (f"seen/{number}.jsonl", [json.dumps(asdict(look)) for look in taken.looks]),
            (f"rows/{number}.txt", [digest for *_, digest in taken.origins]),
            (f"quarantine/{number}.jsonl", [json.dumps(facts) for facts in taken.bad]),
        ):
            if lines:
                private_file(self.folder / name).write_text("".join(f"{line}\n" for line in lines), "utf-8")


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


def checks_of(settings: Settings, root: Path, docs: Path) -> Checks:
    """Return the checks of `ingest.kind`; the project at `root` says which tasks are held out, if it has any yet."""
    return (TaskChecks if settings.ingest.kind == "tasks" else DialogueChecks)(settings, root, docs)


def make_batch(
    settings: Settings,
    source: Folder | Bucket,
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
    new, later = _new(source, state, again, limits)
    if not new:
        return None
    part = private_folder(out) / f"{out.name}.jsonl"
    taken, left = _read(source, new, part, state.digests(), limits)
    files, lacks = list[Path](), ""
    if taken.origins:
        before = earlier()
        kept = before[max(0, len(before) - limits.window + 1) :] if limits.window else before
        files, rules = [*(Path(shutil.copyfile(path, out / path.name)) for path in kept), part], checks()
        lacks = _sift(rules, files, taken)
        if isinstance(rules, TaskChecks):
            rules.finish(files, out)
    if not taken.origins:
        shutil.rmtree(out)
        files, lacks = [], ""
    if not taken.looks:  # all of them have changed while they were read
        return None
    for look, *_ in taken.origins:
        look.taken += 1
    state.add(number, taken)
    return Made(
        number,
        source.place,
        limits.kind,
        batch=out.name if files else "",
        files=len(taken.looks),
        rows=len(taken.origins),
        repeated=sum(look.repeated for look in taken.looks),
        without_consent=sum(look.without_consent for look in taken.looks),
        bad=len(taken.bad),
        later=later + left,
        holds=tuple(path.stem for path in files),
        lacks=lacks,
    )


def _new(source: Folder | Bucket, state: State, again: bool, limits: IngestSettings) -> tuple[list[Entry], int]:
    """The files to look at now, and how many are left for later.

    The folders of a source take turns, and each gives its oldest file first: no names, and no number of new files,
    keep others out. With `again` also those in which something was bad: behind the new ones, that looked at longest ago
    first.
    """
    seen, chosen, size, later = state.seen(source.place), list[Entry](), 0, 0
    entries = source.entries(limits.file_mib * MIB)
    waiting = [entry for entry in entries if entry not in seen or (again and seen[entry][1])]
    turns, queue = Counter[str](), list[tuple[str, int, Entry]]()
    for entry in sorted(waiting, key=lambda entry: (entry.since, entry.name)):
        turns[entry.folder] += 1
        queue.append((seen.get(entry, ("", 0))[0], turns[entry.folder], entry))
    for _, _, entry in sorted(queue, key=itemgetter(0, 1)):
        more = 0 if _file_fault(entry, limits) else entry.size
        if later or len(chosen) >= FILES or (chosen and more and size + more > TOTAL):
            later += 1
            continue
        chosen.append(entry)
        size += more
    return chosen, later


def _file_fault(entry: Entry, limits: IngestSettings) -> str | None:
    """Why a file is not read, None where it is."""
    if entry.size > limits.file_mib * MIB:
        return f"it is larger than {limits.file_mib} MiB (ingest.file_mib); it was not read and is where it was"
    return name_fault(entry.name)


def _read(
    source: Folder | Bucket, entries: Sequence[Entry], part: Path, digests: set[str], limits: IngestSettings
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
            fault = _file_fault(entry, limits)
            try:
                if not fault:
                    source.fetch(entry, staged, limits.file_mib * MIB)
                    faults = (row for row in read_rows(staged, limits.kind) if row.fault)
                    if sum(1 for _ in islice(faults, BAD_ROWS + 1)) > BAD_ROWS:
                        fault = f"more than {BAD_ROWS} of its rows are bad; none was taken"
            except Changed:  # the next run sees it as it is then
                left += 1
                continue
            look = Look(source.place, entry.name, entry.size, entry.tag)
            taken.looks.append(look)
            if fault:
                look.bad = 1
                taken.put_aside(entry.name, None, fault)
                continue
            for row in read_rows(staged, limits.kind):
                if not row.consent:
                    look.without_consent += 1
                elif row.fault:
                    look.bad += 1
                    taken.put_aside(entry.name, row.number, row.fault, row.line)
                elif (digest := digest_of(row.line)) in digests:
                    look.repeated += 1
                else:
                    digests.add(digest)
                    out.write(row.line + b"\n")
                    taken.origins.append((look, row.number, digest))
    return taken, left


def _sift(checks: Checks, files: list[Path], taken: _Taken) -> str:
    """Put rows aside until nothing is wrong with those that stay, and return what a retraining would miss.

    Of `files` those stay that have a row left, and the batch's own, the last one.
    """
    lacks = ""
    while taken.origins:
        faults, lacks = checks.faults(files)
        if not faults:
            break
        for index, path in enumerate(files):
            bad = {number: why for (place, number), why in faults.items() if place == index}
            if bad:
                _put_aside(path, bad, taken, own=path == files[-1])
        files[:] = [path for path in files if path.exists()]
    return lacks


def _put_aside(path: Path, bad: dict[int, str], taken: _Taken, own: bool) -> None:
    """Take the lines `bad` out of `path`; of one that has none left nothing is kept but the batch's `own`."""
    staying = path.with_name(f".{path.name}{PART}")
    with path.open("rb") as lines, staying.open("wb") as out:  # a line ends at a line feed and nowhere else
        for number, line in enumerate(lines, start=1):
            if number not in bad:
                out.write(line)
            elif own:
                look, where, _ = taken.origins[number - 1]
                look.bad += 1
                taken.put_aside(look.name, where, bad[number], line.rstrip(b"\n"))
            else:
                taken.put_aside(f"batch {path.stem}", number, bad[number], line.rstrip(b"\n"))
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
