"""Shards: scored, resumed after kill -9 with the same bytes, kept when the disk is full."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sweetrl.colbench.store import TrajectoryStore
from sweetrl.config.settings import AgentSettings
from sweetrl.errors import UserError
from sweetrl.rollout.context import RolloutContext
from sweetrl.rollout.run import rollout_scored

AGENT = AgentSettings(max_turns=3, max_new_tokens=16)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.fixture
def context(cast: Any) -> RolloutContext:
    return cast.context(cast.engine("Why?", "I WANT TO ANSWER:aab"), AGENT, cast.user(mute=[3]))


def collect(attempts: list[Any], context: RolloutContext, folder: Path, **changes: Any) -> TrajectoryStore:
    settings = {"seed": 1, "policy_name": "base", "batch": 2, "shard": 4} | changes
    return rollout_scored(attempts, context, TrajectoryStore(folder), **settings)


def test_present_shards_are_left_alone(context: RolloutContext, cast: Any, tmp_path: Path) -> None:
    attempts = [(cast.task(number), 0) for number in range(10)]
    collect(attempts, context, tmp_path / "complete")
    collect(attempts, context, tmp_path / "resumed")
    (tmp_path / "resumed" / "shard-00001.parquet").unlink()
    silent = replace(context, engine=cast.engine("Why?", "I WANT TO ANSWER:aab"))
    done: list[int] = []
    collect(attempts, silent, tmp_path / "resumed", progress=done.append)
    assert sum(done) == 10
    assert sum(len(prompts) for prompts in silent.engine.batches) == 8  # four dialogues, two turns each
    assert contents(tmp_path / "resumed") == contents(tmp_path / "complete")


def test_what_earlier_runs_lost_counts_and_gets_another_chance(
    context: RolloutContext, cast: Any, tmp_path: Path
) -> None:
    attempts = [(cast.task(number), 0) for number in range(12)]
    healthy, mute = replace(context, simulator=cast.user()), replace(context, simulator=cast.user(mute=[1, 9]))
    collect(attempts, healthy, tmp_path / "complete")
    with pytest.raises(UserError, match=r"^2 of 12 dialogues are lost, more than the allowed share of 0.1 \(2 x the"):
        collect(attempts, mute, tmp_path / "again", lost_share=0.1)
    assert list(contents(tmp_path / "again")) == ["shard-00001.parquet"]  # nobody was lost there
    collect(attempts, healthy, tmp_path / "again", lost_share=0.1)
    assert contents(tmp_path / "again") == contents(tmp_path / "complete")
    # A run that was killed behind its second shard goes on with what the first one lost.
    killed = TrajectoryStore(tmp_path / "killed")
    collect(attempts[:8], mute, killed.folder, lost_share=0.2)
    assert [killed.lost(index) for index in killed.shards()] == [["the user fell silent"], []]
    with pytest.raises(UserError, match=r"^2 of 12 dialogues are lost"):
        collect(attempts, mute, killed.folder, lost_share=0.1)
    # A stricter share takes shards again that are there already.
    collect(attempts, mute, tmp_path / "strict", lost_share=0.2)
    collect(attempts, healthy, tmp_path / "strict", lost_share=0.1)
    assert contents(tmp_path / "strict") == contents(tmp_path / "complete")


def start(*arguments: Any) -> subprocess.Popen[str]:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, Path(__file__).with_name("killed.py"), "tiny", *map(str, arguments)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_kill_9_in_the_middle_changes_nothing(tiny_model: Path, tmp_path: Path) -> None:
    broken, complete = tmp_path / "broken", tmp_path / "complete"
    process = start(tiny_model, broken)
    deadline = time.monotonic() + 240
    while not (broken / "shard-00002.parquet").exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.002)
    process.kill()
    process.wait()
    finished = sorted(contents(broken))
    assert 3 <= sum(name.startswith("shard") for name in finished) < 10, "killed in the middle"
    before = {name: (broken / name).stat().st_mtime_ns for name in finished if name.startswith("shard")}
    process = start(tiny_model, broken, complete)
    _, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors
    assert all((broken / name).stat().st_mtime_ns == moment for name, moment in before.items())  # nothing done twice
    shards = {name: data for name, data in contents(broken).items() if name.startswith("shard")}
    assert len(shards) == 10
    assert shards == contents(complete)
