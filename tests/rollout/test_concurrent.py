"""The asynchronous loop: the same dialogues whatever the timing, the faults and the kills; what is lost has a cause."""

from __future__ import annotations

import asyncio
import os
import pty
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sweetrl.engines.retry import RetryPolicy
from sweetrl.rollout.concurrent import rollout_concurrent

from sweetrl.colbench.simulators import LlmSimulator
from sweetrl.colbench.store import TrajectoryStore
from sweetrl.engines.chat import ChatFormat
from sweetrl.engines.openai import OpenAIEngine
from sweetrl.engines.remote import Access
from sweetrl.engines.vllm import VllmEngine
from sweetrl.errors import EngineError, UserError
from sweetrl.rollout.context import RolloutContext
from sweetrl.rollout.run import rollout, rollout_scored
from sweetrl.rollout.users import EngineSpeaker
from sweetrl.settings import AgentSettings
from sweetrl.types import Completion, Message, Prompt, Sampling, Task, Trajectory, Usage

AGENT = AgentSettings(rounds=5, max_new_tokens=64)
PATIENCE = RetryPolicy(timeout=60.0, attempts=12, budget=300.0, backoff=0.01)


class Slow:
    """An AsyncEngine around a scripted one: waits at random, refuses prompts about tasks in `broken`."""

    speaks_tokens = True
    name = "slow"

    def __init__(self, engine: Any, chance: random.Random, broken: Sequence[str] = ()) -> None:
        self.engine, self.chance, self.broken = engine, chance, broken
        self.active = self.most = 0

    async def ask(self, prompt: Prompt, sampling: Sampling) -> list[Completion]:
        self.active += 1
        self.most = max(self.most, self.active)
        await asyncio.sleep(self.chance.random() * 0.004)
        self.active -= 1
        if prompt.group in self.broken:
            raise EngineError("the server is on fire")
        return list(self.engine.sample([prompt], sampling)[0])

    def usage(self) -> Usage:
        return Usage()

    def close(self) -> None: ...


class SlowPerson:
    """Answers like `person`, after a while."""

    name = "counting"

    def __init__(self, person: Any, chance: random.Random) -> None:
        self.person, self.chance = person, chance

    def reply(self, task: Task, messages: Sequence[Message], seed: int) -> str:
        raise AssertionError("the loop awaits answers")

    async def answer(self, task: Task, messages: Sequence[Message], seed: int) -> str:
        await asyncio.sleep(self.chance.random() * 0.004)
        return str(self.person.reply(task, messages, seed))


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}


def attempts_at(cast: Any, tasks: int, k: int = 2) -> list[tuple[Task, int]]:
    return [(cast.task(number), attempt) for number in range(tasks) for attempt in range(k)]


@pytest.mark.parametrize("dialogues", [1, 5, 64])
def test_the_same_as_in_lock_step_whatever_the_timing(chat: ChatFormat, cast: Any, dialogues: int) -> None:
    attempts = attempts_at(cast, 10)
    engine = cast.engine("Why?", "thought OUTPUT: How?", "I WANT TO ANSWER: aa", cut=[1])
    expected = rollout(attempts, engine, chat, cast.person(mute=[4]), AGENT, seed=5, policy_name="base")
    slow = Slow(engine, random.Random(dialogues))
    person = SlowPerson(cast.person(mute=[4]), random.Random(0))
    found: dict[int, Trajectory] = {}
    numbered = [(at, *one) for at, one in enumerate(attempts)]
    rollout_concurrent(
        numbered, slow, chat, person, AGENT, found.__setitem__, seed=5, policy_name="base", dialogues=dialogues
    )
    assert [found[at] for at in range(len(attempts))] == expected
    assert 1 <= slow.most <= dialogues
    assert dialogues == 1 or list(found) != sorted(found)  # they ended in another order
    in_threads: dict[int, Trajectory] = {}
    rollout_concurrent(
        numbered, slow, chat, cast.person(mute=[4]), AGENT, in_threads.__setitem__, seed=5, policy_name="base"
    )
    assert in_threads == found


