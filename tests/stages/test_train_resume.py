"""kill -9 in the middle of each training stage, run again: the same bytes as an undisturbed run, in another folder."""

from __future__ import annotations

import random
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from safetensors.torch import load_file
from transformers import AutoTokenizer

from sweetrl.colbench.store import TrajectoryStore
from sweetrl.config.settings import load_settings, parse_settings
from sweetrl.engines.chat import ChatFormat
from sweetrl.errors import UserError
from sweetrl.io import read_json
from sweetrl.stages.rank import rank
from sweetrl.stages.train_critic import train_critic
from sweetrl.stages.train_policy import train_policy
from sweetrl.sweet import preferences as files
from sweetrl.sweet.pairs import trajectory_pairs, write_pairs
from sweetrl.sweet.rank import find_replay
from sweetrl.sweet.tables import Table, write_table
from sweetrl.sweet.trainer import PreferenceTrainer
from sweetrl.types import AgentTurn, Message, Preference, RankedState, Task, Trajectory
from tests.stages.conftest import finish, kill_when, start

PARAMS = """
seed: 7
model: {base: models/base, device: cpu, threads: 1}
critic: &trainer
  learning_rate: 1.0e-3
  epochs: 15
  batch_size: 4
  micro_batch_size: 2
  checkpoints: 20
  lora: {rank: 4, dropout: 0.1}
policy: {<<: *trainer, sft_replay: 0.5}
multi_turn_dpo: {<<: *trainer, sft_replay: 0.5}
rft: *trainer
"""
RUN = """
import sys
from sweetrl.stages.run import stage_main
from sweetrl.stages.train_critic import train_critic
from sweetrl.stages.train_policy import train_policy

def both(settings):
    for stage in sys.argv[1:]:
        {"critic": train_critic, "policy": train_policy}[stage](settings)

stage_main(both)
"""
FILES = [
    f"models/{name}/{file}"
    for name in ("critic", "policy")
    for file in ("adapter_config.json", "adapter_model.safetensors")
]


def at_work_in(process: psutil.Process, folder: Path) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE and Path(process.cwd()) == folder
    except psutil.Error:
        return False


def kill_after_checkpoint(process: subprocess.Popen[str], project: Path, stage: str) -> None:
    """SIGKILL as soon as the stage has a complete checkpoint and trains on."""
    kill_when(process, lambda: list(project.glob(f".scratch/{stage}-*/checkpoint-*/complete")))
    assert not (project / "models" / stage.removeprefix("train-")).exists()


@pytest.fixture
def project(tiny_model: Path, tmp_path: Path) -> Callable[[str], Path]:
    """Make a project folder with a base, trajectories, pairs and preferences; equal in everything but its place."""

    chat = ChatFormat(AutoTokenizer.from_pretrained(tiny_model))

    def make(name: str) -> Path:
        folder = tmp_path / name
        shutil.copytree(tiny_model, folder / "models/base")
        (folder / "params.yaml").write_text(PARAMS)
        chance = random.Random(0)
        trajectories = [dialogue(chat, chance, task, attempt) for task in range(6) for attempt in range(3)]
        TrajectoryStore(folder / "data/trajectories").write_shard(0, trajectories)
        write_pairs(folder / "data/pairs.parquet", trajectory_pairs(trajectories)[0])
        replies = [chat.reply(text) for text in ("Is there a maximum?", "What is the rate per hour?", "I do not know.")]
        prompt = chat.open("Help.", "I want a function.")
        preferences = [
            Preference(trajectory.task.id, trajectory.attempt, 0, prompt, *chance.sample(replies, 2), 0.1, -0.1)
            for trajectory in trajectories[:12]
        ]
        write_table(folder / "data/preferences" / files.CANDIDATES, RankedState, [])
        write_table(folder / "data/preferences" / files.PREFERENCES, Preference, preferences)
        replay = find_replay(trajectories, chat, "Help.")
        write_table(folder / "data/preferences" / files.SFT_REPLAY, files.Replay, replay)
        return folder

    return make


