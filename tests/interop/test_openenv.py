"""Domains behind real OpenEnv servers on localhost."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("openenv", reason="openenv is not installed (extra `openenv`)")

import httpx
from openenv.core import GenericEnvClient

import sweetrl
from sweetrl.backend.suite.agents import OracleAgent
from sweetrl.interop.openenv import DialogueAction, DialogueClient, DialogueEnvironment, create_app
from sweetrl.interop.worlds import World
from sweetrl.types import Message, Task, Trajectory
from tests.interop.shared import FORMS, Agent, by_sweetrl, clerk
from tests.signals import answering, healthy, until


def through(client: Any, domain: sweetrl.Domain, agent: Agent, split: str, index: int, seed: int) -> tuple[Any, Any]:
    """The dialogue through a client: (messages, last observation)."""
    task = World(domain).task(index, split)
    seen = client.reset(split=split, index=index, seed=seed).observation
    messages = [Message("user", seen.message)]
    assert seen.system == domain.system_prompt(domain.settings.agent.prompt) and seen.reward is None
    while not seen.done:
        messages.append(Message("assistant", agent(task, tuple(messages))))
        seen = client.step(DialogueAction(message=messages[-1].content)).observation
        if not seen.done:
            assert seen.reward == 0.0 and seen.outcome is None
            messages.append(Message("user", seen.message))
    return tuple(messages), seen


@pytest.fixture(scope="module")
def forms() -> Iterator[tuple[str, sweetrl.Domain]]:
    domain = sweetrl.domain(FORMS, tasks={"train": 30, "test": 12})
    with answering(create_app(domain)) as url:
        yield url, domain


@pytest.mark.parametrize("index", [0, 5])
def test_a_dialogue_is_the_same_through_the_server(forms: tuple[str, sweetrl.Domain], index: int) -> None:
    url, domain = forms
    with DialogueClient(url).sync() as client:
        messages, last = through(client, domain, clerk, "test", index, 3)
        state = client.state()
    expected = by_sweetrl(domain, World(domain).task(index, "test"), 3, clerk)
    assert messages == expected.messages
    assert (last.reward, last.parts, last.outcome) == (expected.reward, expected.parts, "answered")
    assert last.success == expected.success
    assert (state.task_id, state.split, state.index, state.seed) == (expected.task.id, "test", index, 3)
    assert (state.step_count, bool(state.episode_id)) == (3, True)


def test_the_sandbox_scores_programs_and_a_wrong_one_gets_nothing() -> None:
    domain = sweetrl.domain("backend", tasks={"train": 3, "test": 3})
    oracle = OracleAgent()
    with answering(create_app(domain)) as url, DialogueClient(url).sync() as client:
        messages, last = through(client, domain, oracle.act, "train", 1, 7)
        expected = by_sweetrl(domain, World(domain).task(1, "train"), 7, oracle.act)
        assert messages == expected.messages and len(messages) > 3
        assert last.reward == expected.reward == 1.0 and last.success
        _, wrong = through(client, domain, lambda *_: "I WANT TO ANSWER:\nnothing", "train", 1, 7)
        assert (wrong.reward, wrong.success, wrong.outcome) == (0.0, False, "answered")


def test_sessions_do_not_see_each_other(forms: tuple[str, sweetrl.Domain]) -> None:
    url, domain = forms

    def play(index: int) -> tuple[Any, ...]:
        with DialogueClient(url).sync() as client:
            messages, last = through(client, domain, clerk, "test", index, index)
            return messages, last.reward

    with ThreadPoolExecutor(8) as pool:
        dialogues = list(pool.map(play, range(12)))
    tasks = World(domain).tasks("test")
    expected = [by_sweetrl(domain, tasks[index], index, clerk) for index in range(12)]
    assert dialogues == [(trajectory.messages, trajectory.reward) for trajectory in expected]


def test_the_task_api_lists_tasks_and_hides_what_is_hidden(forms: tuple[str, sweetrl.Domain]) -> None:
    url, domain = forms
    tasks = World(domain).tasks("test")
    with httpx.Client(base_url=url, trust_env=False) as web:
        assert web.get("/list_environments").json() == ["forms"]
        assert [split["name"] for split in web.get("/forms/splits").json()] == ["train", "test"]
        assert web.post("/forms/num_tasks", json={"split": "test"}).json() == {"num_tasks": 12}
        assert web.post("/forms/num_tasks", json={"split": "train"}).json() == {"num_tasks": 30}
        shown = {"id": tasks[3].id, "split": "test", "index": 3, "request": tasks[3].problem_description}
        assert web.post("/forms/task", json={"split": "test", "index": 3}).json() == {"task": shown}
        listed = web.post("/forms/tasks", json={"split": "test"})
        assert [row["id"] for row in listed.json()["tasks"]] == [row.id for row in tasks]
        some = web.post("/forms/task_range", json={"split": "test", "start": -3, "stop": -1}).json()["tasks"]
        assert [row["index"] for row in some] == [9, 10]
        assert web.post("/forms/task", json={"split": "test", "index": 12}).status_code == 400
        wrong = web.post("/forms/num_tasks", json={"split": "validation"})
        assert wrong.status_code == 400 and "split: `validation` is not known" in wrong.json()["detail"]
        pages = ("/schema", "/metadata", "/state", "/openapi.json")
        everything = [listed.text, *(web.get(path).text for path in pages)]
        assert "Find out what the form needs" in web.get("/metadata").json()["description"]
    with GenericEnvClient(url).sync() as client:  # what is sent, whatever our client makes of it
        everything += [json.dumps(vars(client.reset(split="test", index=3, seed=1))), json.dumps(client.state())]
        everything.append(json.dumps(vars(client.step({"message": "Which day?"}))))
    for text in everything:
        assert not any(task.ground_truth in text or json.dumps(task.ground_truth)[1:-1] in text for task in tasks)


def test_a_seed_draws_a_task_and_repeats_the_episode(forms: tuple[str, sweetrl.Domain]) -> None:
    url, _ = forms
    with DialogueClient(url).sync() as client:
        states = []
        for seed in (1, 1, 2, 3, None):
            client.reset(seed=seed, episode_id="mine")
            states.append(client.state())
        assert states[0] == states[1]
        assert len({state.index for state in states[:4]}) == 3
        assert [state.split for state in states] == ["train"] * 5 and states[0].episode_id == "mine"
        again = client.reset(seed=states[4].seed).observation
        assert client.state().index == states[4].index and not again.done


WRONG: tuple[tuple[dict[str, Any], str], ...] = (
    ({"split": "dev"}, "split: `dev` is not known; take train or test"),
    ({"split": "test", "index": 12}, "forms: there is no test task 12; there are 12, counted from 0"),
    ({"index": "first"}, "there is no train task first"),
    ({"seed": -1}, "reset: `seed` is a whole number"),
    ({"task": 3}, "reset: `task` is not known; give split, index, seed and episode_id"),
)


def test_a_wrong_reset_is_answered_with_a_sentence(forms: tuple[str, sweetrl.Domain]) -> None:
    with DialogueClient(forms[0]).sync() as client:
        for arguments, sentence in WRONG:
            with pytest.raises(RuntimeError, match=sentence):
                client.reset(**arguments)
        assert client.reset(split="test", index=0).observation.message  # the session goes on


def test_steps_before_the_beginning_and_after_the_end(forms: tuple[str, sweetrl.Domain]) -> None:
    with DialogueClient(forms[0]).sync() as client:
        with pytest.raises(RuntimeError, match="no dialogue has begun in this session; reset first"):
            client.step(DialogueAction(message="Hello?"))
        client.reset(split="test", index=0)
        assert client.step(DialogueAction(message="I WANT TO ANSWER:\n")).done
        with pytest.raises(RuntimeError, match="has ended; reset for another"):
            client.step(DialogueAction(message="Hello?"))
    with httpx.Client(base_url=forms[0], trust_env=False) as web:  # HTTP has no sessions
        assert web.post("/reset", json={"split": "test", "index": 0}).json()["observation"]["message"]
        refused = web.post("/step", json={"action": {"message": "Hello?"}})
        assert refused.status_code == 400 and "over a WebSocket" in refused.json()["detail"]


def test_so_many_sessions_and_no_more() -> None:
    with answering(create_app(FORMS, sessions=1, tasks={"train": 2})) as url, DialogueClient(url).sync() as first:
        first.reset(seed=1)
        with pytest.raises(RuntimeError, match="CAPACITY_REACHED"), DialogueClient(url).sync() as second:
            second.reset(seed=1)


def test_a_client_leaves_sessions_to_others() -> None:
    from sweetrl.interop.openenv import ClientSessions

    waiting, served, sent = asyncio.Event(), [], []

    async def application(scope: Any, receive: Any, send: Any) -> None:
        served.append(scope["client"][0])
        await waiting.wait()

    async def send(message: Any) -> None:
        sent.append(message)

    async def connect() -> Any:
        return {"type": "websocket.connect"}

    async def ask(*addresses: str) -> None:
        app = ClientSessions(application, most=2)
        scopes = [{"type": "websocket", "client": (address, 9)} for address in addresses]
        tasks = [asyncio.create_task(app(scope, connect, send)) for scope in scopes]
        await asyncio.sleep(0)
        await tasks[2]
        waiting.set()
        await asyncio.gather(*tasks)
        await app(scopes[0], connect, send)  # those that have ended count no more

    asyncio.run(ask("one", "one", "one", "other", "other"))
    assert served == ["one", "one", "other", "other", "one"]
    assert "CAPACITY_REACHED" in sent[1]["text"]
    assert [message["type"] for message in sent][::2] == ["websocket.accept", "websocket.close"]


class Grumpy(sweetrl.Domain):
    """A user who cannot reply."""

    prompt = "Ask."

    def tasks(self, split: Any, count: int, seed: int, difficulty: int) -> Iterator[Task]:
        yield Task("only", "Say something.", "")

    def reply(self, task: Task, messages: Any, seed: int) -> str:
        from sweetrl.errors import SimulatorError

        raise SimulatorError("the line is dead")

    def reward(self, task: Task, dialogue: Trajectory) -> float:
        return 1.0


def test_a_lost_dialogue_has_no_reward() -> None:
    environment = DialogueEnvironment(World(Grumpy()))
    environment.reset(seed=1)
    last = environment.step(DialogueAction(message="Hello?"))
    assert (last.done, last.reward, last.success, last.outcome) == (True, None, None, "lost")
    assert last.error == "the line is dead"


def test_the_domain_opens_once_and_closes_with_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []

    class Watched(Grumpy):
        @contextmanager
        def open(self) -> Iterator[None]:
            events.append("open")
            yield
            events.append("close")

    with answering(create_app(Watched())) as url:
        for _ in range(3):
            with DialogueClient(url).sync() as client:
                client.reset(seed=1)
        assert events == ["open"]
    assert events == ["open", "close"]


def test_the_command_serves_a_domain_of_a_parameter_file(tmp_path: Path) -> None:
    (tmp_path / "params.yaml").write_text(f"suite: {FORMS}\nseed: 9\ntasks: {{train: 4, test: 3}}\n")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    command = [sys.executable, "-m", "sweetrl.interop.openenv", "--params", str(tmp_path / "params.yaml")]
    root = Path(__file__).resolve().parents[2]
    server = subprocess.Popen([*command, "--port", str(port), "--sessions", "2"], cwd=root, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        until(lambda: healthy(url) or server.poll() is not None, "the server did not start", 240)
        assert server.poll() is None
        with DialogueClient(url).sync() as client:
            first = client.reset(split="test", index=2).observation
        assert first.message == World(sweetrl.domain(FORMS, seed=9)).task(2, "test", 3).problem_description
        foreign = {"Origin": "https://evil.example"}
        assert httpx.post(f"{url}/reset", json={}, headers=foreign, trust_env=False).status_code == 403
        upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
        upgrade["Sec-WebSocket-Key"] = "dGhlIHNhbXBsZSBub25jZQ=="
        assert httpx.get(f"{url}/ws", headers=upgrade | foreign, trust_env=False).status_code == 403
    finally:
        server.terminate()
        assert server.wait(120) == -15 or server.returncode == 0
