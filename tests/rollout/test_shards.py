"""Shards of the asynchronous loop: equal bytes whatever the timing, faults and kills; what is lost has a cause."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sweetrl.backend import Backend
from sweetrl.colbench.store import TrajectoryStore
from sweetrl.colbench.users import LlmSimulator
from sweetrl.config.settings import AgentSettings, ServerSettings
from sweetrl.engines.chat import ChatFormat
from sweetrl.engines.openai import OpenAIEngine
from sweetrl.engines.vllm import VllmEngine
from sweetrl.errors import UserError
from sweetrl.rollout.context import RolloutContext
from sweetrl.rollout.run import Journal, rollout, rollout_scored
from sweetrl.rollout.scored import scored
from sweetrl.rollout.users import EngineSpeaker
from sweetrl.types import Sampling

AGENT = AgentSettings(max_turns=5, max_new_tokens=64)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}


def collect(attempts: list[Any], context: RolloutContext, folder: Path, **changes: Any) -> TrajectoryStore:
    settings = {"seed": 1, "policy_name": "base", "batch": 6, "shard": 4} | changes
    return rollout_scored(attempts, context, TrajectoryStore(folder), **settings)


@pytest.fixture
def context(cast: Any) -> RolloutContext:
    engine = cast.slow_engine(cast.engine("Why?", "I WANT TO ANSWER:aab"), 1)
    return cast.context(engine, AGENT, cast.user(mute=[3]))


def test_shards_equal_those_of_lock_step(context: RolloutContext, cast: Any, tmp_path: Path) -> None:
    attempts = cast.attempts(7)
    done: list[int] = []
    collect(attempts, context, tmp_path / "slow", progress=done.append)
    collect(attempts, replace(context, engine=context.engine.engine), tmp_path / "steps")  # type: ignore[union-attr]
    assert sum(done) == 14
    assert contents(tmp_path / "slow") == contents(tmp_path / "steps")
    assert len(contents(tmp_path / "slow")) == 4
    assert not (tmp_path / "slow" / ".journal").exists()


def test_a_journal_gives_back_what_it_was_given(cast: Any, tmp_path: Path) -> None:
    """Whatever ended the dialogue; with its reward, parts and notes."""
    attempts = cast.attempts(3)
    context = cast.context(cast.engine("Why?", "How?", "I WANT TO ANSWER:aab"), AGENT, cast.user(leaves=[1]))
    ended = scored(rollout(attempts, context, seed=5, policy_name="base"), context.scorer)
    ended[5] = replace(ended[5], parts={"letters": 0.5, "pace": -0.25}, solved=True, extra={"leaks": "2:code"})
    assert [dialogue.outcome for dialogue in ended] == ["answered"] * 2 + ["user_left"] * 2 + ["answered"] * 2
    journal = Journal(tmp_path)
    for position in (5, 1, 3, 0):
        journal.add(*divmod(position, 4), ended[position])
    assert journal.read(0, attempts[:4]) == {position: ended[position] for position in (1, 3, 0)}
    assert journal.read(1, attempts[4:]) == {1: ended[5]}
    others = [(cast.task(9), 0)] * 6
    with pytest.raises(UserError, match="its dialogues belong to other tasks or attempts"):
        journal.read(0, others)


class Stopped(BaseException):
    """A kill: no Exception, so nothing catches it."""


def test_finished_dialogues_survive_and_are_not_repeated(context: RolloutContext, cast: Any, tmp_path: Path) -> None:
    attempts = cast.attempts(12)
    collect(attempts, context, tmp_path / "complete")
    finished = stops = 0
    for stop_at in (3, 2, 7, 1, 4):
        if finished + stop_at + 2 >= len(attempts):  # several dialogues may end together: too few are left to stop at
            break
        stops += 1
        count = 0

        def stop(more: int, limit: int = finished + stop_at) -> None:
            nonlocal count
            count += more
            if count > limit:
                raise Stopped

        with pytest.raises(Stopped):
            collect(attempts, context, tmp_path / "broken", progress=stop)
        store, journal = TrajectoryStore(tmp_path / "broken"), tmp_path / "broken" / ".journal"
        unfinished = [path for path in journal.glob("*.jsonl") if int(path.stem) not in store.shards()]
        kept = len(store) + sum(len(path.read_text().splitlines()) for path in unfinished)
        assert kept >= finished + stop_at - 2  # lost ones (two attempts at the task of a mute user) are in no journal
        finished = kept
        for path in journal.glob("*.jsonl"):
            with path.open("ab") as target:
                target.write(b'{"at": 1, "trajec')  # a line that a kill broke off
    assert stops >= 2
    calls = len(context.engine.engine.batches)  # type: ignore[union-attr]
    collect(attempts, context, tmp_path / "broken")
    assert contents(tmp_path / "broken") == contents(tmp_path / "complete")
    repeated = len(context.engine.engine.batches) - calls  # type: ignore[union-attr]
    assert repeated <= 2 * (24 - finished)


def test_too_many_lost_stop_the_run_and_get_another_chance(context: RolloutContext, cast: Any, tmp_path: Path) -> None:
    attempts = cast.attempts(12)
    healthy = replace(context, simulator=cast.user())
    collect(attempts, healthy, tmp_path / "complete")
    broken = cast.slow_engine(cast.engine("Why?", "I WANT TO ANSWER:aab"), 2, [cast.task(8).id, cast.task(9).id])
    failing = replace(healthy, engine=broken)
    with pytest.raises(UserError) as caught:
        collect(attempts, failing, tmp_path / "again", lost_share=0.1, batch=1)
    fault = str(caught.value)
    assert fault.startswith(
        "3 of 24 dialogues are lost, more than the allowed share of 0.1 (3 x the server is on fire)"
    )
    assert "\n" not in fault
    calls = len(broken.engine.batches)
    assert calls == 2 * 16  # what is finished: the first eight tasks
    healed = replace(healthy, engine=cast.slow_engine(broken.engine, 3))
    collect(attempts, healed, tmp_path / "again", lost_share=0.1)
    assert len(broken.engine.batches) - calls == 2 * 8  # and no more than the rest now
    assert contents(tmp_path / "again") == contents(tmp_path / "complete")
    # Within the share they are recorded with their cause, unscored.
    store = collect(attempts, failing, tmp_path / "some", lost_share=0.2)
    lost = [(attempt.error, attempt.reward, attempt.answer) for attempt in store.read() if attempt.outcome == "lost"]
    assert lost == [("the server is on fire", None, None)] * 4
    # A stricter share opens those shards again.
    collect(attempts, healed, tmp_path / "some", lost_share=0.1)
    assert contents(tmp_path / "some") == contents(tmp_path / "complete")


def remote_context(cast: Any, agent: OpenAIEngine | VllmEngine, speaker: OpenAIEngine) -> RolloutContext:
    user = LlmSimulator(EngineSpeaker(speaker, Sampling(64, 0.0)), Backend())
    return cast.context(agent, AGENT, user, agent.chat if isinstance(agent, VllmEngine) else None)


def says(body: dict[str, Any]) -> str:
    """The user's model: never a word of code, a function of what it reads."""
    return f"It is {len(body['messages'][0]['content'])}."


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["openai", "vllm"])
def test_faults_of_every_kind_change_nothing(
    fake_server: Any, chat: ChatFormat, cast: Any, tmp_path: Path, kind: str
) -> None:
    """10 % of the requests to agent and user go wrong, in every way there is."""
    attempts = cast.attempts(60)
    adapter = tmp_path / "policy"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 8}')
    (adapter / "adapter_model.safetensors").write_bytes(b"weights")
    shards: dict[float, dict[str, bytes]] = {}
    for share in (0.0, 0.1):
        with (
            fake_server(tokenizer=chat.tokenizer, share=share) as server,
            fake_server(reply=says, share=share) as users,
        ):
            limits = {"timeout_seconds": 8.0 if share else 60.0, "backoff_seconds": 0.01}  # some requests are stuck
            at = ServerSettings(urls=server.url, concurrency=32, **limits)
            agent: OpenAIEngine | VllmEngine
            if kind == "openai":
                agent = OpenAIEngine(at.model_copy(update={"model": "a-model"}))
            else:
                agent = VllmEngine(at, chat.tokenizer, adapter)
            speaker = OpenAIEngine(at.model_copy(update={"urls": users.url, "model": "a-user"}))
            store = collect(attempts, remote_context(cast, agent, speaker), tmp_path / str(share), batch=32, shard=50)
            usage = agent.usage()
            agent.close()
            speaker.close()
        dialogues = list(store.read())
        assert [(dialogue.task, dialogue.attempt) for dialogue in dialogues] == attempts
        assert {dialogue.outcome for dialogue in dialogues} <= {"answered", "max_turns_reached"}
        assert usage.failures == 0
        assert (usage.retries > 10) == (share > 0)
        shards[share] = contents(store.folder)
    bad = {fault for fault in server.seen if server.seen[fault] and fault not in ("", "load_lora_adapter")}
    assert len(bad) >= 9, bad
    assert shards[0.1] == shards[0.0]