def dialogue(chat: Any, chance: random.Random, task: int, attempt: int) -> Trajectory:
    texts = [chance.choice(["Is there a maximum?", "What is the rate per hour?"]) for _ in range(chance.randint(1, 3))]
    texts.append(f"I WANT TO ANSWER:\ndef price(hours):\n    return hours * {chance.randint(1, 9)}")
    messages = [Message("user", "I want a function that computes the price of a parking ticket.")]
    turns = []
    for text in texts:
        turns.append(AgentTurn(len(messages), text, chat.reply(text), finish_reason="stop"))
        messages += [Message("assistant", text), Message("user", "The rate is 7.")]
    about = Task(f"train-{task:05d}", messages[0].content, "def price(hours):\n    return hours * 7")
    return Trajectory(about, attempt, tuple(messages[:-1]), tuple(turns), texts[-1], (1.0, 0.0, 0.5)[attempt])


@pytest.mark.slow
@pytest.mark.parametrize(("method", "trained"), [("sweet", 2), ("multi-turn-dpo", 1), ("rft", 1)])
def test_a_killed_run_ends_with_the_bytes_of_an_undisturbed_one(
    project: Callable[[str], Path], method: str, trained: int
) -> None:
    """Each of the stages that train is killed; of baselines that is the policy's alone."""
    undisturbed, killed = project("undisturbed"), project("killed")
    for folder in (undisturbed, killed):
        (folder / "params.yaml").write_text(f"{PARAMS}method: {method}\n")
        if trained == 1:
            shutil.rmtree(folder / "data/preferences")
    finish(start(undisturbed, "-c", RUN, "critic", "policy"))
    for stage in ("train-critic", "train-policy")[-trained:]:  # the second start ends the critic
        kill_after_checkpoint(start(killed, "-c", RUN, "critic", "policy"), killed, stage)
    finish(start(killed, "-c", RUN, "policy"))
    for name in FILES[-2 * trained :]:
        assert (killed / name).read_bytes() == (undisturbed / name).read_bytes(), name
    assert not list((killed / ".scratch").glob("*")), "scratch folders go when a stage has succeeded"


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("sharding", ["none", "fsdp2"])
def test_processes_that_the_stage_starts_end_with_it_and_go_on(project: Callable[[str], Path], sharding: str) -> None:
    """`model.processes: 2`, with and without shards: nearly the weights of one process, also after kill -9."""
    import torch

    for processes in (1, 2):
        folder = project(str(processes))
        model = f"threads: 1, processes: {processes}, sharding: {sharding}}}"
        text = PARAMS.replace("threads: 1}", model).replace("dropout: 0.1", "dropout: 0.0")
        (folder / "params.yaml").write_text(text)
        run = RUN.replace("stage_main(both)", "stage_main(both, lambda settings: True)")
        if processes > 1:
            first = start(folder, "-c", run, "critic")
            kill_after_checkpoint(first, folder, "train-critic")
            deadline = time.monotonic() + 120
            while alive := [process for process in psutil.process_iter() if at_work_in(process, folder)]:
                assert time.monotonic() < deadline, alive
                time.sleep(0.1)
        finish(start(folder, "-c", run, "critic"))
    weights, others = (load_file(each / FILES[1]) for each in (folder.with_name("1"), folder))
    assert all(torch.allclose(others[name], value, rtol=1e-3, atol=1e-5) for name, value in weights.items())
    assert any("lora_B" in name and bool(value.any()) for name, value in weights.items())


@pytest.mark.parametrize("method", ["multi-turn-dpo", "rft", "single-turn", "zero-shot"])
def test_a_baseline_trains_what_it_needs_and_says_what_it_skips(
    project: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], method: str
) -> None:
    folder = project(method)
    text = PARAMS.replace("epochs: 15", "epochs: 2").replace("checkpoints: 20", "checkpoints: 1")
    (folder / "params.yaml").write_text(f"{text}method: {method}\n")
    shutil.rmtree(folder / "data/preferences")
    monkeypatch.chdir(folder)
    settings = load_settings()
    for stage in (train_critic, rank, train_policy):
        stage(settings)
    for out in ("models/critic", "data/preferences"):
        assert [path.name for path in Path(out).iterdir()] == ["skipped.json"]
        assert read_json(Path(out) / "skipped.json")["method"] == method
    weights = load_file("models/policy/adapter_model.safetensors")
    moved = any(bool(value.any()) for name, value in weights.items() if "lora_B" in name)
    assert moved == (method in ("multi-turn-dpo", "rft"))
    printed = capsys.readouterr().out
    assert f"skipped: the method `{method}` has no critic" in printed
    assert ("trains nothing" in printed) == (not moved)
    assert not list(Path(".scratch").glob("*"))


