"""What a ranking is on the disk, data/preferences/, and its preference pairs as rows for training (Eq. 4).

candidates.parquet, preferences.parquet and sft_replay.parquet; beside them token_ratios.parquet, of a sample, for
people to look at. Equal rankings give equal bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from sweetrl.config.settings import PreferenceSettings
from sweetrl.errors import UserError
from sweetrl.io import atomic_path
from sweetrl.lm.data import PreferenceData, Row
from sweetrl.lm.rows import IndexPairs, Listed, RowFile
from sweetrl.sweet.data import all_tokens
from sweetrl.types import Candidate, Preference, RankedState, TokenRatios

if TYPE_CHECKING:
    import pyarrow

T = TypeVar("T")


@dataclass(frozen=True)
class Replay:
    """A successful dialogue as the actor saw it, and where its replies are."""

    task_id: str
    attempt: int
    row: Row


CANDIDATES, PREFERENCES, SFT_REPLAY = "candidates.parquet", "preferences.parquet", "sft_replay.parquet"
TOKEN_RATIOS = "token_ratios.parquet"
_BATCH = 64  # rows that are made at a time
_GROUP = 64 * 2**20  # bytes of a row group: what writing holds in memory, and reading rows here and there


def _schemas() -> dict[str, Any]:
    import pyarrow as pa

    ids = pa.list_(pa.int32())
    state = [("task_id", pa.string()), ("attempt", pa.int32())]
    turn = [("turn", pa.int32()), ("prompt_ids", ids)]
    candidate = pa.struct(
        [("token_ids", ids), ("text", pa.string()), ("count", pa.int32()), ("advantage", pa.float64())]
    )
    reply = pa.struct([("tokens", pa.list_(pa.string())), ("ratios", pa.list_(pa.float32()))])
    return {
        CANDIDATES: pa.schema([*state, *turn, ("candidates", pa.list_(candidate))]),
        PREFERENCES: pa.schema(
            [
                *state,
                *turn,
                ("chosen_ids", ids),
                ("rejected_ids", ids),
                ("chosen_advantage", pa.float64()),
                ("rejected_advantage", pa.float64()),
            ]
        ),
        SFT_REPLAY: pa.schema([*state, ("token_ids", ids), ("starts", ids), ("ends", ids)]),
        TOKEN_RATIOS: pa.schema([*state, ("turn", pa.int32()), ("replies", pa.list_(reply))]),
    }


class Table(Listed[T]):
    """The rows of a Parquet file in their order, read one at a time and made by `make`.

    The file is open as long as this is, so that it stays what it was when another takes its place.
    """

    def __init__(self, path: Path, kind: str, make: Callable[[dict[str, Any]], T]) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        if not path.exists():
            raise UserError(f"{path}: there is no such file; run the stage `rank` first.")
        try:
            self._file = pq.ParquetFile(pa.OSFile(str(path)))
        except pa.ArrowInvalid as error:
            raise UserError(f"{path}: this is not a Parquet file; run the stage `rank` again.") from error
        missing = [name for name in _schemas()[kind].names if name not in self._file.schema_arrow.names]
        if missing:
            raise UserError(f"{path}: column `{missing[0]}` is missing; run the stage `rank` again.")
        self.path, self._make = path, make
        self._group: tuple[int, pyarrow.Table] | None = None

    def __len__(self) -> int:
        return int(self._file.metadata.num_rows)

    def __iter__(self) -> Iterator[T]:
        for group in range(self._file.metadata.num_row_groups):  # one reader each: it keeps what it has read
            for batch in self._file.iter_batches(batch_size=_BATCH, row_groups=[group]):
                yield from map(self._make, batch.to_pylist())

    def item(self, index: int) -> T:
        """Read row number `index`, and keep its row group for the next ones."""
        metadata, group = self._file.metadata, 0
        while index >= metadata.row_group(group).num_rows:
            index -= metadata.row_group(group).num_rows
            group += 1
        if self._group is None or self._group[0] != group:
            self._group = (group, self._file.read_row_group(group))
        return self._make(self._group[1].slice(index, 1).to_pylist()[0])


def _write(path: Path, records: Iterable[dict[str, Any]], kind: str) -> None:
    """Write `records` in row groups of about `_GROUP` bytes, few of them in memory; equal ones give equal bytes."""
    import pyarrow.parquet as pq

    schema = _schemas()[kind]
    with atomic_path(path) as temporary, pq.ParquetWriter(temporary, schema, compression="zstd") as writer:
        for table in _tables(iter(records), schema):
            writer.write_table(table)


def _tables(records: Iterator[dict[str, Any]], schema: pyarrow.Schema) -> Iterator[pyarrow.Table]:
    """Yield `records` as tables of about `_GROUP` bytes, at least one."""
    import pyarrow as pa

    parts, size, first = list[pa.Table](), 0, True
    while some := list(islice(records, _BATCH)):
        parts.append(pa.Table.from_pylist(some, schema=schema))
        size += parts[-1].nbytes
        if size >= _GROUP:
            table = pa.concat_tables(parts).combine_chunks()
            parts, size, first = [], 0, False
            yield table
            del table
    if parts or first:
        yield pa.concat_tables(parts or [schema.empty_table()]).combine_chunks()


def _fields(record: Any, *names: str) -> dict[str, Any]:
    """The fields of a dataclass that are called so (all of them by default), as they are."""
    return {name: getattr(record, name) for name in names or record.__dataclass_fields__}


STATE = ("task_id", "attempt", "turn")


def write_candidates(path: Path, states: Iterable[RankedState]) -> None:
    """Write one row a state with its distinct candidates, counts and advantages."""
    records = (
        _fields(state, *STATE, "prompt_ids") | {"candidates": [_fields(reply) for reply in state.candidates]}
        for state in states
    )
    _write(path, records, CANDIDATES)


def read_candidates(path: Path) -> Table[RankedState]:
    """Read what `write_candidates` wrote; UserError for a missing or foreign file."""

    def make(row: dict[str, Any]) -> RankedState:
        replies = (Candidate(**reply | {"token_ids": tuple(reply["token_ids"])}) for reply in row["candidates"])
        prompt_ids = tuple(row["prompt_ids"])
        return RankedState(row["task_id"], row["attempt"], row["turn"], prompt_ids, tuple(replies))

    return Table(Path(path), CANDIDATES, make)


def write_preferences(path: Path, preferences: Iterable[Preference]) -> None:
    """Write one row a pair."""
    _write(path, map(_fields, preferences), PREFERENCES)


def read_preferences(path: Path) -> Table[Preference]:
    """Read what `write_preferences` wrote; UserError for a missing or foreign file."""

    def make(row: dict[str, Any]) -> Preference:
        values: dict[str, Any] = {name: tuple(row[name]) for name in ("prompt_ids", "chosen_ids", "rejected_ids")}
        return Preference(**row | values)

    return Table(Path(path), PREFERENCES, make)


def write_replay(path: Path, replay: Iterable[Replay]) -> None:
    """Write one row a successful dialogue."""
    records = (
        {
            "task_id": dialogue.task_id,
            "attempt": dialogue.attempt,
            "token_ids": dialogue.row.token_ids,
            "starts": [start for start, _ in dialogue.row.spans],
            "ends": [end for _, end in dialogue.row.spans],
        }
        for dialogue in replay
    )
    _write(path, records, SFT_REPLAY)


def read_replay(path: Path) -> Table[Replay]:
    """Read what `write_replay` wrote; UserError for a missing or foreign file."""

    def make(row: dict[str, Any]) -> Replay:
        spans = tuple(zip(row["starts"], row["ends"], strict=True))
        return Replay(row["task_id"], row["attempt"], Row(tuple(row["token_ids"]), spans))

    return Table(Path(path), SFT_REPLAY, make)


def write_token_ratios(path: Path, ratios: Iterable[TokenRatios]) -> None:
    """Write one row a state with the tokens of its candidates and their log-ratios."""
    records = (
        _fields(state, *STATE)
        | {
            "replies": [
                {"tokens": [text for text, _ in reply], "ratios": [ratio for _, ratio in reply]}
                for reply in state.replies
            ]
        }
        for state in ratios
    )
    _write(path, records, TOKEN_RATIOS)


def read_token_ratios(path: Path) -> Table[TokenRatios]:
    """Read what `write_token_ratios` wrote; UserError for a missing or foreign file."""

    def make(row: dict[str, Any]) -> TokenRatios:
        replies = tuple(tuple(zip(reply["tokens"], reply["ratios"], strict=True)) for reply in row["replies"])
        return TokenRatios(row["task_id"], row["attempt"], row["turn"], replies)

    return Table(Path(path), TOKEN_RATIOS, make)


@dataclass(frozen=True)
class Ranking:
    """Candidate replies at the turns of dialogues with their advantages, pairs of them, and successful dialogues.

    Those that `rank_dialogues` returns are read from a file, item by item.
    """

    states: Sequence[RankedState]
    preferences: Sequence[Preference]
    replay: Sequence[Replay]
    metrics: dict[str, float] = field(default_factory=dict)
    token_ratios: Sequence[TokenRatios] = ()
    """What the advantages of the first dialogues are made of (`rank.token_ratios`); none with other critics."""

    def save(self, folder: str | Path) -> None:
        """Write the folder that the stage `rank` writes (data/preferences)."""
        out = Path(folder)
        write_candidates(out / CANDIDATES, self.states)
        write_preferences(out / PREFERENCES, self.preferences)
        write_replay(out / SFT_REPLAY, self.replay)
        if self.token_ratios:
            write_token_ratios(out / TOKEN_RATIOS, self.token_ratios)
        else:
            (out / TOKEN_RATIOS).unlink(missing_ok=True)


@dataclass(frozen=True)
class Blocks:
    """The finished blocks of dialogues of a ranking, and which are made here.

    They lie in `folder` (None: nothing is kept), beside the replies of servers; `log` takes the output of a server that
    is started. `mine` says which blocks this process makes: others make the rest, in the same folder.
    """

    folder: Path | None = None
    log: Path = Path(".scratch/server.log")
    mine: Callable[[int], bool] | None = None

    def missing(self, number: int) -> bool:
        """Whether block `number` is to be made here."""
        made = self.folder is not None and _block(self.folder, number).exists()
        return not made and (self.mine is None or self.mine(number))

    def states(self, number: int, make: Callable[[], list[RankedState]]) -> Iterable[RankedState]:
        """Return the states of block `number`, made if they are missing; a process that makes a share returns none."""
        if self.folder is None:
            return make()
        if self.missing(number):
            write_candidates(_block(self.folder, number), make())
        return read_candidates(_block(self.folder, number)) if self.mine is None else []


def _block(folder: Path, number: int) -> Path:
    return folder / f"block-{number:06d}.parquet"


def preference_rows(
    preferences: Iterable[Preference], replay: Iterable[Replay], settings: PreferenceSettings
) -> PreferenceData:
    """Lay out preferences (and replay, where `settings.sft_replay` > 0) as rows; a reply in several pairs is one row.

    The rows of one dialogue are a group.
    """
    rows = RowFile()
    number: dict[bytes, int] = {}  # by a digest of the row: the rows themselves would not fit in memory
    dialogues: dict[tuple[str, int], int] = {}
    groups: list[int] = []
    turns: list[int] = []

    def place(row: Row, of: Preference | Replay, turn: int) -> int:
        key = hashlib.blake2b(repr((row.token_ids, row.spans)).encode(), digest_size=16).digest()
        if key not in number:
            number[key] = len(number)
            rows.append(row)
            turns.append(turn)
            groups.append(dialogues.setdefault((of.task_id, of.attempt), len(dialogues)))
        return number[key]

    def pairs() -> Iterator[tuple[int, int]]:
        for pair in preferences:
            start = len(pair.prompt_ids)
            both = [
                Row(pair.prompt_ids + reply, ((start, start + len(reply)),))
                for reply in (pair.chosen_ids, pair.rejected_ids)
            ]
            if settings.loss_tokens == "all":
                both = [all_tokens(row) for row in both]
            chosen, rejected = (place(row, pair, pair.turn) for row in both)
            yield chosen, rejected

    indices, kept = IndexPairs(pairs()), []
    if settings.sft_replay:
        for replay_row in replay:
            final = settings.sft_replay_turns == "final"
            row = replay_row.row.last() if final else replay_row.row
            kept.append(place(row, replay_row, len(replay_row.row.spans) - 1 if final else 0))
    return PreferenceData(rows, indices, tuple(kept), tuple(groups), turns=tuple(turns))