@pytest.mark.slow
def test_kill_9_at_twenty_random_moments(fake_server: Any, tmp_path: Path) -> None:
    """And once undisturbed: the same bytes, no dialogue twice."""
    kills, chance = 20, random.Random(os.getpid())
    with fake_server(latency=lambda body: 0.02) as server:
        first = subprocess.run(command(server.url, tmp_path / "complete"), check=True, capture_output=True, text=True)
        assert first.stdout.split() == ["go", "done"]
        undisturbed = server.requests
        server.bodies.clear()
        in_flight = 0
        while kills:
            process = subprocess.Popen(command(server.url, tmp_path / "broken"), stdout=subprocess.PIPE, text=True)
            assert process.stdout is not None and process.stdout.readline() == "go\n"
            # Only requests tell how far it is; the moment within them is left to chance.
            target = server.requests + chance.randrange(1, max(undisturbed // (kills + 2), 3))
            deadline = time.monotonic() + 120
            while server.requests < target and process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.001)
            time.sleep(chance.random() * 0.03)
            assert process.poll() is None, "it ended before it was killed"
            process.kill()
            process.wait()
            process.stdout.close()
            in_flight += 8
            kills -= 1
        done = subprocess.run(command(server.url, tmp_path / "broken"), check=True, capture_output=True, text=True)
        assert done.stdout.split() == ["go", "done"]
    assert contents(tmp_path / "broken") == contents(tmp_path / "complete")
    assert not (tmp_path / "broken" / ".journal").exists()
    # A kill costs the turns so far of the (at most 8) dialogues under way, and no finished one.
    assert server.requests <= undisturbed + in_flight * AGENT.max_turns


def command(url: str, folder: Path) -> list[str]:
    return [sys.executable, str(Path(__file__).with_name("killed.py")), "far", url, str(folder)]
