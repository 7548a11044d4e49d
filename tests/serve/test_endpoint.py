"""The endpoint over HTTP: dialogues, a new champion in the middle of them, health, metrics, and bad requests."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from sweetrl.config.settings import EngineSettings, Settings
from sweetrl.errors import UserError
from sweetrl.serve import endpoint as endpoint_module
from sweetrl.serve.alias import sampler
from sweetrl.serve.endpoint import serve
from sweetrl.stages.registration import register_policy
from sweetrl.tracking.registry import Registry
from tests.serve.made import MODEL, write_adapter, write_results
from tests.serve.serving import REQUEST, Running, running
from tests.signals import until


@pytest.fixture(scope="module")
def served(project: Path, settings: Settings) -> Iterator[Running]:
    """The agent in a folder, which has no alias to follow."""
    with running("models/policy", settings) as agent:
        yield agent


def test_a_dialogue_by_the_clients_own_library(served: Running) -> None:
    client = openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", http_client=httpx.Client(trust_env=False))
    (model,) = client.models.list().data
    assert model.id == "policy"
    messages: list[Any] = list(REQUEST)
    for turn in (1, 2, 3):
        reply = client.chat.completions.create(model=model.id, messages=messages, temperature=0, seed=5)
        assert reply.choices[0].message.content is not None
        assert reply.model_extra is not None and reply.model_extra["sweetrl"]["turn"] == turn
        assert reply.usage is not None and reply.usage.completion_tokens <= 12
        messages += [
            {"role": "assistant", "content": reply.choices[0].message.content},
            {"role": "user", "content": "It is 7."},
        ]
    with pytest.raises(openai.BadRequestError, match="had all of its 3 turns"):
        client.chat.completions.create(model=model.id, messages=messages)
    same = [client.chat.completions.create(model="policy", messages=list(REQUEST), temperature=0) for _ in range(2)]
    assert same[0].choices[0].message.content == same[1].choices[0].message.content
    chunks = list(
        client.chat.completions.create(
            model="policy", messages=list(REQUEST), temperature=0, stream=True, stream_options={"include_usage": True}
        )
    )
    streamed = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert streamed == same[0].choices[0].message.content
    assert chunks[-1].usage is not None and chunks[-1].usage.prompt_tokens > 0
    several = client.chat.completions.create(model="policy", messages=list(REQUEST), n=3, seed=1, temperature=1.0)
    again = client.chat.completions.create(model="policy", messages=list(REQUEST), n=3, seed=1, temperature=1.0)
    assert all(a.message.content == b.message.content for a, b in zip(several.choices, again.choices, strict=True))


def test_the_agents_own_system_prompt_is_applied(served: Running) -> None:
    config = served.endpoint.follower.speaker.handed.config
    body = {"model": "policy", "messages": REQUEST, "temperature": 0}
    own = {**body, "messages": [{"role": "system", "content": config.system_prompt}, *REQUEST]}
    bare, explicit = served.post(body).json(), served.post(own).json()
    assert bare["choices"] == explicit["choices"] and bare["usage"] == explicit["usage"]
    engine = served.endpoint.follower.speaker.agent.engine
    ids = engine.chat.open(config.system_prompt, REQUEST[0]["content"])
    assert bare["usage"]["prompt_tokens"] == len(ids)


def test_health_and_pages_that_are_none(served: Running) -> None:
    assert served.client.get(f"{served.url}/health").json() == {"status": "ok", "model": "policy", "version": ""}
    assert served.client.get(f"{served.url}/nothing").json()["error"]["code"] == "not_found"
    assert served.client.get(f"{served.url}/v1/chat/completions").status_code == 405


def asking(**values: Any) -> dict[str, Any]:
    return {"model": "policy", "messages": REQUEST, **values}


BAD: dict[str, tuple[Any, int, str]] = {
    "no JSON": (b"{", 400, "Invalid JSON"),
    "half a surrogate": (b'{"model": "policy", "messages": [{"role": "user", "content": "\\ud800"}]}', 400, "Invalid"),
    "NaN": (b'{"model": "policy", "messages": [{"role": "user", "content": "x"}], "temperature": NaN}', 400, "`temp"),
    "far too deep": (b'{"messages": ' + b"[" * 100_000, 400, "recursion limit"),
    "too large": (b" " * (2**20 + 1), 413, "larger than 1048576 bytes"),
    "another model": (asking(model="gpt"), 404, "no model gpt here; set `model` to policy"),
    "no messages": (asking(messages=[]), 400, "`messages`"),
    "a tool": (asking(messages=[{"role": "tool", "content": "x"}]), 400, "`messages.0.role`"),
    "blanks": (asking(messages=[{"role": "user", "content": " "}]), 400, "has no text"),
    "a picture": (asking(messages=[{"role": "user", "content": [{"type": "image_url"}]}]), 400, "`messages.0.content"),
    "two users": (asking(messages=[*REQUEST, *REQUEST]), 400, "must be user, assistant, user"),
    "system only": (asking(messages=[{"role": "system", "content": "x"}]), 400, "system prompt of its"),
    "huge heat": (asking(temperature=10**400), 400, "`temperature`"),
    "many replies": (asking(n=10_000), 400, "`n`"),
    "tools": (asking(tools=[{"type": "function"}]), 400, "`tools` is not supported"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_request_is_refused_with_a_sentence(served: Running, name: str) -> None:
    body, status, words = BAD[name]
    response = served.post(body)
    error = response.json()["error"]
    assert response.status_code == status, error
    assert words in error["message"] and error["message"].endswith(".") and "\n" not in error["message"]


def test_requests_that_come_together_are_answered_as_alone(served: Running) -> None:
    bodies = [
        {"model": "policy", "messages": [{"role": "user", "content": f"Price {n}?"}], "seed": n} for n in range(6)
    ]
    bodies = [{**body, "temperature": 0.0 if n % 2 else 1.0} for n, body in enumerate(bodies)]
    alone = [served.post(body).json()["choices"] for body in bodies]
    with ThreadPoolExecutor(6) as pool:
        assert [response.json()["choices"] for response in pool.map(served.post, bodies)] == alone


def test_an_engine_that_fails_is_a_500_and_the_next_request_is_answered(
    served: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: Any) -> Any:
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(served.endpoint.follower.speaker.agent.engine, "sample", fail)
        response = served.post({"model": "policy", "messages": REQUEST})
    assert response.status_code == 500 and "memory" not in response.text
    assert served.post({"model": "policy", "messages": REQUEST}).status_code == 200


def test_a_client_that_goes_gives_its_place_back(served: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = served.endpoint.follower.speaker.agent.engine
    sample, begun, go_on, sampled = engine.sample, threading.Event(), threading.Event(), []

    def slow(prompts: Any, sampling: Any) -> Any:
        sampled.append(sampling.max_new_tokens)
        begun.set()
        assert go_on.wait(60)
        return sample(prompts, sampling)

    monkeypatch.setattr(engine, "sample", slow)
    body = json.dumps(asking(max_tokens=5)).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    waiting = served.endpoint.follower.speaker
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(served.post, asking())
        assert begun.wait(60)
        clients = [socket.create_connection(("127.0.0.1", int(served.url.rpartition(":")[2]))) for _ in range(5)]
        for client in clients:
            client.sendall(head + body)
        until(lambda: waiting.under_way == 6)
        stays = pool.submit(served.post, asking())
        until(lambda: waiting.under_way == 7)
        for client in clients:
            client.close()
        until(lambda: waiting.under_way == 2)
        go_on.set()
        assert first.result().status_code == stays.result().status_code == 200
    assert sampled == [12, 12]


def test_a_new_champion_takes_over_and_no_request_is_lost(
    project: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = Registry(settings.tracking, project)
    first = register_policy(settings, project).version
    registry.promote(first, "the first")
    write_adapter(project, 2)
    write_results(project, 0.7)
    second = register_policy(settings, project).version
    assert second != first
    body = {"model": MODEL, "messages": REQUEST, "temperature": 0}
    with running(f"{MODEL}@champion", settings) as agent:
        old = agent.post(body).json()
        assert old["sweetrl"]["version"] == first
        # A request that is being answered while the alias moves:
        speaker = agent.endpoint.follower.speaker
        sample, begun, go_on = speaker.agent.engine.sample, threading.Event(), threading.Event()

        def slow(*arguments: Any) -> Any:
            begun.set()
            assert go_on.wait(60)
            return sample(*arguments)

        monkeypatch.setattr(speaker.agent.engine, "sample", slow)
        with ThreadPoolExecutor(2) as pool:
            under_way = pool.submit(agent.post, body)
            assert begun.wait(60)
            registry.promote(second, "better")
            until(lambda: agent.version == second)
            new = agent.post(body).json()  # answered by the new version, while the old one is at work
            assert not under_way.done()
            go_on.set()
            kept = under_way.result().json()
        assert kept["sweetrl"]["version"] == first and kept["choices"] == old["choices"]
        assert new["sweetrl"]["version"] == second and new["choices"] != old["choices"]
        assert agent.client.get(f"{agent.url}/health").json()["version"] == second
        looks = []

        def fail(registry: Registry) -> dict[str, str]:
            looks.append(registry)
            raise UserError("no answer")

        with monkeypatch.context() as patch:  # a registry that fails leaves the one that answers
            patch.setattr(Registry, "aliases", fail)
            until(lambda: len(looks) > 1)
            assert agent.post(body).json()["choices"] == new["choices"]
        registry.promote(first, "restored")
        until(lambda: agent.version == first)
        assert agent.post(body).json()["choices"] == old["choices"]


def test_a_taken_port_is_one_sentence(served: Running, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint_module, "Follower", None)  # nothing is loaded before that is known
    with pytest.raises(UserError, match=r"nothing can be served there \(address already in use\)"):
        serve("models/policy", settings, "127.0.0.1", int(served.url.rpartition(":")[2]), EngineSettings(), None)


def test_who_samples() -> None:
    vllm = EngineSettings(kind="vllm", urls="http://here:1/v1", model="base")
    local = EngineSettings()
    assert sampler(local).kind == "transformers" and sampler(vllm) == vllm
    assert sampler(vllm, "transformers").kind == "transformers"
    assert sampler(EngineSettings(kind="openai", urls="http://here:1/v1", model="x")).kind == "transformers"
    remote = sampler(vllm, None, "http://there:2/v1")
    assert (remote.kind, remote.urls, remote.model) == ("vllm", "http://there:2/v1", "")
    assert sampler(local, "vllm").urls == ""
    with pytest.raises(UserError, match="load no adapters"):
        sampler(local, "openai")
    with pytest.raises(UserError, match="samples in this process"):
        sampler(local, "transformers", "http://there:2/v1")


@pytest.mark.parametrize("piece", ["the last light ", "é中😀", "\n"])
def test_a_long_prompt_is_refused_before_all_of_it_is_tokenised(
    served: Running, monkeypatch: pytest.MonkeyPatch, piece: str
) -> None:
    engine = served.endpoint.follower.speaker.agent.engine
    lengths, encode = [0], engine.chat.tokenizer.encode

    def watched(text: str, **options: Any) -> Any:
        lengths.append(len(text))
        return encode(text, **options)

    monkeypatch.setattr(engine.chat.tokenizer, "encode", watched)
    words = "Hi " + piece * (900_000 // len(json.dumps(piece, ensure_ascii=False).encode()))
    body = {"model": served.endpoint.names[0], "messages": [{"role": "user", "content": words}]}
    refused = served.post(json.dumps(body, ensure_ascii=False).encode())
    assert refused.json()["error"]["code"] == "context_length_exceeded"
    assert max(lengths) <= 4 * 8 * engine.context
