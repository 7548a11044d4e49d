"""Trainings from Python that were killed: the same call goes on, another one never meets their checkpoints."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import sweetrl
from sweetrl.backend.suite import generate
from sweetrl.colbench.store import TrajectoryStore
from sweetrl.methods.baselines import Rft
from sweetrl.sweet.trainer import ImitationTrainer
from sweetrl.types import Message, Trajectory


@pytest.fixture
def base(tiny_model: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_model, tmp_path / "base"))


def dialogues() -> list[Trajectory]:
    trajectories = []
    for task in generate("train", 4, seed=1):
        answer = Message("assistant", f"I WANT TO ANSWER:\n{task.ground_truth}")
        trajectories.append(Trajectory(task, 0, (Message("user", "I want a function."), answer), reward=1.0))
    return trajectories


def trained(base: Path, out: Path, given: Any, killed: bool = False, **options: Any) -> list[int]:
    """Imitate dialogues in four steps, or be killed in the third; return the steps that were made."""
    made: list[int] = []

    class Watched(ImitationTrainer):
        def training_step(self, *more: Any, **named: Any) -> Any:
            made.append(self.state.global_step + 1)
            if killed and made[-1] == 3:
                raise KeyboardInterrupt
            return super().training_step(*more, **named)

    class Watching(Rft):
        def trainer(self, settings: Any) -> Any:
            return Watched

    policy = sweetrl.Policy.load(base, threads=1, device="cpu")
    common = {"epochs": 4, "batch_size": 4, "micro_batch_size": 4, "checkpoints": 4, "lora": {"rank": 2}}
    sweetrl.train(Watching(), sweetrl.domain("backend"), policy, dialogues=given, out=out, **common | options)
    return made


@pytest.mark.parametrize("change", ["nothing", "settings", "dialogues", "base"])
def test_only_the_same_call_goes_on(base: Path, tmp_path: Path, change: str) -> None:
    given = TrajectoryStore(tmp_path / "store")
    given.write_shard(0, dialogues())
    out = tmp_path / "policy"
    with pytest.raises(KeyboardInterrupt):
        trained(base, out, given, killed=True)
    options = {}
    if change == "settings":
        options = {"learning_rate": 1e-3}
    elif change == "dialogues":
        given.write_shard(0, dialogues()[::-1])
    elif change == "base":
        (base / "config.json").write_text((base / "config.json").read_text() + "\n")
    assert trained(base, out, given, **options) == ([3, 4] if change == "nothing" else [1, 2, 3, 4])
    assert {path.name for path in tmp_path.iterdir()} <= {"base", "policy", "store"}
