"""A compact table of all dialogues, made by reading each source once and kept by the hashes of its files.

Of a source there is one Parquet file: the columns of `rows.KINDS`, where to find each dialogue again, and its words in
small letters, which searching streams through. It is never in memory as a whole. Row numbers go over all sources in
their order.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import reduce
from itertools import accumulate, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweetrl.bounded import check_parquet, lines
from sweetrl.colbench.domain import Labels
from sweetrl.console.printing import note
from sweetrl.console.progress import Meter
from sweetrl.errors import UserError
from sweetrl.file_hashes import file_hash
from sweetrl.io import atomic_path, digest
from sweetrl.paths import project_cache
from sweetrl.types import Trajectory
from sweetrl.viewer.labels import key_of
from sweetrl.viewer.ranked import Ranked, ranked_files
from sweetrl.viewer.rows import KINDS, Contrasts, Domains, row_of, row_of_result
from sweetrl.viewer.sources import Source

if TYPE_CHECKING:
    import pyarrow

CACHE = Path(".cache/viewer")
FORMAT = 4  # raise it when the rows of equal dialogues become others
SHARD = 5_000  # rows that the page takes at a time
_BATCH = 1_000  # rows in memory while an index is made
_NOTES = b"sweetrl.viewer"
TEXT = "text"  # the column of the words
KEY, PARTS = "key", "parts"  # what tells a dialogue by its words (sweetrl.viewer.labels), and parts of the reward
MOST_PARTS = 16  # of a reward, as columns of the table


@dataclass(frozen=True)
class Index:
    """The index of one source, made of the files `seen`, each with its hash: its table, and facts of all its rows."""

    source: Source
    table: Path
    count: int
    contrasts: dict[str, list[float]]
    parts: Sequence[str]
    seen: Sequence[tuple[Path, str]]

    def check(self) -> None:
        """Raise a UserError where a file has changed since: its rows would be other dialogues than the table says."""
        if not all(path.exists() and file_hash(path) == content for path, content in self.seen):
            raise UserError(f"{self.source.name}: these dialogues have changed; start `sweetrl view` again.")


class Catalogue:
    """All sources with their indices; `rows` and `search` read what they need from the disk."""

    def __init__(self, indices: Sequence[Index], domains: Domains) -> None:
        self.indices, self.domains = list(indices), domains
        self.ends = list(accumulate(index.count for index in indices))
        self.names = {name: self._names(name) for name, kind in KINDS.items() if kind == "word"}
        self._codes = {name: {word: code for code, word in enumerate(some)} for name, some in self.names.items()}
        names = sorted({name for index in indices for name in index.parts})[:MOST_PARTS]
        self.parts = {f"part {name}": name for name in names}

    @property
    def count(self) -> int:
        """How many dialogues there are."""
        return self.ends[-1] if self.ends else 0

    def meta(self) -> dict[str, Any]:
        """Return what the page must know before the first rows: columns, their words, and what the sources are."""
        running = [
            {"source": index.source.name, "dialogues": index.count, "of": index.source.total}
            for index in self.indices
            if index.source.total
        ]
        kinds = KINDS | dict.fromkeys(self.parts, "number")
        return {"count": self.count, "shard": SHARD, "kinds": kinds, "words": self.names, "running": running} | (
            self._measures()
        )

    def _measures(self) -> dict[str, Any]:
        """What dialogues are compared by: columns with the domain's names for them, and the one that it is about."""
        domain = self.domains.of(self.domains.settings.suite)
        alone = set(self.names["domain"]) - {""} == {domain.name}  # else they may be of any
        labels, measure = (domain.shown_labels, domain.measure) if alone else (Labels(), "success")
        plain = {Labels.success: "Success", Labels.reward: "Reward"}  # of one dialogue, and of many
        own = {name: getattr(labels, name) for name in ("success", "reward")}
        names = {name: plain.get(label, label) for name, label in own.items()} | self.parts
        return {"measure": measure, "measures": [*names.items()]}

    def rows(self, shard: int) -> dict[str, list[Any]]:
        """Return the columns of `SHARD` rows from row `shard * SHARD` on; a word is its place in `meta()["words"]`."""
        columns: dict[str, list[Any]] = {name: [] for name in (*KINDS, *self.parts)}
        for index, first, count in self._slices(shard * SHARD, SHARD):
            table = _slice(index.table, first, count, [*KINDS, PARTS])
            for pairs in table[PARTS].to_pylist():
                parts = dict(pairs or ())
                for column, name in self.parts.items():
                    columns[column].append(_short(parts.get(name)))
            for name, kind in KINDS.items():
                values = table[name].to_pylist()
                if kind == "word":
                    values = [self._codes[name][value or ""] for value in values]
                elif kind == "number":
                    values = [_short(value) for value in values]
                elif kind == "truth":
                    values = [None if value is None else int(value) for value in values]
                columns[name] += values
        return columns

    def search(self, query: str) -> list[int]:
        """Return the numbers of the rows whose words hold every term of `query`, in any case; quotes keep blanks."""
        import pyarrow.compute as pc

        numbers = list[int]()
        for first, words in self._column(TEXT):
            holding = [pc.match_substring(words, term) for term in terms(query)]
            places = pc.indices_nonzero(reduce(pc.and_, holding, pc.is_valid(words)))
            numbers += [first + place for place in places.to_pylist()]
        return numbers

    def with_key(self, keys: Collection[str]) -> dict[int, str]:
        """Return the rows whose dialogues have one of `keys`, each with it."""
        import pyarrow as pa
        import pyarrow.compute as pc

        key_by_row, key_array = dict[int, str](), pa.array(sorted(keys), pa.string())
        for first, column in self._column(KEY) if keys else ():
            places = pc.indices_nonzero(pc.is_in(column, key_array)).to_pylist()
            key_by_row |= {first + place: column[place].as_py() for place in places}
        return key_by_row

    def words(self, start: int, count: int) -> list[str]:
        """Return the words of rows in small letters, for searching without a server."""
        return [
            words
            for index, first, some in self._slices(start, count)
            for words in _slice(index.table, first, some, [TEXT])[TEXT].to_pylist()
        ]

    def read(self, row: int) -> tuple[Source, str, Trajectory | None]:
        """Return the source of dialogue number `row`, its task's id, and itself; None where only its numbers are kept.

        IndexError where there is none, UserError where it has changed.
        """
        if not 0 <= row < self.count:
            raise IndexError(row)
        ((index, first, _),) = self._slices(row, 1)
        index.check()
        source, dialogue = index.source, None
        (place,) = _slice(index.table, first, 1, ["task", "attempt", "file", "at"]).to_pylist()
        if source.kind == "shards":
            from sweetrl.colbench.store import TrajectoryStore

            dialogue = TrajectoryStore(source.path).row(place["file"], place["at"])
        elif source.kind == "file":
            from sweetrl.colbench.files import parse_trajectory
            from sweetrl.colbench.jsonl import parse_row

            line, where = next(islice(_lines(source.path), place["at"], None)), f"{source.path}: row {place['at'] + 1}"
            dialogue = parse_trajectory(parse_row(line, where), where, self.domains.of(self.domains.settings.suite))
            dialogue = replace(dialogue, attempt=place["attempt"], task=replace(dialogue.task, id=place["task"]))
        return source, place["task"], dialogue

    def dialogues(self) -> Iterator[tuple[Source, str, Trajectory | None]]:
        """Yield (source, task's id, dialogue) of every row in order, reading each source once."""
        import pyarrow.parquet as pq

        for index in self.indices:
            index.check()
            if index.source.kind == "results":
                for batch in pq.ParquetFile(index.table).iter_batches(columns=["task"]):
                    yield from ((index.source, task, None) for task in batch["task"].to_pylist())
            else:
                for _, _, dialogue in _dialogues(index.source, self.domains):
                    yield index.source, dialogue.task.id, dialogue

    def contrasts(self) -> list[dict[str, Any]]:
        """Return how each critic ranks kinds of replies; rankings of one name (a study's seeds) count together."""
        totals: dict[tuple[str, str], list[float]] = {}
        for index in self.indices:
            for name, (won, many) in index.contrasts.items():
                sums = totals.setdefault((index.source.rankings[0].name, name), [0.0, 0])
                sums[0], sums[1] = sums[0] + won, sums[1] + many
        order = self.domains.of(self.domains.settings.suite).contrasts
        places = {"/".join(pair): place for place, pair in enumerate(order)}
        ordered = sorted(totals.items(), key=lambda entry: places.get(entry[0][1], len(places)))
        return [
            {"ranking": ranking, "better": better, "worse": worse, "share": won / many, "pairs": many}
            for (ranking, name), (won, many) in ordered
            for better, _, worse in [name.partition("/")]
        ]

    def _slices(self, start: int, count: int) -> Iterator[tuple[Index, int, int]]:
        """Yield (index, first row in it, how many) of the rows from `start` on."""
        end = min(start + count, self.count)
        while start < end:
            number = bisect_right(self.ends, start)
            index = self.indices[number]
            first = start - (self.ends[number] - index.count)
            some = min(end - start, index.count - first)
            yield index, first, some
            start += some

    def _names(self, column: str) -> list[str]:
        values = (value for _, some in self._column(column) for value in some.unique().to_pylist())
        return sorted({value or "" for value in values})

    def _column(self, name: str) -> Iterator[tuple[int, Any]]:
        """Yield a column of all rows in parts: the number of the first row, and the values."""
        import pyarrow.parquet as pq

        first = 0
        for index in self.indices:
            for batch in pq.ParquetFile(index.table).iter_batches(columns=[name], batch_size=4 * _BATCH):
                yield first, batch[name]
                first += len(batch)


