"""The stage `collect` in a project folder of its own: files in, shards out, and one sentence for everything missing."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sweetrl.backend.suite import generate
from sweetrl.colbench.store import TrajectoryStore, write_task_table
from sweetrl.config.settings import Settings, parse_settings
from sweetrl.errors import UserError
from sweetrl.models.load import load_tokenizer
from sweetrl.paths import TRAJECTORIES
from sweetrl.stages.collect import collect
from sweetrl.viewer.sources import find_sources
from tests.stages.conftest import content

VALUES: dict[str, Any] = {
    "seed": 7,
    "model": {"base": "models/base", "device": "cpu", "threads": 1},
    "agent": {"max_turns": 3, "max_new_tokens": 12},
    "collect": {"tasks": 5, "attempts": 2, "batch": 4, "shard": 4},
}


@pytest.fixture
def project(tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project's root with six training tasks and the tiny model, as the working directory."""
    monkeypatch.chdir(tmp_path)
    write_task_table(Path("data/tasks/train.parquet"), generate("train", 6, seed=1))
    Path("models").mkdir()
    Path("models/base").symlink_to(tiny_model)
    return tmp_path


def settings(**changes: Any) -> Settings:
    return parse_settings(VALUES | changes)


def test_attempts_at_the_first_tasks_scored_in_shards(project: Path) -> None:
    collect(settings())
    assert list(content(TRAJECTORIES)) == ["shard-00000.parquet", "shard-00001.parquet", "shard-00002.parquet"]
    tasks = list(generate("train", 6, seed=1))[:5]
    dialogues = list(TrajectoryStore(TRAJECTORIES).read())
    attempts = [(task, number) for task in tasks for number in (0, 1)]
    assert [(dialogue.task, dialogue.attempt) for dialogue in dialogues] == attempts
    for dialogue in dialogues:
        assert dialogue.messages[0].content == dialogue.task.problem_description
        assert dialogue.reward == 0.0  # a random model
        assert len(dialogue.tests) == len(dialogue.task.test_cases)
        assert (dialogue.policy, dialogue.simulator) == ("models/base", "scripted")
        assert all(len(turn.token_ids) == len(turn.logprobs) > 0 for turn in dialogue.turns)
    assert not list(Path(".scratch").glob("collect-*"))
    first = content(TRAJECTORIES)
    collect(settings())
    assert content(TRAJECTORIES) == first


def test_a_running_collect_is_seen_by_who_looks(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its finished shards can be read, and nothing that tells so is left in what it publishes."""
    Path("params.yaml").touch()
    seen, write = list[tuple[str, int, int]](), TrajectoryStore.write_shard

    def look(store: TrajectoryStore, *shard: Any) -> Path:
        path = write(store, *shard)
        (source,) = find_sources(Path())
        seen.append((source.stage, len(TrajectoryStore(source.path)), source.total))
        return path

    monkeypatch.setattr(TrajectoryStore, "write_shard", look)
    collect(settings())
    assert seen == [("collect, running", done, 10) for done in (4, 8, 10)]
    assert [source.stage for source in find_sources(Path())] == ["collect"]
    assert {path.suffix for path in TRAJECTORIES.iterdir()} == {".parquet"}


def test_a_full_disk_keeps_finished_shards(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pyarrow.parquet as pq

    collect(settings())
    undisturbed = content(TRAJECTORIES)
    write: Callable[..., Any] = pq.write_table

    def full(table: Any, where: Any, **options: Any) -> None:
        if "shard-00001" in str(where):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(where))
        write(table, where, **options)

    monkeypatch.setattr(pq, "write_table", full)
    with pytest.raises(UserError, match="no space left on the disk"):
        collect(settings())
    assert content(TRAJECTORIES) == undisturbed  # the earlier result still stands
    (kept,) = Path(".scratch").glob("collect-*/shards/*")
    moment = kept.stat().st_mtime_ns
    monkeypatch.setattr(pq, "write_table", write)
    monkeypatch.setattr("sweetrl.stages.scratch.shutil.rmtree", lambda *_, **__: None)  # to look at the scratch
    collect(settings())
    assert kept.stat().st_mtime_ns == moment  # not made again
    assert content(TRAJECTORIES) == undisturbed


def test_outside_of_a_project_nobody_asks_the_hub_for_its_base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"models/base: there is no folder here; .*, run from the project's root"):
        load_tokenizer("models/base")


def test_missing_parts_are_one_sentence(project: Path) -> None:
    with pytest.raises(UserError, match=r"models/none: there is no folder here; fetch the model"):
        collect(settings(model={"base": "models/none", "device": "cpu"}))
    Path("data/tasks/train.parquet").unlink()
    with pytest.raises(UserError, match=r"data/tasks/train.parquet: there is no such file"):
        collect(settings())
    assert not TRAJECTORIES.exists()
