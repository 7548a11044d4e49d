"""The stages `collect` and `evaluate` against servers: an agent of text, vLLM with adapters, a model as the user."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from sweetrl.backend.suite import generate
from sweetrl.colbench.store import TrajectoryStore, write_task_table
from sweetrl.config.settings import Settings, parse_settings
from sweetrl.engines.vllm import adapter_name
from sweetrl.errors import UserError
from sweetrl.evaluation.metrics import read_results
from sweetrl.io import read_json
from sweetrl.paths import EVALUATION_DIALOGUES, POLICY, RESULTS, TRAJECTORIES
from sweetrl.rollout.ledger import COST
from sweetrl.stages import collect as collecting
from sweetrl.stages import evaluate as evaluating
from sweetrl.tracking.registry import cost
from sweetrl.tracking.store import connect
from tests.stages.conftest import content

TASKS = 6


@pytest.fixture
def project(tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project's root with a few tasks and the tiny model, as the working directory."""
    monkeypatch.chdir(tmp_path)
    for split in ("train", "test"):
        write_task_table(Path(f"data/tasks/{split}.parquet"), generate(split, TASKS, seed=1))
    Path("models").mkdir()
    Path("models/base").symlink_to(tiny_model)
    POLICY.mkdir()
    (POLICY / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 8}')
    (POLICY / "adapter_model.safetensors").write_bytes(b"weights")
    return tmp_path


def settings(engine: dict[str, Any], simulator: dict[str, Any] | None = None, **changes: Any) -> Settings:
    retry_policy = {"timeout_seconds": 20.0, "backoff_seconds": 0.01, "attempts": 10}
    simulator = (
        {"kind": "scripted"} if simulator is None else simulator | {"server": simulator["server"] | retry_policy}
    )
    values: dict[str, Any] = {
        "model": {"base": "models/base", "device": "cpu", "threads": 1},
        "agent": {"max_turns": 5, "max_new_tokens": 64},
        "engine": engine | retry_policy,
        "simulator": simulator,
        "collect": {"tasks": TASKS, "attempts": 2, "batch": 4, "shard": 5},
        "evaluate": {"tasks": TASKS, "batch": 4, "resamples": 100},
    }
    return parse_settings(values | changes)


def leaky(body: dict[str, Any]) -> str:
    """A user's model that gives code away in every reply about a table."""
    return "It is\nx = 7" if "what is the rate" in body["messages"][0]["content"].lower() else "I do not know."


def test_an_agent_of_text_and_a_model_as_the_user(fake_server: Any, project: Path, logged: dict[str, float]) -> None:
    with fake_server() as server, fake_server(reply=leaky) as users:
        engine = {"kind": "openai", "urls": server.url, "model": "their-agent"}
        user = {"kind": "llm", "server": {"urls": users.url, "model": "a-user"}, "recording": "answers.jsonl"}
        collecting.collect(settings(engine, user))
        before = users.requests
        first = content(TRAJECTORIES)
        collecting.collect(settings(engine, user))
        assert users.requests == before  # the recording speaks
        assert content(TRAJECTORIES) == first
        collecting.collect(settings(engine, {"kind": "replay", "recording": "answers.jsonl", "server": {}}))
        assert users.requests == before
        replayed = [dialogue.messages for dialogue in TrajectoryStore(TRAJECTORIES).read()]
        with pytest.raises(UserError, match=r"dialogues are lost.*leaks the reference \(code\) in each of 3 attempts"):
            collecting.collect(settings(engine, user | {"leaks": "refuse", "recording": ""}))
    assert sorted(first) == ["shard-00000.parquet", "shard-00001.parquet", "shard-00002.parquet"]
    dialogues = list(TrajectoryStore(TRAJECTORIES).read())
    assert [dialogue.messages for dialogue in dialogues] == replayed
    assert len(dialogues) == 2 * TASKS
    for dialogue in dialogues:
        assert (dialogue.policy, dialogue.outcome, dialogue.reward) == ("their-agent", "answered", 0.0)
        assert all(turn.token_ids == () for turn in dialogue.turns)
        assert int(dialogue.extra["generated_tokens"]) > 0
        assert dialogue.extra["leaks"].split()[0] == "2:code"
    assert logged["share_leaked"] == 1.0 and logged["requests"] > 0
    assert logged["gpu_seconds"] == logged["dialogue/gpu_seconds"] == 0.0 < logged["seconds_sampling"]
    kept = read_json(Path("reports/runs/collect.json"))["metrics"]
    assert kept["share_leaked"] == 1.0 and not any(map(COST.match, kept)), "no function of the inputs"


