"""Stage `rank` as a program: killed in the middle and run again it writes the bytes of an undisturbed run."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sweetrl.colbench.store import TrajectoryStore
from sweetrl.learning import preferences as files
from sweetrl.settings import parse_settings
from sweetrl.stages.rank import rank
from sweetrl.types import AgentTurn, Message, Task, Trajectory

PARAMS = """
seed: 7
model: {base: models/base, device: cpu, threads: 1}
agent: {max_new_tokens: 6}
rank: {share: 1.0, candidates: 4, block: 2}
"""


def start(project: Path) -> subprocess.Popen[str]:
    environment = os.environ | {"SWEETRL_TRACKING": "off", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "sweetrl.stages.rank"]
    return subprocess.Popen(
        command, cwd=project, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


@pytest.fixture
def project(tiny_model: Path, tmp_path: Path) -> Callable[[str], Path]:
    """Make a project folder with a base, a critic and trajectories; equal in everything but its place."""
    import torch

    from sweetrl.engines.chat import ChatFormat
    from sweetrl.learning.adapters import attach_adapter, load_base, save_adapter
    from sweetrl.settings import LoraSettings, ModelSettings

    base, tokenizer = load_base(ModelSettings(base=str(tiny_model), device="cpu"))
    critic = attach_adapter(base, LoraSettings(rank=4), seed=0)
    for name, parameter in critic.named_parameters():
        if "lora_B" in name:
            parameter.data = 0.1 * torch.randn(parameter.shape)
    chat = ChatFormat(tokenizer)
    trajectories = []
    for number in range(12):
        chance = random.Random(number)
        task = Task(f"train-{number:05d}", "I want a function.", f"def price(hours):\n    return hours * {number}")
        messages, turns = [Message("user", task.problem_description)], []
        for text in [
            *chance.choices(["What is the rate?", "Is there a maximum?"], k=2),
            "I WANT TO ANSWER:\ndef f(): 0",
        ]:
            turns.append(AgentTurn(len(messages), text, chat.reply(text), finish_reason="stop"))
            messages += [Message("assistant", text), Message("user", "The rate is 7.")]
        trajectories.append(
            Trajectory(task, 0, tuple(messages[:-1]), tuple(turns), reward=float(number % 2), seed=number)
        )

    def make(name: str) -> Path:
        folder = tmp_path / name
        shutil.copytree(tiny_model, folder / "models/base")
        save_adapter(critic, folder / "models/critic", "models/base")
        (folder / "params.yaml").write_text(PARAMS)
        TrajectoryStore(folder / "data/trajectories").write_shard(0, trajectories)
        return folder

    return make


def test_a_killed_ranking_ends_with_the_bytes_of_an_undisturbed_one(project: Callable[[str], Path]) -> None:
    undisturbed, killed = project("undisturbed"), project("killed")
    process = start(killed)
    while not list(killed.glob(".scratch/rank-*/block-*.parquet")):
        if process.poll() is not None:
            pytest.fail(process.communicate()[0])
        time.sleep(0.002)
    process.kill()
    process.communicate()
    assert process.returncode == -9 and not (killed / "data/preferences").exists()
    for folder in (undisturbed, killed):
        process = start(folder)
        output, _ = process.communicate()
        assert process.returncode == 0, output
    for name in (files.CANDIDATES, files.PREFERENCES, files.SFT_REPLAY):
        path = Path("data/preferences") / name
        assert (killed / path).read_bytes() == (undisturbed / path).read_bytes(), name
    states = files.read_candidates(undisturbed / "data/preferences" / files.CANDIDATES)
    assert len(states) == 36 and all(sum(one.count for one in state.candidates) == 4 for state in states)
    assert files.read_preferences(undisturbed / "data/preferences" / files.PREFERENCES)
    assert len(files.read_replay(undisturbed / "data/preferences" / files.SFT_REPLAY)) == 6
    assert "36 states" in output


def test_programs_can_be_compared_without_the_questions(
    project: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`rank.reply_types: no_questions` is for every domain: of what a state holds, only answers get into pairs."""
    from sweetrl.engines.chat import ChatFormat
    from sweetrl.learning import ranking
    from sweetrl.models import load_tokenizer

    monkeypatch.chdir(project("programs"))
    monkeypatch.setenv("SWEETRL_TRACKING", "off")
    chat = ChatFormat(load_tokenizer("models/base"))
    questions = ["What is the rate?", "Is there a maximum?", "How should it be rounded?"]
    answers = ["I WANT TO ANSWER:\ndef f(): 0", "I WANT TO ANSWER:\ndef f(): 1"]
    sampled = {chat.reply(text): (text, 1) for text in (*questions, *answers)}

    def sample(rows: Any, *more: Any) -> list[list[dict[tuple[int, ...], tuple[str, int]]]]:
        return [[sampled for _ in row.spans] for _, row in rows]

    monkeypatch.setattr(ranking, "sample_candidates", sample)
    compared = {}
    for types in ("no_questions", "any"):
        wanted = {"share": 1.0, "pairs": 9, "margin": 0.0, "critic": "random", "reply_types": types}
        rank(parse_settings({"suite": "backend", "model": {"device": "cpu", "threads": 1}, "rank": wanted}))
        found = files.read_preferences(Path("data/preferences") / files.PREFERENCES)
        assert len({(one.task_id, one.turn) for one in found}) == 36
        compared[types] = {sampled[ids][0] for one in found for ids in (one.chosen_ids, one.rejected_ids)}
    assert compared == {"no_questions": set(answers), "any": {*questions, *answers}}
