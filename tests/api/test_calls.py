"""Unfinished work is taken up by the call that it belongs to, and by no other."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import sweetrl
from sweetrl.api.calls import dialogues_call, unfinished
from sweetrl.api.learning import settings_for
from sweetrl.api.rollouts import folder_name
from sweetrl.colbench.find import load_domain
from sweetrl.config.settings import Settings
from sweetrl.errors import UserError
from sweetrl.models.check import FULL
from sweetrl.sweet.training import TrainingJob
from sweetrl.types import AgentTurn, Message, Task, Trajectory

TASK = Task("one", "Do it.", "def f(x):\n    return x", (("test1", "f(1)"),), "what only the user knows")


def dialogue(reward: float) -> Trajectory:
    answer = "I WANT TO ANSWER:\n```python\npass\n```"
    spoken = (Message("user", TASK.problem_description), Message("assistant", answer))
    return Trajectory(TASK, 0, spoken, (AgentTurn(1, answer),), answer="pass", reward=reward)


def call(settings: Settings, task: Task = TASK) -> str:
    """The digest that names unfinished dialogues of one attempt at `task`."""
    policy, how = sweetrl.Policy(settings.model, settings.engine), settings.collect
    return dialogues_call(load_domain(settings), [policy], [task], 1, how.batch, how.shard)


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "model.safetensors").write_bytes(b"weights")
    (tmp_path / "prompt.txt").write_text("Be kind.")
    (tmp_path / "said.jsonl").write_text("{}\n")
    user = {"kind": "replay", "recording": "said.jsonl"}
    return sweetrl.domain("backend", model={"base": "base"}, agent={"prompt": "prompt.txt"}, simulator=user).settings


@pytest.mark.parametrize("name", ["base/model.safetensors", "prompt.txt", "said.jsonl"])
def test_another_content_of_a_file_makes_another_call(settings: Settings, name: str) -> None:
    before = call(settings)
    assert call(settings) == before
    Path(name).write_text("other")
    assert call(settings) != before


def test_another_field_of_a_task_makes_another_call(settings: Settings) -> None:
    before = call(settings)
    other = {"problem_description": "Do that.", "hidden_information": "another", "test_cases": (), "ground_truth": ""}
    for name, value in other.items():
        assert call(settings, replace(TASK, **{name: value})) != before, name


def test_rows_computed_together_decide_the_bytes_of_an_engine_in_this_process_alone(settings: Settings) -> None:
    def name(kind: str, batch: int) -> str:
        engine = settings.engine.model_copy(update={"kind": kind})
        collect = settings.collect.model_copy(update={"batch": batch})
        return call(settings.model_copy(update={"engine": engine, "collect": collect}))

    assert name("transformers", 8) != name("transformers", 16)
    assert name("openai", 8) == name("openai", 16)


def test_full_weights_that_were_trained_are_known_by_their_content(settings: Settings) -> None:
    policy = sweetrl.Policy(settings.model, settings.engine, Path("full"))
    calls = set[str]()
    for weights in (b"trained", b"trained longer"):
        Path("full").mkdir(exist_ok=True)
        (Path("full") / FULL).write_text("{}")
        (Path("full") / "model.safetensors").write_bytes(weights)
        calls.add(dialogues_call(load_domain(settings), [policy], [TASK], 1, 8, 8))
    assert len(calls | {call(settings)}) == 3


def test_a_changed_plug_in_makes_another_call(settings: Settings, tmp_path: Path, own_code: Any) -> None:
    reward = settings.reward.model_copy(update={"function": "mine:price"})
    priced = settings.model_copy(update={"reward": reward})
    own_code(tmp_path, "def price(task, dialogue):\n    return 0.5\n")
    before = call(priced)
    own_code(tmp_path, "def price(task, dialogue):\n    return 1.0\n")
    assert call(priced) != before


def test_a_recording_that_grows_and_a_server_that_moves_change_no_call(settings: Settings) -> None:
    simulator = settings.simulator.model_copy(update={"kind": "llm"})
    kept = settings.model_copy(update={"simulator": simulator})
    before = call(kept)
    Path("said.jsonl").write_text("{}\n{}\n")
    engine = kept.engine.model_copy(update={"urls": "http://elsewhere:1/v1"})
    assert call(kept.model_copy(update={"engine": engine})) == before


@pytest.mark.parametrize(("pairs", "number"), [(None, 2), ("official", 2), ("all", 3), ([], 0)])
def test_pairs_are_given_or_chosen(monkeypatch: pytest.MonkeyPatch, pairs: Any, number: int) -> None:
    jobs: list[TrainingJob] = []

    def killed(job: TrainingJob) -> None:
        jobs.append(job)
        raise KeyboardInterrupt

    monkeypatch.setattr("sweetrl.api.learning.fit_critic", killed)
    attempts = [replace(dialogue(reward), attempt=i) for i, reward in enumerate((1.0, 0.5, 0.2))]
    with pytest.raises(KeyboardInterrupt):
        sweetrl.train_critic(sweetrl.domain("backend"), sweetrl.Policy.load("base"), attempts, pairs)
    assert len(jobs[0].inputs.pairs()) == number


def test_a_part_of_a_section_in_a_section_leaves_its_other_settings(tmp_path: Path) -> None:
    params = tmp_path / "params.yaml"
    params.write_text("policy: {lora: {rank: 4, alpha: 8}}\nsimulator: {server: {model: large}}\n")
    user = {"server": {"temperature": 0.5}}
    env = sweetrl.domain(params=params, policy={"lora": {"alpha": 2}}, simulator=user)
    assert env.settings.simulator.server.model == "large" and env.settings.simulator.server.temperature == 0.5
    for learnt in (
        env.settings.policy,
        settings_for(env, sweetrl.Policy(), None, policy={"lora": {"alpha": 2}}).policy,
    ):
        assert (learnt.lora.rank, learnt.lora.alpha) == (4, 2)


def test_policies_have_folders_of_their_own() -> None:
    names = ["base", "sft.1", "/models/base", "models/base", "models-base", "..", "../base", ".", "ä" * 300]
    folders = [folder_name(name) for name in names]
    assert folders[:2] == names[:2] and folders[4] == names[4]
    assert len(set(folders)) == len(names)
    assert all("/" not in name and name[0] != "." and len(name) < 120 for name in folders)


def test_policies_of_one_name_are_not_mistaken_for_one(tmp_path: Path) -> None:
    env, policy = sweetrl.domain("backend"), sweetrl.Policy.load("base")
    with pytest.raises(sweetrl.UserError, match="two of the policies have one name"):
        sweetrl.evaluate(env, [policy, policy.adapted("adapter"), policy], 1)


def test_wrong_numbers_and_places_are_one_sentence(tmp_path: Path) -> None:
    env, policy = sweetrl.domain("backend"), sweetrl.Policy.load("base")
    with pytest.raises(sweetrl.UserError, match="there are no tasks to attempt"):
        sweetrl.collect(env, policy, -1)
    for call in (sweetrl.collect, sweetrl.evaluate):
        with pytest.raises(sweetrl.UserError, match="a seed of -1 is impossible; give one from 0 to 4294967295"):
            call(env, policy, [TASK], seed=-1)
    with pytest.raises(sweetrl.UserError, match="a seed of 4294967296 is impossible"):
        sweetrl.train("rft", env, policy, dialogues=[dialogue(1.0)], seed=2**32)
    with pytest.raises(sweetrl.UserError, match="0 attempts at a task are none"):
        sweetrl.collect(env, policy, [TASK], attempts=0)
    shutil.copy(__file__, tmp_path / "file")
    with pytest.raises(sweetrl.UserError, match="file: no folder can be made here"):
        sweetrl.collect(env, policy, [TASK], out=tmp_path / "file")


def test_unfinished_work_is_one_process_at_a_time_and_stays_until_it_is_finished(tmp_path: Path) -> None:
    out, key = tmp_path / "out", "0123456789abcdef"
    with pytest.raises(RuntimeError), unfinished(out, key) as folder:
        with pytest.raises(UserError, match="another process is at this very work"), unfinished(out, key):
            pass
        with unfinished(tmp_path / "other", key):
            pass
        (folder / "shard").write_text("x")
        raise RuntimeError
    assert [path.name for path in folder.iterdir()] == ["shard"], "what is finished stays"
    with unfinished(out, "f" * 16):
        pass
    assert not list(tmp_path.iterdir()), "it was for an earlier call with this output"


def test_a_killed_process_lets_go(tmp_path: Path) -> None:
    pid = os.fork()
    if pid == 0:
        unfinished(tmp_path / "out", "key").__enter__()
        os._exit(0)
    os.waitpid(pid, 0)
    with unfinished(tmp_path / "out", "key"):
        pass