def test_a_person_who_takes_time_answers_a_lock_step_round_at_once(chat: ChatFormat, cast: Any) -> None:
    attempts = attempts_at(cast, 5)
    engine = cast.engine("Why?", "I WANT TO ANSWER: aa")
    person = SlowPerson(cast.person(mute=[2]), random.Random(1))
    assert rollout(attempts, engine, chat, person, AGENT) == rollout(attempts, engine, chat, cast.person([2]), AGENT)


def test_what_the_listener_raises_ends_the_rollout(chat: ChatFormat, cast: Any) -> None:
    def full(position: int, one: Trajectory) -> None:
        raise UserError("no space left on the disk")

    slow = Slow(cast.engine("I WANT TO ANSWER: aa"), random.Random(1))
    with pytest.raises(UserError, match="no space"):
        rollout_concurrent([(0, cast.task(0), 0)] * 50, slow, chat, cast.person(), AGENT, full, dialogues=4)
    assert slow.most <= 4


def collect(attempts: list[Any], actors: RolloutContext, folder: Path, **changes: Any) -> TrajectoryStore:
    settings = {"seed": 1, "policy_name": "base", "batch": 6, "shard": 4} | changes
    return rollout_scored(attempts, actors, TrajectoryStore(folder), **settings)


@pytest.fixture
def actors(chat: ChatFormat, cast: Any) -> RolloutContext:
    engine = Slow(cast.engine("Why?", "I WANT TO ANSWER:aab"), random.Random(1))
    return RolloutContext(engine, chat, cast.person(mute=[3]), cast.scorer(), AGENT)


def test_shards_equal_those_of_lock_step(actors: RolloutContext, cast: Any, tmp_path: Path) -> None:
    attempts = attempts_at(cast, 7)
    done: list[int] = []
    collect(attempts, actors, tmp_path / "slow", progress=done.append)
    collect(attempts, replace(actors, engine=actors.engine.engine), tmp_path / "steps")  # type: ignore[attr-defined]
    assert sum(done) == 14
    assert contents(tmp_path / "slow") == contents(tmp_path / "steps")
    assert len(contents(tmp_path / "slow")) == 4
    assert not (tmp_path / "slow" / ".journal").exists()


class Stopped(BaseException):
    """Not an error: somebody pulls the plug."""


def test_finished_dialogues_survive_and_are_not_repeated(actors: RolloutContext, cast: Any, tmp_path: Path) -> None:
    attempts = attempts_at(cast, 12)
    collect(attempts, actors, tmp_path / "whole")
    finished = pulled = 0
    for stop_at in (3, 2, 7, 1, 4):
        if finished + stop_at + 2 >= len(attempts):  # several dialogues may end together: too few are left to stop at
            break
        pulled += 1
        count = 0

        def plug(more: int, limit: int = finished + stop_at) -> None:
            nonlocal count
            count += more
            if count > limit:
                raise Stopped

        with pytest.raises(Stopped):
            collect(attempts, actors, tmp_path / "broken", progress=plug)
        kept = TrajectoryStore(tmp_path / "broken").count()
        journal = tmp_path / "broken" / ".journal"
        kept += sum(len(path.read_text().splitlines()) for path in journal.glob("*.jsonl"))
        assert kept >= finished + stop_at - 2  # lost ones are in no journal: two attempts at the mute person's task
        finished = kept
        for path in journal.glob("*.jsonl"):
            with path.open("ab") as target:
                target.write(b'{"position": 1, "trajec')  # a line that a kill broke off
    assert pulled >= 2
    asked = len(actors.engine.engine.asked)  # type: ignore[attr-defined]
    collect(attempts, actors, tmp_path / "broken")
    assert contents(tmp_path / "broken") == contents(tmp_path / "whole")
    repeated = len(actors.engine.engine.asked) - asked  # type: ignore[attr-defined]
    assert repeated <= 2 * (24 - finished)


