"""What dialogues cost: an account beside them that adds up, survives kills, and changes not a byte of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sweetrl.colbench.store import TrajectoryStore
from sweetrl.config.settings import AgentSettings, ServerSettings
from sweetrl.engines.openai import OpenAIEngine
from sweetrl.engines.transformers import TransformersEngine
from sweetrl.rollout.ledger import DialogueCost, Ledger, cost_metrics
from sweetrl.rollout.run import rollout_scored

AGENT = AgentSettings(max_turns=3, max_new_tokens=8)


def cost_of(number: int, **changes: Any) -> DialogueCost:
    cost = DialogueCost(f"t-{number}", 0, "base", False, 2, 100, 40, 20, float(number), 0.5, 2.0)
    return replace(cost, **changes)


def test_lines_are_read_back_and_a_broken_one_is_left_out(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "scratch" / "costs.jsonl")
    assert ledger.read() == []
    ledger.add([cost_of(1), cost_of(2, lost=True)])
    with ledger.path.open("ab") as target:
        target.write(b'{"task": "t-3", "attem')  # a kill in the middle of a line
    assert ledger.read() == [cost_of(1), cost_of(2, lost=True)]


def test_means_and_percentiles() -> None:
    assert cost_metrics([]) == {}
    metrics = cost_metrics([cost_of(number) for number in range(1, 101)])
    assert metrics["dialogue/seconds"] == pytest.approx(50.5)
    assert (metrics["dialogue/seconds_median"], metrics["dialogue/seconds_p95"]) == (50.0, 96.0)
    assert (metrics["dialogue/gpu_seconds"], metrics["dialogue/busy_seconds"]) == (2.0, 0.5)
    assert (metrics["dialogue/prompt_tokens"], metrics["dialogue/cached_tokens"]) == (100.0, 40.0)
    assert metrics["dialogue/generated_tokens"] == 20.0


def test_a_model_in_this_process(tiny_model: Path, cast: Any, tmp_path: Path) -> None:
    """The dialogues' costs add up to the engine's account, and the dialogues are those without an account."""
    attempts = [(cast.task(number), attempt) for number in range(4) for attempt in range(2)]
    folders = {}
    for ledger in (None, Ledger(tmp_path / "costs.jsonl")):
        engine = TransformersEngine(tiny_model, device="cpu", threads=1, rows=8)
        context = cast.context(engine, AGENT, cast.user(mute=[3]), engine.chat)
        store = TrajectoryStore(tmp_path / str(ledger is None))
        rollout_scored(attempts, context, store, seed=1, policy_name="tiny", batch=4, shard=4, ledger=ledger)
        folders[ledger is None] = {path.name: path.read_bytes() for path in store.folder.iterdir()}
    assert folders[True] == folders[False]
    assert ledger is not None
    costs, usage = ledger.read(), engine.usage()
    assert sorted((cost.task, cost.attempt) for cost in costs) == sorted((task.id, k) for task, k in attempts)
    assert sum(cost.lost for cost in costs) == 2
    assert sum(cost.prompt_tokens for cost in costs) == usage.prompt_tokens
    assert sum(cost.cached_tokens for cost in costs) == usage.cached_tokens > 0
    assert sum(cost.generated_tokens for cost in costs) == usage.generated_tokens
    assert sum(cost.busy_seconds for cost in costs) == pytest.approx(usage.seconds, rel=1e-6)
    assert all(cost.seconds >= cost.busy_seconds for cost in costs)
    assert (usage.devices, usage.gpu_seconds, {cost.gpu_seconds for cost in costs}) == (0, 0.0, {0.0})


def test_servers_with_gpus(fake_server: Any, cast: Any, tmp_path: Path) -> None:
    attempts = [(cast.task(number), 0) for number in range(12)]
    ledger = Ledger(tmp_path / "costs.jsonl")
    with fake_server(latency=lambda body: 0.02, scripted=["500"]) as server:
        engine = OpenAIEngine(ServerSettings(urls=server.url, model="a-model", concurrency=4, gpus=8))
        context = cast.context(engine, AgentSettings(max_turns=5, max_new_tokens=64), chat=None)
        store = TrajectoryStore(tmp_path / "shards")
        rollout_scored(attempts, context, store, seed=1, policy_name="far", batch=6, shard=5, ledger=ledger)
        usage = engine.usage()
        engine.close()
    costs = ledger.read()
    assert len(costs) == 12 and usage.retries == 1
    assert sum(cost.generated_tokens for cost in costs) == usage.generated_tokens
    assert sum(cost.prompt_tokens for cost in costs) == usage.prompt_tokens
    assert sum(cost.cached_tokens for cost in costs) == usage.cached_tokens > 0
    assert usage.gpu_seconds == pytest.approx(8 * usage.seconds)
    assert sum(cost.gpu_seconds for cost in costs) == pytest.approx(usage.gpu_seconds, rel=1e-6)
    assert 0.0 < usage.seconds < sum(cost.seconds for cost in costs)  # several dialogues at a time
