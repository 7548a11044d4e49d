"""`sweetrl collect` and `sweetrl evaluate` against a real vLLM that serves the agent (the base, an adapter that was
trained on its replies) and the user's model (a second adapter): every dialogue accounted for, every token right.

The user's model is no good user, because it is as small as the agent. What is shown is that nothing gets lost on
the way: contexts, log-probs, counts of tokens, leaks, causes.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from sweetrl.backend import Backend
from sweetrl.backend.suite import generate
from sweetrl.cli.main import app
from sweetrl.colbench.leaks import leaks_of
from sweetrl.colbench.store import TrajectoryStore, read_task_table, write_task_table
from sweetrl.config.settings import EngineSettings, LoraSettings, ModelSettings, PolicySettings
from sweetrl.engines.transformers import TransformersEngine
from sweetrl.lm.adapters import attach_adapter, load_base, save_adapter
from sweetrl.lm.data import PreferenceData, encode
from sweetrl.lm.passes import Layout
from sweetrl.lm.reference import row_logprobs
from sweetrl.sweet.pairs import trajectory_pairs
from sweetrl.types import Task, Trajectory

TASKS = 50
DOMAIN = Backend()
SYSTEM = DOMAIN.system_prompt("short")
LORA = LoraSettings(rank=8)

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(1800)]


def parameters(base: Path, **agent: Any) -> None:
    """Write the params.yaml of the working directory."""
    patient = {"timeout_seconds": 600.0}
    values = {
        "seed": 3,
        "model": {"base": str(base), "device": "cpu", "threads": 1},
        "agent": {"max_turns": 10, "max_new_tokens": 192} | agent,
        "engine": patient,
        "simulator": {"server": patient | {"max_new_tokens": 24, "temperature": 1.0}},
        "collect": {"shard": 16, "lost_share": 0.5},
    }
    Path("params.yaml").write_text(json.dumps(values))  # JSON is YAML


def sweetrl(*words: Any) -> dict[str, str]:
    """Run the command line; return the facts that it prints."""
    done = CliRunner().invoke(app, [str(word) for word in words])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output
    return dict(line.split("\t") for line in done.output.splitlines() if "\t" in line)


def at_vllm(served: EngineSettings) -> list[str]:
    return ["--engine", "vllm", "--url", served.urls, "--concurrency", "32"]


def check(dialogues: Sequence[Trajectory], tasks: Sequence[Task], k: int, local: TransformersEngine) -> None:
    """Every attempt is there, in order; its tokens are what the agent saw and said, its counts and leaks are right."""
    attempts = [(task, n) for task in tasks for n in range(k)]
    assert [(dialogue.task, dialogue.attempt) for dialogue in dialogues] == attempts
    with_turns = [dialogue for dialogue in dialogues if dialogue.turns]
    rows = [encode(dialogue, local.chat, SYSTEM) for dialogue in with_turns]
    logprobs = row_logprobs(local.model, rows, Layout(None))
    for dialogue, row, expected in zip(with_turns, rows, logprobs, strict=True):
        roles = [message.role for message in dialogue.messages]
        assert len(row.spans) == len(dialogue.turns) == roles.count("assistant")
        # Equal log-probs of equal tokens: the server has read this very context, id by id.
        sampled = [value for turn in dialogue.turns for value in turn.logprobs]
        assert sampled == pytest.approx(expected.tolist(), abs=2e-3)
        assert int(dialogue.extra["generated_tokens"]) == row.reply_tokens == len(sampled)
        assert int(dialogue.extra["prompt_tokens"]) == sum(start for start, _ in row.spans)
        for turn in dialogue.turns:
            ids = turn.token_ids[:-1] if turn.finish_reason == "stop" else turn.token_ids
            assert turn.raw == local.tokenizer.decode(ids, skip_special_tokens=True)
    for dialogue in dialogues:
        if dialogue.outcome == "lost":
            assert dialogue.error and dialogue.reward is None and dialogue.answer is None
        else:
            assert dialogue.outcome in ("answered", "max_turns_reached")
            assert dialogue.reward is not None and not dialogue.error
        with_model = dialogue.simulator.startswith("llm:")
        leaks = leaks_of(dialogue.task, dialogue.messages, DOMAIN.find_leak) if with_model else []
        assert dialogue.extra.get("leaks", "") == " ".join(f"{index}:{leak.kind}" for index, leak in leaks)


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that is no project, with synthetic tasks."""
    folder = tmp_path_factory.mktemp("work")
    write_task_table(folder / "tasks.parquet", generate("test", TASKS, seed=7, difficulty=3))
    return folder