def test_too_many_lost_stop_the_run_and_get_another_chance(
    actors: RolloutContext, cast: Any, chat: ChatFormat, tmp_path: Path
) -> None:
    attempts = attempts_at(cast, 12)
    whole = replace(actors, simulator=cast.person())
    collect(attempts, whole, tmp_path / "whole")
    broken = Slow(cast.engine("Why?", "I WANT TO ANSWER:aab"), random.Random(2), [cast.task(8).id, cast.task(9).id])
    failing = replace(whole, engine=broken)
    with pytest.raises(UserError) as caught:
        collect(attempts, failing, tmp_path / "again", lost_share=0.1, batch=1)
    said = str(caught.value)
    assert said.startswith("3 of 24 dialogues are lost, more than the allowed share of 0.1 (3 x the server is on fire)")
    assert "\n" not in said
    asked = len(broken.engine.asked)
    assert asked == 2 * 16  # what is finished: the first eight tasks
    collect(attempts, replace(whole, engine=Slow(broken.engine, random.Random(3))), tmp_path / "again", lost_share=0.1)
    assert len(broken.engine.asked) - asked == 2 * 8  # and no more than the rest now
    assert contents(tmp_path / "again") == contents(tmp_path / "whole")
    # Within the share they are recorded with their cause, unscored.
    store = collect(attempts, failing, tmp_path / "some", lost_share=0.2)
    lost = [one for one in store.read() if one.outcome == "lost"]
    assert {(one.error, one.reward, one.answer) for one in lost} == {("the server is on fire", None, None)}
    assert len(lost) == 4
    # A stricter share opens those shards again.
    healed = replace(whole, engine=Slow(broken.engine, random.Random(3)))
    collect(attempts, healed, tmp_path / "some", lost_share=0.1)
    assert contents(tmp_path / "some") == contents(tmp_path / "whole")


def remote_actors(cast: Any, agent: OpenAIEngine | VllmEngine, speaker: OpenAIEngine) -> RolloutContext:
    person = LlmSimulator(EngineSpeaker(speaker, Sampling(64, 0.0)))
    chat = agent.chat if isinstance(agent, VllmEngine) else None
    return RolloutContext(agent, chat, person, cast.scorer(), AGENT)


def says(body: dict[str, Any]) -> str:
    """The person's model: never a word of code, a function of what it reads."""
    return f"It is {len(body['messages'][0]['content'])}."


@pytest.mark.parametrize("kind", ["openai", "vllm"])
def test_faults_of_every_kind_change_nothing(
    fake_server: Any, chat: ChatFormat, cast: Any, tmp_path: Path, kind: str
) -> None:
    """10 % of the requests to agent and person go wrong, in every way there is."""
    attempts = attempts_at(cast, 60)
    adapter = tmp_path / "policy"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text('{"r": 8}')
    found: dict[float, dict[str, bytes]] = {}
    for share in (0.0, 0.1):
        with (
            fake_server(tokenizer=chat.tokenizer, share=share) as server,
            fake_server(reply=says, share=share) as people,
        ):
            retry_policy = replace(PATIENCE, timeout=8.0 if share else 60.0)  # some requests are stuck
            access = Access((server.url,), "", concurrency=32, retry_policy=retry_policy)
            agent: OpenAIEngine | VllmEngine
            if kind == "openai":
                agent = OpenAIEngine(replace(access, model="a-model"))
            else:
                agent = VllmEngine(access, chat.tokenizer, adapter)
            speaker = OpenAIEngine(replace(access, urls=(people.url,), model="a-person"))
            store = collect(attempts, remote_actors(cast, agent, speaker), tmp_path / str(share), batch=32, shard=50)
            usage = agent.usage()
            agent.close()
            speaker.close()
        everyone = list(store.read())
        assert [(one.task, one.attempt) for one in everyone] == attempts
        assert {one.outcome for one in everyone} <= {"answered", "max_turns_reached"}
        assert usage.failures == 0
        assert (usage.retries > 10) == (share > 0)
        found[share] = contents(store.folder)
    bad = {fault for fault in server.seen if server.seen[fault] and fault not in ("", "load_lora_adapter")}
    assert len(bad) >= 9, bad
    assert found[0.1] == found[0.0]