OWN_METHOD = """
import sweetrl

class Best(sweetrl.Method):
    needs = frozenset({"trajectories"})

    class Options(sweetrl.TrainerSettings):
        least: float = 0.0

    settings_type = Options

    def data(self, job):
        least = job.settings.least
        return job.rows(dialogue for dialogue in job.inputs.trajectories() if dialogue.reward >= least)
"""


def test_an_own_method_trains_by_its_own_options(
    project: Callable[[str], Path], own_code: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = project("own")
    own_code(folder, OWN_METHOD)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("SWEETRL_TRACKING", "off")
    shutil.rmtree(folder / "data/preferences")
    (folder / "data/pairs.parquet").unlink()

    def settings(**options: Any) -> Any:
        trainer = {"learning_rate": 1e-3, "batch_size": 4, "micro_batch_size": 2, "lora": {"rank": 4}}
        model = {"device": "cpu", "threads": 1}
        return parse_settings({"method": "mine:Best", "method_options": trainer | options, "model": model})

    train_critic(settings())
    skipped = {"method": "mine:Best", "stage": "train-critic", "why": "the method `mine:Best` has no critic"}
    assert read_json(Path("models/critic/skipped.json")) == skipped
    weights = []
    for least in (0.0, 1.0):
        train_policy(settings(least=least))
        weights.append(load_file("models/policy/adapter_model.safetensors"))
        assert any(bool(value.any()) for name, value in weights[-1].items() if "lora_B" in name)
    assert any(bool((value != weights[1][name]).any()) for name, value in weights[0].items()), "its option counts"
    assert not list(Path(".scratch").glob("*"))
    with pytest.raises(UserError, match=r"params\.yaml: method_options of mine:Best: unknown parameter `most`"):
        train_policy(settings(most=1.0))


def test_a_baseline_without_data_is_refused(project: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project("lacking"))
    Path("data/pairs.parquet").unlink()
    with pytest.raises(UserError, match=r"data/pairs.parquet: there is no such file"):
        train_policy(parse_settings({"method": "multi-turn-dpo"}))
    failed = [replace(dialogue, reward=0.2) for dialogue in TrajectoryStore(Path("data/trajectories")).read()]
    TrajectoryStore(Path("data/trajectories")).write_shard(0, failed)
    with pytest.raises(UserError, match="no attempt has a reward of 1"):
        train_policy(parse_settings({"method": "rft", "model": {"device": "cpu", "threads": 1}}))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["regression-head", "value-head"])
def test_a_critic_with_a_head_resumes_and_ranks(
    project: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    model = {"base": "models/base", "device": "cpu", "threads": 1}
    critic = {"epochs": 4, "batch_size": 4, "micro_batch_size": 4, "checkpoints": 4, "lora": {"rank": 4}}
    settings = parse_settings(
        {
            "model": model,
            "agent": {"max_new_tokens": 6},
            "critic": critic | {"learning_rate": 1e-3, "parameterization": kind},
            "rank": {"share": 0.1, "candidates": 3, "margin": 0.0},
        }
    )
    weights = []
    for name in ("undisturbed", "killed"):
        monkeypatch.chdir(project(name))
        if name == "killed":
            log = PreferenceTrainer.log

            def dies(self, logs, *more, log=log):  # type: ignore[no-untyped-def]
                log(self, logs, *more)
                if self.state.global_step == self.steps - 1:
                    raise KeyboardInterrupt

            with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
                patch.setattr(PreferenceTrainer, "log", dies)
                train_critic(settings)
            assert list(Path(".scratch").glob("train-critic-*/checkpoint-*/complete"))
        train_critic(settings)
        weights.append(Path("models/critic/adapter_model.safetensors").read_bytes())
    assert weights[0] == weights[1]
    rank(settings)
    states = Table(Path("data/preferences") / files.CANDIDATES, RankedState)
    assert len({reply.advantage for state in states for reply in state.candidates}) > len(states)