@pytest.fixture(autouse=True)
def here(work: Path, base_model: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(work)
    monkeypatch.setenv("SWEETRL_TRACKING", "off")
    parameters(base_model)
    return work


@pytest.fixture(scope="module")
def collected(served: EngineSettings, base_model: Path, work: Path) -> list[Trajectory]:
    """Two attempts at every synthetic task, with the scripted user."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(work)
        parameters(base_model)
        words = ["collect", "--tasks", "tasks.parquet", "--out", "scripted", "--attempts", 2, *at_vllm(served)]
        facts = sweetrl(*words)
    assert (facts["tasks"], facts["dialogues"], facts["share lost"]) == (str(TASKS), str(2 * TASKS), "0")
    assert facts["gpu seconds"] == facts["gpu seconds per dialogue"] == "0" and float(facts["seconds per dialogue"]) > 0
    assert float(facts["prompt tokens"]) > float(facts["cached tokens"]) > 0  # a turn's context is not read twice
    return list(TrajectoryStore(work / "scripted").read())


@pytest.fixture(scope="module")
def trained(collected: list[Trajectory], base_model: Path, work: Path) -> Path:
    """A policy that was trained a little, on pairs of the collected dialogues."""
    from sweetrl.engines.chat import ChatFormat
    from sweetrl.sweet.trainer import PolicyTrainer

    model, tokenizer = load_base(ModelSettings(base=str(base_model), threads=1))
    chat = ChatFormat(tokenizer)
    pairs, _ = trajectory_pairs(collected, "all", 0.1)
    assert len(pairs) >= 8
    places = {(dialogue.task.id, dialogue.attempt): number for number, dialogue in enumerate(collected)}
    rows = tuple(encode(dialogue, chat, SYSTEM) for dialogue in collected)
    chosen = [places[pair.task_id, pair.chosen_attempt] for pair in pairs]
    rejected = [places[pair.task_id, pair.rejected_attempt] for pair in pairs]
    data = PreferenceData(rows, tuple(zip(chosen, rejected, strict=True)))
    settings = PolicySettings(learning_rate=1e-3, epochs=8.0, batch_size=8, micro_batch_size=8, nll=0.2, lora=LORA)
    trainer = PolicyTrainer(attach_adapter(model, LORA, 1), data, settings, work / "training", 1)
    margins = [update["reward/margin"] for update in trainer.fit()]
    assert statistics.mean(margins[len(margins) // 2 :]) > 0.0, margins  # a few pairs an update: single ones scatter
    save_adapter(trainer.model, work / "policy", str(base_model))
    return work / "policy"


def test_fifty_tasks_with_the_scripted_user(collected: list[Trajectory], local: TransformersEngine, work: Path) -> None:
    check(collected, read_task_table(work / "tasks.parquet"), 2, local)
    assert {dialogue.outcome for dialogue in collected} <= {"answered", "max_turns_reached"}


def test_fifty_tasks_with_a_model_as_the_user(
    served: EngineSettings, user: str, local: TransformersEngine, base_model: Path
) -> None:
    parameters(base_model, max_turns=4, max_new_tokens=96)
    with_user = [*at_vllm(served), "--user-url", served.urls, "--user-model", user]
    facts = sweetrl("collect", "--tasks", "tasks.parquet", "--out", "llm", *with_user)
    assert facts["user"].startswith(f"llm:{user}@") and facts["dialogues"] == str(TASKS)
    assert float(facts["user generated tokens"]) > 0 and float(facts["user failed requests"]) == 0
    dialogues = list(TrajectoryStore(Path("llm")).read())
    check(dialogues, read_task_table(Path("tasks.parquet")), 1, local)
    assert {dialogue.simulator for dialogue in dialogues} == {f"llm:{user}"}
    # The model's own silence may lose a dialogue; nothing else does.
    assert {dialogue.error for dialogue in dialogues} <= {"", "the user said nothing"}
    assert sum(len(dialogue.turns) > 1 for dialogue in dialogues) >= TASKS // 2  # agent and user really talk


def test_a_trained_adapter_succeeds_as_often_as_with_transformers(
    served: EngineSettings, trained: Path, local: TransformersEngine, base_model: Path
) -> None:
    """Greedy, so that both engines attempt the same dialogues: the same successes, up to ties in rounding."""
    parameters(base_model, temperature=0.0)
    numbers, rewards = {}, {}
    for name, words in (
        ("vllm", at_vllm(served)),
        ("transformers", ["--engine", "transformers", "--concurrency", "50"]),
    ):
        files = ["--json", f"{name}.json", "--out", f"evaluated-{name}"]
        sweetrl("evaluate", "--tasks", "tasks.parquet", "--adapter", trained, *files, *words)
        numbers[name] = json.loads(Path(f"{name}.json").read_text())
        dialogues = list(TrajectoryStore(Path(f"evaluated-{name}")).read())
        assert [dialogue.task for dialogue in dialogues] == read_task_table(Path("tasks.parquet"))
        rewards[name] = [dialogue.reward for dialogue in dialogues]
    near, reached = (numbers[name]["intervals"]["success"] for name in ("transformers", "vllm"))
    assert near["n"] == reached["n"] == TASKS and numbers["vllm"]["share_lost"] == 0.0
    assert near["low"] <= reached["value"] <= near["high"], numbers
    assert sum(a == b for a, b in zip(*rewards.values(), strict=True)) >= 0.9 * TASKS, rewards
    assert numbers["vllm"]["gpu_seconds"] == numbers["transformers"]["gpu_seconds"] == 0.0
    # The adapter was given back, and the user's model was left alone.
    names = [model["id"] for model in httpx.get(f"{served.urls}/models", timeout=60).json()["data"]]
    assert served.model in names and not [name for name in names if name.startswith("policy-")]
