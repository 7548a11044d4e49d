"""A real vLLM on the CPU, started by the tests: the same tokens as the transformers engine, adapters, dialogues.

`make test-vllm` builds vLLM's own environment and names its Python in SWEETRL_VLLM; without it these tests are skipped.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from sweetrl.backend import Backend
from sweetrl.backend.suite import generate
from sweetrl.colbench.users import LlmSimulator
from sweetrl.config.settings import AgentSettings, EngineSettings, RewardSettings
from sweetrl.engines.chat import ChatFormat
from sweetrl.engines.openai import OpenAIEngine
from sweetrl.engines.transformers import TransformersEngine
from sweetrl.engines.vllm import VllmEngine, adapter_name
from sweetrl.errors import NoRoom
from sweetrl.rollout.users import EngineSpeaker
from sweetrl.types import Prompt, Sampling
from tests.fake_server import sample
from tests.integration.conftest import adapter_of

BASE = Path(__file__).resolve().parents[2] / "models" / "base"
FAULTS = {"429", "500", "503", "drop", "cut", "stuck", "empty", "not-json", "no-choices", "no-finish", "restart"}
GREEDY = Sampling(64, temperature=0.0)
AGENT = AgentSettings(max_turns=10, max_new_tokens=192)
DOMAIN = Backend()

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An adapter that changes what the base says."""
    return adapter_of(BASE, tmp_path_factory.mktemp("adapter") / "policy", 0.02)


def prompts(chat: ChatFormat, count: int) -> list[Prompt]:
    tasks = generate("test", count, seed=7, difficulty=3)
    system = DOMAIN.system_prompt("short")
    return [Prompt(chat.open(system, task.problem_description), number) for number, task in enumerate(tasks)]


def equal_up_to_ties(first: list[Any], second: list[Any], share: float) -> None:
    """At least `share` of the replies have the same tokens (sums in another order break ties), and equal log-probs."""
    same = [(a, b) for (a,), (b,) in zip(first, second, strict=True) if a.token_ids == b.token_ids]
    assert len(same) >= share * len(first)
    for a, b in same:
        assert a.logprobs == pytest.approx(b.logprobs, abs=2e-3)
        assert (a.text, a.finish_reason) == (b.text, b.finish_reason)


def test_the_same_greedy_tokens_and_log_probs(remote: VllmEngine, local: TransformersEngine) -> None:
    assert remote.context == local.context
    requests = prompts(local.chat, 32)
    equal_up_to_ties(sample(remote, requests, GREEDY), local.sample(requests, GREEDY), 0.95)


def test_seeds_decide(remote: VllmEngine) -> None:
    requests = prompts(remote.chat, 8)
    first = sample(remote, requests, Sampling(64, n=2))
    again = sample(remote, requests[::-1], Sampling(64, n=2))[::-1]
    tokens = [[reply.token_ids for reply in group] for group in first]
    assert tokens == [[reply.token_ids for reply in group] for group in again]
    assert sum(a != b for a, b in tokens) >= 6
    for group in first:
        for reply in group:
            assert len(reply.token_ids) == len(reply.logprobs) and max(reply.logprobs) <= 0.0
            assert reply.finish_reason == "length" or reply.token_ids[-1] == remote.chat.end_of_turn


def test_replies_end_at_own_ids(remote: VllmEngine, local: TransformersEngine) -> None:
    requests = prompts(local.chat, 16)
    ends = local.sample(requests[:1], GREEDY)[0][0].token_ids[3:4]
    stopping = replace(GREEDY, stop_ids=ends)
    replies = sample(remote, requests, stopping)
    equal_up_to_ties(replies, local.sample(requests, stopping), 0.9)
    assert sum(reply.token_ids[-1:] == ends and reply.finish_reason == "stop" for (reply,) in replies) >= 1


def test_a_full_context_is_an_error(remote: VllmEngine) -> None:
    ((nearly,),) = sample(remote, [Prompt((7,) * (remote.context - 4), 1)], GREEDY)
    assert 1 <= len(nearly.token_ids) <= 4
    with pytest.raises(NoRoom):
        sample(remote, [Prompt((7,) * remote.context, 1)], GREEDY)


def test_an_adapter_speaks_as_in_this_process_and_comes_back(
    served: EngineSettings, local: TransformersEngine, adapter: Path
) -> None:
    requests = prompts(local.chat, 16)
    expected = TransformersEngine(BASE, adapter, device="cpu", threads=1).sample(requests, GREEDY)
    engine = VllmEngine(served, local.tokenizer, adapter)
    replies = sample(engine, requests, GREEDY)
    equal_up_to_ties(replies, expected, 0.9)
    assert [reply for (reply,) in replies] != [reply for (reply,) in local.sample(requests, GREEDY)]
    # Gone, as after a restart: it is loaded again.
    gone = httpx.post(f"{served.urls}/unload_lora_adapter", json={"lora_name": adapter_name(adapter)}, timeout=60)
    assert gone.status_code == 200
    assert sample(engine, requests, GREEDY) == replies
    engine.close()
    names = [model["id"] for model in httpx.get(f"{served.urls}/models", timeout=60).json()["data"]]
    assert served.model in names and adapter_name(adapter) not in names


def test_a_proxy_that_breaks_a_tenth_of_all_requests_loses_nothing(
    served: EngineSettings, remote: VllmEngine, adapter: Path, user: str, fake_server: Any, tmp_path: Path
) -> None:
    """Agent and user's model (two adapters) behind a proxy that drops, delays, cuts, empties, refuses, forgets."""
    from sweetrl.backend.rewards import CodeScorer
    from sweetrl.colbench.store import TrajectoryStore
    from sweetrl.rollout.context import RolloutContext
    from sweetrl.rollout.run import rollout_scored

    attempts = [(task, 0) for task in generate("test", 60, seed=11, difficulty=3)]
    agent = AgentSettings(max_turns=4, max_new_tokens=96)
    trajectories = {}
    for share in (0.0, 0.1):
        with (
            fake_server(upstream=served.urls, share=share, stuck=15.0) as proxy,
            CodeScorer(RewardSettings()) as scorer,
        ):
            through = served.model_copy(update={"urls": proxy.url, "backoff_seconds": 0.1})
            engine = VllmEngine(through, remote.tokenizer, adapter)
            speaker = OpenAIEngine(through.model_copy(update={"model": user}))
            talker = LlmSimulator(EngineSpeaker(speaker, Sampling(24, 1.0)), DOMAIN, reply_characters=100)
            context = RolloutContext(DOMAIN, engine, engine.chat, talker, scorer, agent)
            store = TrajectoryStore(tmp_path / str(share))
            rollout_scored(attempts, context, store, seed=3, policy_name="far", batch=32, shard=20, lost_share=0.5)
            assert (engine.usage().retries + speaker.usage().retries > 10) == (share > 0.0)
            assert engine.usage().failures == speaker.usage().failures == 0
            engine.close()
            speaker.close()
        trajectories[share] = list(store.read())
        assert [trajectory.task for trajectory in trajectories[share]] == [task for task, _ in attempts]
        assert {trajectory.error for trajectory in trajectories[share]} <= {"", "the user said nothing"}
        assert all((trajectory.reward is None) == (trajectory.outcome == "lost") for trajectory in trajectories[share])
    assert sum(count for fault, count in proxy.seen.items() if fault in FAULTS) > 10, proxy.seen
    # The server breaks ties by what it batches together, so a dialogue may part.
    assert sum(a.messages == b.messages for a, b in zip(*trajectories.values(), strict=True)) >= 0.95 * len(attempts)