def test_an_evaluation_loads_the_adapter_into_the_server(fake_server: Any, project: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained("models/base")
    with fake_server(tokenizer=tokenizer) as server:
        evaluating.evaluate(settings({"kind": "vllm", "urls": server.url}))
        models = [body["model"] for body in server.bodies]
        assert server.adapters == {}
    assert set(models) == {"base", adapter_name(POLICY)}
    assert models == sorted(models, key=lambda name: name != "base")  # first the one policy, then the other
    rows = read_results(RESULTS)
    assert [row.policy for row in rows] == ["base"] * TASKS + ["trained"] * TASKS
    turns = next(iter(TrajectoryStore(EVALUATION_DIALOGUES / "trained").read())).turns
    assert all(len(turn.token_ids) == len(turn.logprobs) > 0 for turn in turns)
    assert (tokenizer.decode(turns[0].token_ids[:-1]), turns[0].finish_reason) == (turns[0].raw, "stop")


@pytest.mark.slow
def test_mlflow_has_the_account(fake_server: Any, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens, wall and GPU-seconds of the stage and of each dialogue, for both policies of an evaluation."""
    monkeypatch.delenv("SWEETRL_TRACKING")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    tracking = {"uri": f"sqlite:///{project}/store.db", "artifacts": str(project / "artifacts")}
    with fake_server(tokenizer=AutoTokenizer.from_pretrained("models/base")) as server:
        engine = {"kind": "vllm", "urls": server.url, "gpus": 4}
        changed = settings(engine, tracking=tracking)
        collecting.collect(changed)
        evaluating.evaluate(changed)
    store = connect(changed.tracking, project)
    client, runs = store.client, store.stage_runs(project)
    for stage, policies in (("collect", [""]), ("evaluate", ["/base", "/trained"])):
        run = runs[stage]
        metrics, fetched = run.data.metrics, project / "fetched" / stage
        fetched.mkdir(parents=True)
        files = sorted(artifact.path for artifact in client.list_artifacts(run.info.run_id, "costs"))
        assert len(files) == len(policies)
        for policy, file in zip(policies, files, strict=True):
            text = Path(client.download_artifacts(run.info.run_id, file, str(fetched))).read_text()
            rows = [json.loads(line) for line in text.splitlines()]
            assert len(rows) == (2 * TASKS if stage == "collect" else TASKS)
            assert {row["policy"] for row in rows} == {policy.removeprefix("/") or "models/base"}
            seconds = metrics[f"seconds_sampling{policy}"]
            assert metrics[f"gpu_seconds{policy}"] == pytest.approx(4 * seconds)
            assert sum(row["gpu_seconds"] for row in rows) == pytest.approx(4 * seconds, rel=1e-6)
            assert sum(row["generated_tokens"] for row in rows) == metrics[f"generated_tokens{policy}"]
            assert metrics[f"dialogue/gpu_seconds{policy}"] == pytest.approx(4 * seconds / len(rows), rel=1e-6)
            assert metrics[f"dialogue/seconds_p95{policy}"] > 0
        assert metrics["seconds"] > 0
    # And of the version that would be registered: its stages' sums.
    total = cost(runs.values())
    parts = [runs["collect"].data.metrics["gpu_seconds"]]
    parts += [runs["evaluate"].data.metrics[f"gpu_seconds/{name}"] for name in ("base", "trained")]
    assert total["gpu_seconds"] == pytest.approx(sum(parts), abs=0.06) and sum(parts) > 0
    assert total["seconds"] == pytest.approx(sum(run.data.metrics["seconds"] for run in runs.values()), abs=0.06)


def test_a_model_in_this_process_can_be_the_user(project: Path) -> None:
    user = {"kind": "llm", "server": {"model": "models/base", "max_new_tokens": 8, "temperature": 1.0}}
    everything = {"tasks": TASKS, "attempts": 2, "batch": 4, "shard": 5, "lost_share": 1.0}  # a random model
    agent = {"max_turns": 2, "max_new_tokens": 8}
    changed = settings({"kind": "transformers"}, user, agent=agent, collect=everything)
    collecting.collect(changed)
    first = content(TRAJECTORIES)
    collecting.collect(changed)
    assert content(TRAJECTORIES) == first
    dialogues = list(TrajectoryStore(TRAJECTORIES).read())
    heard = [dialogue.messages[2].content for dialogue in dialogues if dialogue.outcome != "lost"]
    assert {dialogue.error for dialogue in dialogues} <= {"", "the user said nothing"}
    assert len(heard) >= 3 and all(heard)


def test_a_key_is_in_no_file_that_a_run_leaves(
    fake_server: Any, project: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Servers that echo the key in each reply and now and then in an error: not in dialogues, records, MLflow, logs."""
    key = "sk-canary-0123456789"
    monkeypatch.setenv("THE_KEY", key)
    monkeypatch.delenv("SWEETRL_TRACKING")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    tracking = {"uri": f"sqlite:///{project}/store.db", "artifacts": str(project / "artifacts"), "traces": 1.0}

    def echo(body: dict[str, Any]) -> str:
        replies = sum(message["role"] == "assistant" for message in body["messages"])
        return f"I WANT TO ANSWER: {key}" if replies > 1 else f"What is {key}?"

    with fake_server(reply=echo, share=0.2, faults=("500", "not-json")) as server, fake_server(reply=echo) as users:
        reached = {"key_variable": "THE_KEY", "model": "echo"}
        user = {"kind": "llm", "server": {**reached, "urls": users.url}, "recording": "answers.jsonl"}
        collecting.collect(settings({**reached, "kind": "openai", "urls": server.url}, user, tracking=tracking))
        assert {headers["authorization"] for headers in (*server.headers, *users.headers)} == {f"Bearer {key}"}
    dialogues = list(TrajectoryStore(TRAJECTORIES).read())
    words = [message.content for dialogue in dialogues for message in dialogue.messages]
    assert any("What is ***?" in text for text in words), "the servers did echo it"
    assert not any(key in text for text in words)
    files = [path for path in project.rglob("*") if path.is_file()]
    assert {"store.db", "answers.jsonl", "collect.json"} <= {path.name for path in files}
    assert not [path for path in files if key.encode() in path.read_bytes()]
    assert key not in caplog.text
