"""`sweetrl collect` and `sweetrl evaluate` against a real vLLM that serves the agent (the base, an adapter that was
trained on what it said) and the user's model (a second adapter): every dialogue accounted for, every token right.

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


def far(served: EngineSettings) -> list[str]:
    return ["--engine", "vllm", "--url", served.urls, "--concurrency", "32"]


def with_user(served: EngineSettings, user: str) -> list[str]:
    return [*far(served), "--user-url", served.urls, "--user-model", user]


def check(found: Sequence[Trajectory], tasks: Sequence[Task], k: int, local: TransformersEngine) -> None:
    """Every attempt is there, in order; its tokens are what the agent saw and said, its counts and leaks are right."""
    assert [(one.task, one.attempt) for one in found] == [(task, n) for task in tasks for n in range(k)]
    spoken = [one for one in found if one.turns]
    rows = [encode(one, local.chat, SYSTEM) for one in spoken]
    logprobs = row_logprobs(local.model, rows, Layout(None))
    for one, row, expected in zip(spoken, rows, logprobs, strict=True):
        assert len(row.spans) == len(one.turns) == sum(message.role == "assistant" for message in one.messages)
        # Equal log-probs of equal tokens: the server has read this very context, id by id.
        said = [value for turn in one.turns for value in turn.logprobs]
        assert said == pytest.approx(expected.tolist(), abs=2e-3)
        assert int(one.extra["generated_tokens"]) == row.reply_tokens == len(said)
        assert int(one.extra["prompt_tokens"]) == sum(start for start, _ in row.spans)
        for turn in one.turns:
            ids = turn.token_ids[:-1] if turn.finish_reason == "stop" else turn.token_ids
            assert turn.raw == local.tokenizer.decode(ids, skip_special_tokens=True)
    for one in found:
        if one.outcome == "lost":
            assert one.error and one.reward is None and one.answer is None
        else:
            assert one.outcome in ("answered", "max_turns_reached") and one.reward is not None and not one.error
        leaks = leaks_of(one.task, one.messages, DOMAIN.find_leak) if one.simulator.startswith("llm:") else []
        assert one.extra.get("leaks", "") == " ".join(f"{index}:{leak.kind}" for index, leak in leaks)


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
        words = ["collect", "--tasks", "tasks.parquet", "--out", "scripted", "--attempts", 2, *far(served)]
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
    places = {(one.task.id, one.attempt): number for number, one in enumerate(collected)}
    data = PreferenceData(
        tuple(encode(one, chat, SYSTEM) for one in collected),
        tuple((places[one.task_id, one.chosen_attempt], places[one.task_id, one.rejected_attempt]) for one in pairs),
    )
    settings = PolicySettings(learning_rate=1e-3, epochs=8.0, batch_size=8, micro_batch_size=8, nll=0.2, lora=LORA)
    trainer = PolicyTrainer(attach_adapter(model, LORA, 1), data, settings, work / "training", 1)
    margins = [one["reward/margin"] for one in trainer.fit()]
    assert statistics.mean(margins[len(margins) // 2 :]) > 0.0, margins  # a few pairs an update: single ones scatter
    save_adapter(trainer.model, work / "policy", str(base_model))
    return work / "policy"


def test_fifty_tasks_with_the_scripted_user(collected: list[Trajectory], local: TransformersEngine, work: Path) -> None:
    check(collected, read_task_table(work / "tasks.parquet"), 2, local)
    assert {one.outcome for one in collected} <= {"answered", "max_turns_reached"}


def test_fifty_tasks_with_a_model_as_the_user(
    served: EngineSettings, user: str, local: TransformersEngine, base_model: Path
) -> None:
    parameters(base_model, max_turns=4, max_new_tokens=96)
    facts = sweetrl("collect", "--tasks", "tasks.parquet", "--out", "llm", *with_user(served, user))
    assert facts["user"].startswith(f"llm:{user}@") and facts["dialogues"] == str(TASKS)
    assert float(facts["user generated tokens"]) > 0 and float(facts["user failed requests"]) == 0
    found = list(TrajectoryStore(Path("llm")).read())
    check(found, read_task_table(Path("tasks.parquet")), 1, local)
    assert {one.simulator for one in found} == {f"llm:{user}"}
    # The model's own silence may lose a dialogue; nothing else does.
    assert {one.error for one in found} <= {"", "the user said nothing"}
    assert sum(len(one.turns) > 1 for one in found) >= TASKS // 2  # agent and user really talk


def test_a_trained_adapter_succeeds_as_often_as_with_transformers(
    served: EngineSettings, trained: Path, local: TransformersEngine, base_model: Path
) -> None:
    """Greedy, so that both engines attempt the same dialogues: the same successes, up to ties in rounding."""
    parameters(base_model, temperature=0.0)
    numbers, rewards = {}, {}
    for name, words in (("vllm", far(served)), ("transformers", ["--engine", "transformers", "--concurrency", "50"])):
        files = ["--json", f"{name}.json", "--out", f"evaluated-{name}"]
        sweetrl("evaluate", "--tasks", "tasks.parquet", "--adapter", trained, *files, *words)
        numbers[name] = json.loads(Path(f"{name}.json").read_text())
        found = list(TrajectoryStore(Path(f"evaluated-{name}")).read())
        assert [one.task for one in found] == read_task_table(Path("tasks.parquet"))
        rewards[name] = [one.reward for one in found]
    near, reached = (numbers[name]["intervals"]["success"] for name in ("transformers", "vllm"))
    assert near["n"] == reached["n"] == TASKS and numbers["vllm"]["share_lost"] == 0.0
    assert near["low"] <= reached["value"] <= near["high"], numbers
    assert sum(one == two for one, two in zip(*rewards.values(), strict=True)) >= 0.9 * TASKS, rewards
    assert numbers["vllm"]["gpu_seconds"] == numbers["transformers"]["gpu_seconds"] == 0.0
    # The adapter was given back, and the user's model was left alone.
    names = [one["id"] for one in httpx.get(f"{served.urls}/models", timeout=60).json()["data"]]
    assert served.model in names and not [name for name in names if name.startswith("policy-")]