def terms(query: str) -> list[str]:
    """Return what a query asks for: its words in small letters, and what stands in quotes as it is."""
    parts = query.lower().split('"')
    pieces = [term for number, part in enumerate(parts) for term in ([part] if number % 2 else part.split())]
    return [term for term in pieces if term.strip()]


def open_catalogue(sources: Sequence[Source], domains: Domains) -> Catalogue:
    """Return the catalogue of `sources`; indices that are not in the cache are made, and their making is shown.

    Of several sources a file that is no complete trajectory file (a batch as it was ingested) is named and left out; so
    is what a running stage takes away while it is read.
    """
    indices = []
    for source in sources:
        try:
            indices.append(open_index(source, domains))
        except UserError as error:
            if (source.kind != "file" and not source.total) or len(sources) == 1:
                raise
            note(f"left out: {error}")
    return Catalogue(indices, domains)


def open_index(source: Source, domains: Domains) -> Index:
    """Return the index of one source, from the cache if none of its files has changed."""
    import pyarrow.parquet as pq

    try:
        seen = [(path, file_hash(path)) for path in source.files]
    except OSError as error:
        raise UserError(
            f"{error.filename}: this file cannot be read ({error.strerror}); see to it, or remove it."
        ) from error
    hashes = [[path.name, content] for path, content in seen]
    description = {name: value for name, value in asdict(source).items() if name not in ("path", "rankings")}
    key = digest(FORMAT, KINDS, description, source.kind, hashes, domains.key)
    table = cache_folder() / f"{key}.parquet"
    if not table.exists():
        rankings = [path for ranking in source.rankings for path in ranked_files(ranking.folder)]
        tables = dict.fromkeys([*source.files, *rankings])
        check_parquet(path for path in tables if path.suffix == ".parquet")  # they may be another's
        with atomic_path(table) as temporary:
            _write(source, domains, temporary)
    file = pq.ParquetFile(table)
    notes = json.loads((file.metadata.metadata or {}).get(_NOTES, b"{}"))
    return Index(source, table, file.metadata.num_rows, notes.get("contrasts", {}), notes.get(PARTS, []), seen)