RUN = """
import sys
from pathlib import Path
from sweetrl.domains.backend.rewards import Score
from sweetrl.colbench.store import TrajectoryStore
from sweetrl.types import Task
from sweetrl.engines.openai import OpenAIEngine
from sweetrl.engines.remote import Access
from sweetrl.rollout.scored import RolloutContext, rollout_scored
from sweetrl.settings import AgentSettings

class Person:
    name, instant = "quiet", True
    def reply(self, task, messages, seed):
        return f"It is {seed % 10}."

class Scorer:
    def score(self, items):
        return [Score(0.5, (), "fixed", "none") for _ in items]

url, folder = sys.argv[1:]
engine = OpenAIEngine(Access((url,), "a-model", concurrency=8))
actors = RolloutContext(engine, None, Person(), Scorer(), AgentSettings(rounds=5, max_new_tokens=64))
tasks = [Task(f"t-{n}", f"I want function {n}.", "def f(): ...") for n in range(60)]
attempts = [(task, k) for task in tasks for k in range(2)]
print("go", flush=True)
rollout_scored(attempts, actors, TrajectoryStore(Path(folder)), seed=3, policy_name="far", batch=8, shard=25)
print("done", flush=True)
"""


def kill_often(fake_server: Any, tmp_path: Path, kills: int, chance: random.Random) -> None:
    """Collect with `kills` times kill -9 at random moments, and once undisturbed: the same bytes, no dialogue twice."""
    with fake_server(latency=lambda body: 0.02) as server:
        whole = subprocess.run(command(server.url, tmp_path / "whole"), check=True, capture_output=True, text=True)
        assert whole.stdout.split() == ["go", "done"]
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
    assert contents(tmp_path / "broken") == contents(tmp_path / "whole")
    assert not (tmp_path / "broken" / ".journal").exists()
    # A kill costs the turns so far of the (at most 8) dialogues under way, and no finished one.
    assert server.requests <= undisturbed + in_flight * AGENT.rounds


def command(url: str, folder: Path) -> list[str]:
    return [sys.executable, "-c", RUN, url, str(folder)]


def test_kill_9_at_random_moments(fake_server: Any, tmp_path: Path) -> None:
    kill_often(fake_server, tmp_path, 3, random.Random(5))


AT_THE_TERMINAL = """
import signal
import sys
from sweetrl.colbench.simulators import ConsoleUser
from sweetrl.types import Task
from sweetrl.engines.openai import OpenAIEngine
from sweetrl.engines.remote import Access
from sweetrl.rollout.concurrent import rollout_concurrent
from sweetrl.settings import AgentSettings

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job starts with it ignored
engine = OpenAIEngine(Access((sys.argv[1],), "a-model"))
attempts = [(0, Task("t-0", "I want a function.", "def f(): ..."), 0)]
try:
    rollout_concurrent(attempts, engine, None, ConsoleUser(), AgentSettings(), lambda at, one: print(one.outcome))
except KeyboardInterrupt:
    engine.close()
    sys.exit(130)
"""


def test_ctrl_c_ends_a_dialogue_with_you(fake_server: Any) -> None:
    """Not only after one more line is typed."""
    terminal, inside = pty.openpty()
    with fake_server() as server:
        words = [sys.executable, "-c", AT_THE_TERMINAL, server.url]
        process = subprocess.Popen(words, stdin=inside, stdout=inside, stderr=inside)
        seen = b""
        while b"you> " not in seen:
            seen += os.read(terminal, 4096)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    os.close(terminal)
    os.close(inside)


@pytest.mark.slow
def test_kill_9_at_twenty_random_moments(fake_server: Any, tmp_path: Path) -> None:
    kill_often(fake_server, tmp_path, 20, random.Random(os.getpid()))
