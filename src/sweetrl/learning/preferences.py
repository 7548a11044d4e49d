"""data/preferences/: candidates.parquet, preferences.parquet and sft_replay.parquet, and rows for training."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sweetrl.errors import UserError
from sweetrl.io import atomic_path
from sweetrl.learning.batches import PreferenceData, Row
from sweetrl.learning.ranking import Replay
from sweetrl.learning.whole import all_tokens
from sweetrl.settings import PreferenceSettings
from sweetrl.types import Candidate, Preference, RankedState

CANDIDATES, PREFERENCES, SFT_REPLAY = "candidates.parquet", "preferences.parquet", "sft_replay.parquet"


def _schemas() -> dict[str, Any]:
    import pyarrow as pa

    ids = pa.list_(pa.int32())
    state = [("task_id", pa.string()), ("attempt", pa.int32())]
    turn = [("turn", pa.int32()), ("prompt_ids", ids)]
    candidate = pa.struct(
        [("token_ids", ids), ("text", pa.string()), ("count", pa.int32()), ("advantage", pa.float64())]
    )
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
    }


def _write(path: Path, records: list[dict[str, Any]], kind: str) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    with atomic_path(path) as temporary:
        pq.write_table(pa.Table.from_pylist(records, schema=_schemas()[kind]), temporary, compression="zstd")


def _read(path: Path, kind: str) -> list[dict[str, Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not path.exists():
        raise UserError(f"{path}: there is no such file; run the stage `rank` first.")
    try:
        table = pq.read_table(path)
    except pa.ArrowInvalid as error:
        raise UserError(f"{path}: this is not a Parquet file; run the stage `rank` again.") from error
    missing = [name for name in _schemas()[kind].names if name not in table.column_names]
    if missing:
        raise UserError(f"{path}: column `{missing[0]}` is missing; run the stage `rank` again.")
    return table.to_pylist()


def write_candidates(path: Path, states: Sequence[RankedState]) -> None:
    """Write one row a state with its distinct candidates, counts and advantages; equal states give equal bytes."""
    records = [
        {
            "task_id": state.task_id,
            "attempt": state.attempt,
            "turn": state.turn,
            "prompt_ids": list(state.prompt_ids),
            "candidates": [
                {"token_ids": list(one.token_ids), "text": one.text, "count": one.count, "advantage": one.advantage}
                for one in state.candidates
            ],
        }
        for state in states
    ]
    _write(path, records, CANDIDATES)


def read_candidates(path: Path) -> list[RankedState]:
    """Read what `write_candidates` wrote; UserError for a missing or foreign file."""
    return [
        RankedState(
            row["task_id"],
            row["attempt"],
            row["turn"],
            tuple(row["prompt_ids"]),
            tuple(Candidate(**{**one, "token_ids": tuple(one["token_ids"])}) for one in row["candidates"]),
        )
        for row in _read(Path(path), CANDIDATES)
    ]


def write_preferences(path: Path, preferences: Sequence[Preference]) -> None:
    """Write one row a pair; equal pairs give equal bytes."""
    _write(path, [{name: getattr(one, name) for name in one.__dataclass_fields__} for one in preferences], PREFERENCES)


def read_preferences(path: Path) -> list[Preference]:
    """Read what `write_preferences` wrote; UserError for a missing or foreign file."""
    found = []
    for row in _read(Path(path), PREFERENCES):
        values: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in row.items()
        }
        found.append(Preference(**values))
    return found


def write_replay(path: Path, replay: Sequence[Replay]) -> None:
    """Write one row a successful dialogue; equal dialogues give equal bytes."""
    records = [
        {
            "task_id": one.task_id,
            "attempt": one.attempt,
            "token_ids": list(one.row.token_ids),
            "starts": [start for start, _ in one.row.spans],
            "ends": [end for _, end in one.row.spans],
        }
        for one in replay
    ]
    _write(path, records, SFT_REPLAY)


def read_replay(path: Path) -> list[Replay]:
    """Read what `write_replay` wrote; UserError for a missing or foreign file."""
    return [
        Replay(
            row["task_id"],
            row["attempt"],
            Row(tuple(row["token_ids"]), tuple(zip(row["starts"], row["ends"], strict=True))),
        )
        for row in _read(Path(path), SFT_REPLAY)
    ]


def preference_rows(
    preferences: Sequence[Preference], replay: Sequence[Replay], settings: PreferenceSettings
) -> PreferenceData:
    """Lay out preferences (and replay, where `settings.sft_replay` > 0) as rows; a reply in several pairs is one row.

    The rows of one dialogue are a group.
    """
    number: dict[Row, int] = {}
    dialogues: dict[tuple[str, int], int] = {}
    groups: list[int] = []
    turns: list[int] = []

    def place(row: Row, of: Preference | Replay, turn: int) -> int:
        if row not in number:
            number[row] = len(number)
            turns.append(turn)
            groups.append(dialogues.setdefault((of.task_id, of.attempt), len(dialogues)))
        return number[row]

    pairs = []
    for one in preferences:
        start = len(one.prompt_ids)
        rows = [
            Row(one.prompt_ids + reply, ((start, start + len(reply)),)) for reply in (one.chosen_ids, one.rejected_ids)
        ]
        if settings.loss_tokens == "all":
            rows = [all_tokens(row) for row in rows]
        chosen, rejected = (place(row, one, one.turn) for row in rows)
        pairs.append((chosen, rejected))
    kept = []
    if settings.sft_replay:
        for replay_row in replay:
            final = settings.sft_replay_turns == "final"
            row = replay_row.row.last() if final else replay_row.row
            kept.append(place(row, replay_row, len(replay_row.row.spans) - 1 if final else 0))
    return PreferenceData(tuple(number), tuple(pairs), tuple(kept), tuple(groups), turns=tuple(turns))