def cache_folder() -> Path:
    """Where indices are kept: in the project, or outside of one in the user's cache."""
    return project_cache(CACHE) or Path.home() / ".cache" / "sweetrl" / "viewer"


def _write(source: Source, domains: Domains, table: Path) -> None:
    """Read `source` once and write its table, a batch of rows at a time."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    contrasts: Contrasts = {}
    parts = dict[str, None]()
    rows, schema = _rows(source, domains, contrasts, parts), _schema()
    with (
        pq.ParquetWriter(table, schema, compression="zstd") as writer,
        Meter(f"index {source.name}", _count(source), "dialogues") as meter,
    ):
        while batch := list(islice(rows, _BATCH)):
            writer.write_table(pa.Table.from_pylist(batch, schema=schema))
            meter(len(batch))
        writer.add_key_value_metadata({_NOTES: json.dumps({"contrasts": contrasts, PARTS: list(parts)}).encode()})


def _rows(source: Source, domains: Domains, contrasts: Contrasts, parts: dict[str, None]) -> Iterator[dict[str, Any]]:
    """Yield the row of every dialogue of a source, with its words and its place."""
    if source.kind == "results":
        from sweetrl.evaluation.metrics import read_results

        for number, result in enumerate(read_results(source.path)):
            yield {**row_of_result(result, source), TEXT: result.task_id.lower(), "file": 0, "at": number}
        return
    ranked = Ranked(source.rankings[0].folder) if source.rankings else None
    for file, at, dialogue in _dialogues(source, domains):
        states = ranked.states.of(dialogue.task.id, dialogue.attempt) if ranked else []
        pairs = ranked.pairs.count(dialogue.task.id, dialogue.attempt) if ranked else 0
        words = "\n".join((dialogue.task.id, *(message.content for message in dialogue.messages))).lower()
        row = row_of(dialogue, source, domains, states, pairs, contrasts)
        parts |= dict.fromkeys(dialogue.parts)
        yield {**row, TEXT: words, KEY: key_of(dialogue), PARTS: sorted(dialogue.parts.items()), "file": file, "at": at}


def _dialogues(source: Source, domains: Domains) -> Iterator[tuple[int, int, Trajectory]]:
    """Yield (shard, row in it, dialogue)."""
    if source.kind == "shards":
        from sweetrl.colbench.store import TrajectoryStore

        store = TrajectoryStore(source.path)
        # Of a stage that runs those that were there when we looked first: the table is kept under their hashes.
        for shard in (number for number, path in store.shards().items() if path in source.files):
            for row, dialogue in enumerate(store.read_shard(shard)):
                yield shard, row, dialogue
        return
    from sweetrl.colbench.files import read_trajectories

    domain = domains.of(domains.settings.suite)
    for row, dialogue in enumerate(read_trajectories(source.path, domain)):
        yield 0, row, dialogue


def _lines(path: Path) -> Iterator[bytes]:
    """Yield the lines that `colbench.jsonl.read_rows` takes for rows."""
    yield from (line for line in lines(path) if line.decode("utf-8-sig", "replace").strip())


def _count(source: Source) -> int:
    import pyarrow.parquet as pq

    if source.kind == "file":
        return sum(1 for _ in _lines(source.path))
    if source.kind == "results":
        return int(pq.read_metadata(source.path).num_rows)
    from sweetrl.colbench.store import TrajectoryStore

    return len(TrajectoryStore(source.path))


def _short(value: float | None) -> float | int | None:
    """A number in few digits, without a point where it is an integer; None for what JSON has no number for."""
    if value is None or not math.isfinite(value):
        return None
    return int(value) if value == int(value) else round(value, 6)


def _schema() -> pyarrow.Schema:
    import pyarrow as pa

    types = {"text": pa.string(), "word": pa.string(), "number": pa.float64(), "truth": pa.bool_()}
    fields = {name: types[kind] for name, kind in KINDS.items()} | {"attempt": pa.int32(), TEXT: pa.large_string()}
    own = [(KEY, pa.string()), (PARTS, pa.map_(pa.string(), pa.float64()))]
    return pa.schema([*fields.items(), *own, ("file", pa.int32()), ("at", pa.int64())])


def _slice(path: Path, first: int, count: int, columns: list[str]) -> pyarrow.Table:
    """Read rows of a table: the row groups of `_BATCH` rows that hold them, and no other."""
    import pyarrow.parquet as pq

    groups = range(first // _BATCH, (first + count - 1) // _BATCH + 1)
    return pq.ParquetFile(path).read_row_groups(groups, columns=columns).slice(first % _BATCH, count)
