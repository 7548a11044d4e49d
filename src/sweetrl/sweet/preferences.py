"""What a ranking is on the disk, data/preferences/, and its preference pairs as rows for training (Eq. 4).

candidates.parquet, preferences.parquet and sft_replay.parquet; beside them token_ratios.parquet, of a sample, for
people to look at. Equal rankings give equal bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sweetrl.config.settings import PreferenceSettings
from sweetrl.lm.data import PreferenceData, Row
from sweetrl.lm.rows import IndexPairs, RowFile
from sweetrl.sweet.data import all_tokens, numbering, reply_row
from sweetrl.sweet.tables import Table, write_table
from sweetrl.types import Preference, RankedState, TokenRatios

CANDIDATES, PREFERENCES, SFT_REPLAY = "candidates.parquet", "preferences.parquet", "sft_replay.parquet"
TOKEN_RATIOS = "token_ratios.parquet"


@dataclass(frozen=True)
class Replay:
    """A successful dialogue as the actor saw it, and where its replies are (start, and end exclusive)."""

    task_id: str
    attempt: int
    token_ids: tuple[int, ...]
    starts: tuple[int, ...]
    ends: tuple[int, ...]

    @property
    def row(self) -> Row:
        """The dialogue as a row."""
        return Row(self.token_ids, tuple(zip(self.starts, self.ends, strict=True)))

    def replayed(self, final: bool) -> tuple[Row, int]:
        """What is learnt of it, all replies or the `final` one alone, and the turn of the first of these."""
        return (self.row.last(), len(self.starts) - 1) if final else (self.row, 0)


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
        write_table(out / CANDIDATES, RankedState, self.states)
        write_table(out / PREFERENCES, Preference, self.preferences)
        write_table(out / SFT_REPLAY, Replay, self.replay)
        if self.token_ratios:
            write_table(out / TOKEN_RATIOS, TokenRatios, self.token_ratios)
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
        finished = self.folder is not None and _block(self.folder, number).exists()
        return not finished and (self.mine is None or self.mine(number))

    def states(self, number: int, make: Callable[[], list[RankedState]]) -> Iterable[RankedState]:
        """Return the states of block `number`, made if they are missing; a process that makes a share returns none."""
        if self.folder is None:
            return make()
        path = _block(self.folder, number)
        if self.missing(number):
            write_table(path, RankedState, make())
        return Table(path, RankedState) if self.mine is None else []


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
    dialogues = numbering()
    groups: list[int] = []
    turns: list[int] = []

    def place(row: Row, of: Preference | Replay, turn: int) -> int:
        key = hashlib.blake2b(repr((row.token_ids, row.spans)).encode(), digest_size=16).digest()
        if key not in number:
            number[key] = len(number)
            rows.append(row)
            turns.append(turn)
            groups.append(dialogues[of.task_id, of.attempt])
        return number[key]

    def pairs() -> Iterator[tuple[int, int]]:
        for pair in preferences:
            both = [reply_row(pair.prompt_ids, reply) for reply in (pair.chosen_ids, pair.rejected_ids)]
            if settings.loss_tokens == "all":
                both = [all_tokens(row) for row in both]
            chosen, rejected = (place(row, pair, pair.turn) for row in both)
            yield chosen, rejected

    indices, kept = IndexPairs(pairs()), []
    if settings.sft_replay:
        for dialogue in replay:
            row, turn = dialogue.replayed(settings.sft_replay_turns == "final")
            kept.append(place(row, dialogue, turn))
    return PreferenceData(rows, indices, tuple(kept), tuple(groups), turns=tuple(turns))
