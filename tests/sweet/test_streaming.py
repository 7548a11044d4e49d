"""Nothing holds all dialogues, whatever reads them: few live at a time, and memory hardly grows with their number."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sweetrl.api.learning import rank_replies, training_job
from sweetrl.backend.domain import Backend
from sweetrl.colbench import store as stores
from sweetrl.colbench.store import TrajectoryStore
from sweetrl.config.settings import (
    CriticSettings,
    MultiTurnSettings,
    RankSettings,
    RftSettings,
    parse_settings,
)
from sweetrl.engines.chat import ChatFormat
from sweetrl.methods.base import find_method
from sweetrl.sweet import preferences as files
from sweetrl.sweet import rank, tables
from sweetrl.sweet.data import critic_attempts, critic_pairs, policy_pairs, successes
from sweetrl.sweet.pairs import DataCounts, index_pairs, trajectory_pairs
from sweetrl.sweet.preferences import Blocks
from sweetrl.sweet.tables import Table, write_table
from sweetrl.types import Candidate, RankedState, Trajectory
from sweetrl.validation.tables import TrajectoryTable, pair_rows, places

SYSTEM = "You help a user."
COUNT, SHARD = 150, 30
BLOCK = 4


@pytest.fixture(scope="module")
def store(make_trajectory: Callable[..., Trajectory], tmp_path_factory: pytest.TempPathFactory) -> TrajectoryStore:
    """150 dialogues, 15 attempts at each of ten tasks, in five shards."""
    store = TrajectoryStore(tmp_path_factory.mktemp("dialogues") / "shards")
    made = [make_trajectory(n // 15, n % 15, float(n % 3 == 0), seed=n) for n in range(COUNT)]
    for number in range(COUNT // SHARD):
        store.write_shard(number, made[number * SHARD : (number + 1) * SHARD])
    return store


class Living:
    """How many dialogues of the store lived at once, at most."""

    def __init__(self) -> None:
        self.most = self.made = 0
        self._now = 0

    def born(self, dialogue: Trajectory) -> Trajectory:
        self.made += 1
        self._now += 1
        self.most = max(self.most, self._now)
        weakref.finalize(dialogue, self._gone)
        return dialogue

    def _gone(self) -> None:
        self._now -= 1


@pytest.fixture
def living(monkeypatch: pytest.MonkeyPatch) -> Living:
    counted, true = Living(), stores._trajectory
    monkeypatch.setattr(stores, "_trajectory", lambda record: counted.born(true(record)))
    return counted


def reads(store: TrajectoryStore, chat: ChatFormat, folder: Path) -> dict[str, Callable[[], object]]:
    """All that reads collected dialogues between `collect` and the trainers."""
    domain = Backend()
    rules: Any = "all"

    def validate() -> None:
        table, data = (
            TrajectoryTable(domain, 10, SYSTEM),
            DataCounts(domain, CriticSettings(), RankSettings(), RftSettings()),
        )
        pairs, _ = data.read(table.watch(store.read(), places(store)))
        pair_rows(pairs, table.rows())

    def pairs() -> Any:
        return trajectory_pairs(store.outlines(), rules)[0]

    critic = CriticSettings(reference="unconditioned")
    multi_turn = MultiTurnSettings(sft_replay=0.5)
    job = training_job(find_method("rft"), parse_settings({}), domain, None, folder)  # type: ignore[arg-type]
    job.__dict__.update(chat=chat, system=SYSTEM)
    return {
        "validate": validate,
        "train-critic": lambda: critic_pairs(pairs(), store, domain, chat, SYSTEM, critic),
        "train-critic, value function": lambda: critic_attempts(store, domain, chat, SYSTEM, critic),
        "rft": lambda: successes(store, chat, SYSTEM),
        "multi-turn-dpo": lambda: policy_pairs(pairs(), store, chat, SYSTEM, multi_turn),
        "a method of one's own": lambda: job.rows(store),
        "replay": lambda: write_table(folder / "replay.parquet", files.Replay, rank.find_replay(store, chat, SYSTEM)),
        "any pairs": lambda: index_pairs(pairs(), store, lambda dialogue: None),
    }


NAMES = ("validate", "train-critic", "train-critic, value function", "rft", "multi-turn-dpo", "a method of one's own")


@pytest.mark.parametrize("name", [*NAMES, "replay", "any pairs"])
def test_stages_read_dialogues_one_by_one(
    name: str, store: TrajectoryStore, chat: ChatFormat, living: Living, tmp_path: Path
) -> None:
    read = reads(store, chat, tmp_path)[name]
    gc.disable()  # a cycle would count as held
    try:
        assert read() is not None or name in ("validate", "replay")
    finally:
        gc.enable()
    assert living.made >= COUNT and living.most <= 3


def test_ranking_reads_dialogues_block_by_block(
    store: TrajectoryStore, tiny_model: Path, living: Living, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    options = {"critic": "random", "share": 0.5, "block": BLOCK, "pairs": 1, "reply_types": "mean_centered"}
    settings = parse_settings({"model": {"base": str(tiny_model), "device": "cpu", "threads": 1}, "rank": options})

    def sample(rows: Any, *more: Any) -> Any:
        two = (Candidate((9,), "Two?", 1),)
        return [[(Candidate((turn + 7, 8), "One?", 1), *two) for turn in range(len(row.spans))] for _, row in rows]

    monkeypatch.setattr("sweetrl.sweet.candidates.sample_candidates", sample)
    blocks = Blocks(tmp_path)
    ranking = rank_replies(Backend().configured(settings), None, store, blocks, out=tmp_path / "out")
    assert ranking.metrics["dialogues"] == COUNT / 2 and ranking.metrics["replay"] == COUNT / 3
    assert len(ranking.states) == ranking.metrics["states"] > COUNT and ranking.preferences
    assert living.made > COUNT and living.most <= 2 * BLOCK + 1, "a block, and the next one"


def test_written_rows_are_read_in_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Large files have several row groups, which are read alike; a table stays what it was when it is replaced."""
    import pyarrow.parquet as pq

    states = [RankedState(f"t{n % 9}", n, 0, (n,) * 50, (Candidate((n, 1), f"{n}", 1, 0.5),)) for n in range(500)]
    path = tmp_path / "candidates.parquet"
    write_table(path, RankedState, states)
    assert pq.read_metadata(path).num_row_groups == 1
    table = Table(path, RankedState)
    monkeypatch.setattr(tables, "_GROUP", 20_000)
    write_table(path, RankedState, iter(states))
    assert pq.read_metadata(path).num_row_groups > 3
    assert table == states and Table(path, RankedState) == states
    assert Table(path, RankedState)[499] == states[499] and Table(path, RankedState)[-3:] == states[-3:]
