"""The endpoint before a vLLM server: many requests at a time, changes of version, and a server that it starts."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from transformers import AutoTokenizer

from sweetrl.config.settings import EngineSettings, ModelSettings, Settings
from sweetrl.errors import UserError
from sweetrl.serve.alias import Follower
from sweetrl.serve.source import Handed
from sweetrl.stages.registration import register_policy
from sweetrl.tracking.chat_agent import AgentConfig
from sweetrl.tracking.registry import Registry
from tests.serve.made import MODEL, write_adapter, write_results
from tests.serve.serving import REQUEST, running
from tests.signals import until


@pytest.fixture
def vllm(project: Path, fake_server: Any) -> Any:
    """FakeServer as a vLLM server of the project's base."""
    return partial(fake_server, tokenizer=AutoTokenizer.from_pretrained(project / "models/base"))


def test_behind_a_vllm_server_requests_are_not_held_up_by_each_other(settings: Settings, vllm: Any) -> None:
    with vllm(latency=lambda body: 0.5) as server:
        engine = EngineSettings(kind="vllm", urls=server.url, concurrency=8)
        with running("models/policy", settings, engine=engine) as agent, ThreadPoolExecutor(12) as pool:
            (loaded,) = server.adapters  # before the first request
            bodies = [{"model": "policy", "messages": REQUEST, "temperature": 1, "seed": n} for n in range(12)]
            answers = list(pool.map(agent.post, bodies))
            assert [answer.status_code for answer in answers] == [200] * 12
            assert 2 <= server.most_active <= 8
            assert {body["model"] for body in server.bodies} == {loaded}
        until(lambda: server.adapters == {})  # unloaded at the end


def test_what_a_client_that_has_gone_asked_for_is_not_computed_to_its_end(settings: Settings, vllm: Any) -> None:
    slow = [60.0]
    with vllm(latency=lambda body: slow[0]) as server:
        engine = EngineSettings(kind="vllm", urls=server.url, concurrency=1)
        with running("models/policy", settings, engine=engine) as agent:
            body = {"model": "policy", "messages": REQUEST}
            address, text = agent.url.removeprefix("http://"), json.dumps(body)
            with socket.create_connection(address.split(":")) as client:
                head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {address}\r\nContent-Length: {len(text)}\r\n\r\n"
                client.sendall((head + text).encode())
                until(lambda: server.requests == 1)
            until(lambda: server.gone == 1, seconds=30)
            slow[0] = 0.0  # and its place is free
            assert agent.post(body).status_code == 200


def test_a_dialogue_that_a_server_has_no_room_for_is_a_sentence_without_its_address(
    settings: Settings, vllm: Any
) -> None:
    with vllm() as server:
        engine = EngineSettings(kind="vllm", urls=server.url)
        with running("models/policy", settings, engine=engine) as agent:
            server.context = 10  # less than the server has said
            response = agent.post({"model": "policy", "messages": REQUEST})
            assert response.status_code == 400
            assert response.json()["error"]["code"] == "context_length_exceeded"
            assert server.url.removeprefix("http://") not in response.text


def test_health_and_metrics_are_the_servers(settings: Settings, vllm: Any) -> None:
    with (
        vllm() as server,
        running("models/policy", settings, engine=EngineSettings(kind="vllm", urls=server.url)) as agent,
    ):

        def status(page: str) -> int:
            return agent.client.get(f"{agent.url}/{page}").status_code

        assert status("health") == status("metrics") == 200
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(agent.endpoint.follower, "ended", lambda: True)
            assert status("health") == 503
        agent.endpoint.follower.engine = EngineSettings(kind="vllm", urls="http://127.0.0.1:1/v1")
        assert status("health") == status("metrics") == 503


def test_a_server_of_our_own_keeps_its_base_when_versions_change(
    project: Path, settings: Settings, vllm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = Registry(settings.tracking, project)
    versions = []
    for seed in (11, 12):
        write_adapter(project, seed)
        write_results(project, seed / 20)
        versions.append(register_policy(settings, project).version)
    registry.promote(versions[0], "the first")
    started: list[Path] = []
    with vllm() as server:

        @contextlib.contextmanager
        def watched(engine: EngineSettings, model: ModelSettings, *more: Any) -> Iterator[Any]:
            started.append(Path(model.base))
            yield engine.model_copy(update={"urls": server.url, "model": "base"}), lambda: False
            assert (started[0] / "config.json").exists(), "the server ends before its base"

        monkeypatch.setattr("sweetrl.serve.alias.watched", watched)
        with running(f"{MODEL}@champion", settings, engine=EngineSettings(kind="vllm")) as agent:
            registry.promote(versions[1], "better")
            until(lambda: agent.version == versions[1] and len(server.adapters) == 1)
            assert project not in started[0].parents, "the base came with the version"
            assert (started[0] / "config.json").exists(), "a server that dies is started from it again"
            assert agent.post({"model": MODEL, "messages": REQUEST}).json()["sweetrl"]["version"] == versions[1]
    assert not started[0].exists()


@pytest.mark.parametrize("url", ["", "http://127.0.0.1:1/v1"])
@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        ({"base": "models/base", "base_hash": "1"}, {"base": "models/base", "base_hash": "2"}, False),
        ({"base": "models/base", "base_hash": "1"}, {"base": "models/moved", "base_hash": "1"}, True),
        ({"base": "org/small", "base_revision": "1"}, {"base": "org/small", "base_revision": "2"}, False),
    ],
)
def test_a_version_on_another_base_does_not_take_over_at_a_vllm_server(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, url: str, first: Any, second: Any, same: bool
) -> None:
    def handed(version: str, values: Any) -> Handed:
        return Handed(MODEL, version, Path("adapter"), values["base"], AgentConfig(**values))

    @contextlib.contextmanager
    def watched(engine: EngineSettings, *more: Any) -> Iterator[Any]:
        yield engine, lambda: False

    registry = SimpleNamespace(name=MODEL, aliases=lambda: {"champion": "2"})
    for name, value in {
        "Registry": lambda *more: registry,
        "fetch": lambda *more: handed("1", first),
        "from_registry": lambda *more: handed("2", second),
        "load_speaker": lambda version, *more: SimpleNamespace(handed=version, close=lambda: None),
        "adapter_lora_rank": lambda path: 4,
        "watched": watched,
    }.items():
        monkeypatch.setattr(f"sweetrl.serve.alias.{name}", value)
    follower = Follower(f"{MODEL}@champion", settings, 0.1, EngineSettings(kind="vllm", urls=url))
    with follower.started(Path("serve.log")):
        before = asyncio.run(follower.look())
    assert (before is not None) is same
    assert follower.speaker.handed.version == ("2" if same else "1")


def test_a_vllm_server_that_refuses_the_adapter_is_one_sentence(settings: Settings, vllm: Any) -> None:
    with vllm() as server:
        server._adapter = lambda path, body: (404, {"detail": "Not Found"})
        with (
            pytest.raises(UserError, match="the server loads no adapters"),
            running("models/policy", settings, engine=EngineSettings(kind="vllm", urls=server.url)),
        ):
            pass
