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

from sweetrl.errors import UserError
from sweetrl.handover import endpoint as endpoint_module
from sweetrl.handover.alias import sampler
from sweetrl.handover.endpoint import serve
from sweetrl.settings import EngineSettings, Settings
from sweetrl.tracking.registry import Registry, register_policy
from tests.handover.made import MODEL, write_adapter, write_results
from tests.handover.serving import REQUEST, Running, running, until


@pytest.fixture(scope="module")
def served(project: Path, settings: Settings) -> Iterator[Running]:
    """The agent in a folder, which has no alias to follow."""
    with running("models/policy", settings) as found:
        yield found


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
    streamed = "".join(one.choices[0].delta.content or "" for one in chunks if one.choices)
    assert streamed == same[0].choices[0].message.content
    assert chunks[-1].usage is not None and chunks[-1].usage.prompt_tokens > 0
    several = client.chat.completions.create(model="policy", messages=list(REQUEST), n=3, seed=1, temperature=1.0)
    again = client.chat.completions.create(model="policy", messages=list(REQUEST), n=3, seed=1, temperature=1.0)
    assert [one.message.content for one in several.choices] == [one.message.content for one in again.choices]


def test_the_agents_own_system_prompt_is_applied(served: Running) -> None:
    config = served.endpoint.line.speaker.handed.config
    body = {"model": "policy", "messages": REQUEST, "temperature": 0}
    own = {**body, "messages": [{"role": "system", "content": config.system_prompt}, *REQUEST]}
    bare, told = served.post(body).json(), served.post(own).json()
    assert bare["choices"] == told["choices"] and bare["usage"] == told["usage"]
    engine = served.endpoint.line.speaker.agent.engine
    ids = engine.chat.open(config.system_prompt, REQUEST[0]["content"])
    assert bare["usage"]["prompt_tokens"] == len(ids)


def test_health_and_metrics(served: Running) -> None:
    assert served.client.get(f"{served.url}/health").json() == {"status": "ok", "model": "policy", "version": ""}
    before = served.metrics()
    served.post({"model": "policy", "messages": REQUEST})
    served.post(b"no json")
    after = served.metrics()
    for status in (200, 400):
        name = f'sweetrl_requests_total{{status="{status}"}}'
        assert after[name] == before.get(name, 0) + 1
    assert after["sweetrl_generated_tokens_total"] > before["sweetrl_generated_tokens_total"]
    assert after["sweetrl_request_seconds_count"] == after['sweetrl_request_seconds_bucket{le="+Inf"}']
    assert served.client.get(f"{served.url}/nothing").json()["error"]["code"] == "not_found"
    assert served.client.get(f"{served.url}/v1/chat/completions").status_code == 405


def nested(levels: int) -> bytes:
    return b'{"model": "policy", "messages": ' + b"[" * levels + b"]" * levels + b"}"


BAD: dict[str, tuple[Any, int, str]] = {
    "no JSON": (b"{", 400, "not JSON"),
    "no UTF-8": (b'{"model": "\xff"}', 400, "not JSON"),
    "a list": ([], 400, "not a JSON object"),
    "NaN": (b'{"model": "policy", "temperature": NaN}', 400, "not JSON"),
    "too deep": (nested(100), 400, "16 levels deep"),
    "far too deep": (nested(100_000), 400, "not JSON"),
    "too large": (b" " * (2**20 + 1), 413, "larger than 1048576 bytes"),
    "too many": ({"model": "policy", "messages": [0] * 30_000}, 413, "more than 20000 values"),
    "another model": ({"model": "gpt", "messages": REQUEST}, 404, "no model gpt here; set `model` to policy"),
    "no model": ({"messages": REQUEST}, 404, "no model nothing"),
    "no messages": ({"model": "policy", "messages": []}, 400, "`messages` is empty"),
    "no role": ({"model": "policy", "messages": [{"content": "x"}]}, 400, "Message 0 has the role nothing"),
    "a tool": ({"model": "policy", "messages": [{"role": "tool", "content": "x"}]}, 400, "the role tool"),
    "no text": ({"model": "policy", "messages": [{"role": "user", "content": 7}]}, 400, "Message 0 has no text"),
    "a picture": (
        {"model": "policy", "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
        400,
        "reads text only",
    ),
    "two users": ({"model": "policy", "messages": [*REQUEST, *REQUEST]}, 400, "must be user, assistant, user"),
    "system only": ({"model": "policy", "messages": [{"role": "system", "content": "x"}]}, 400, "system prompt of its"),
    "hot": ({"model": "policy", "messages": REQUEST, "temperature": 9}, 400, "a number from 0 to 2"),
    "true heat": ({"model": "policy", "messages": REQUEST, "temperature": True}, 400, "a number from 0 to 2"),
    "huge heat": ({"model": "policy", "messages": REQUEST, "temperature": 10**400}, 400, "a number from 0 to 2"),
    "many replies": ({"model": "policy", "messages": REQUEST, "n": 10_000}, 400, "a whole number from 1 to 16"),
    "no tokens": ({"model": "policy", "messages": REQUEST, "max_tokens": 0}, 400, "a whole number from 1"),
    "tools": ({"model": "policy", "messages": REQUEST, "tools": [{"type": "function"}]}, 400, "`tools` is not supp"),
    "stop": ({"model": "policy", "messages": REQUEST, "stop": "."}, 400, "`stop` is not supported"),
    "unknown": ({"model": "policy", "messages": REQUEST, "best_of": 3}, 400, "`best_of` is not known"),
    "no flag": ({"model": "policy", "messages": REQUEST, "stream": "yes"}, 400, "`stream` is yes"),
    "too long": (
        {"model": "policy", "messages": [{"role": "user", "content": "price of a ticket " * 3000}]},
        400,
        "leave no room for a reply",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_request_is_refused_with_a_sentence(served: Running, name: str) -> None:
    body, status, words = BAD[name]
    response = served.post(body)
    error = response.json()["error"]
    assert response.status_code == status, error
    assert words in error["message"] and error["message"].endswith(".") and "\n" not in error["message"]


def test_half_a_surrogate_is_no_end_of_the_endpoint(served: Running) -> None:
    body = b'{"model": "policy", "messages": [{"role": "user", "content": "price \\ud800 of"}]}'
    assert served.post(body).status_code == 200
    assert served.client.get(f"{served.url}/health").status_code == 200


def test_requests_that_come_together_are_answered_as_alone(served: Running) -> None:
    bodies = [
        {"model": "policy", "messages": [{"role": "user", "content": f"Price {n}?"}], "seed": n} for n in range(6)
    ]
    bodies = [{**body, "temperature": 0.0 if n % 2 else 1.0} for n, body in enumerate(bodies)]
    alone = [served.post(body).json()["choices"] for body in bodies]
    with ThreadPoolExecutor(6) as pool:
        assert [response.json()["choices"] for response in pool.map(served.post, bodies)] == alone


def test_a_full_line_says_so(served: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sweetrl.handover.line.WAITING", 0)
    response = served.post({"model": "policy", "messages": REQUEST})
    assert response.status_code == 503 and response.headers["retry-after"] == "2"


def test_an_engine_that_fails_is_a_500_and_the_next_request_is_answered(
    served: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: Any) -> Any:
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(served.endpoint.line.speaker.agent.engine, "sample", fail)
        response = served.post({"model": "policy", "messages": REQUEST})
    assert response.status_code == 500 and "memory" not in response.text
    assert served.post({"model": "policy", "messages": REQUEST}).status_code == 200


def test_a_client_that_goes_gives_its_place_back(served: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = served.endpoint.line.speaker.agent.engine
    sample, begun, go_on, asked = engine.sample, threading.Event(), threading.Event(), []

    def slow(prompts: Any, sampling: Any) -> Any:
        asked.append(len(prompts))
        begun.set()
        assert go_on.wait(60)
        return sample(prompts, sampling)

    def gone() -> float:
        return served.metrics().get('sweetrl_requests_total{status="499"}', 0)

    monkeypatch.setattr(engine, "sample", slow)
    body = json.dumps({"model": "policy", "messages": REQUEST}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    before = gone()
    with ThreadPoolExecutor(2) as pool:
        under_way = pool.submit(served.post, body)
        assert begun.wait(60)
        clients = [socket.create_connection(("127.0.0.1", int(served.url.rpartition(":")[2]))) for _ in range(5)]
        for client in clients:
            client.sendall(head + body)
        until(lambda: served.endpoint.line.waiting == 5)
        stays = pool.submit(served.post, body)
        until(lambda: served.endpoint.line.waiting == 6)
        for client in clients:
            client.close()
        until(lambda: served.endpoint.line.waiting == 1)
        go_on.set()
        assert under_way.result().status_code == stays.result().status_code == 200
    until(lambda: gone() == before + 5)
    assert asked == [1, 1]


def test_health_follows_the_engine(served: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    def health() -> int:
        return served.client.get(f"{served.url}/health").status_code

    def fail(*arguments: Any) -> Any:
        raise RuntimeError("no connection")

    body = {"model": "policy", "messages": REQUEST}
    with monkeypatch.context() as patch:
        patch.setattr(served.endpoint.line.speaker.agent.engine, "sample", fail)
        assert [served.post(body).status_code for _ in range(2)] == [500, 500] and health() == 200
        served.post(body)
        assert health() == 503
    until(lambda: health() == 200)  # without a request: the look itself tries the engine
    with monkeypatch.context() as patch:
        patch.setattr(served.endpoint.follower, "ended", lambda: True)
        assert health() == 503
    assert health() == 200


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
    with running(f"{MODEL}@champion", settings) as found:
        old = found.post(body).json()
        assert old["sweetrl"]["version"] == first
        # A request that is being answered while the alias moves:
        speaker = found.endpoint.line.speaker
        sample, begun, go_on = speaker.agent.engine.sample, threading.Event(), threading.Event()

        def slow(*arguments: Any) -> Any:
            begun.set()
            assert go_on.wait(60)
            return sample(*arguments)

        monkeypatch.setattr(speaker.agent.engine, "sample", slow)
        with ThreadPoolExecutor(2) as pool:
            under_way = pool.submit(found.post, body)
            assert begun.wait(60)
            registry.promote(second, "better")
            until(lambda: found.endpoint.line.changes == 1)
            new = found.post(body).json()  # answered by the new version, while the old one is at work
            assert not under_way.done()
            go_on.set()
            kept = under_way.result().json()
        assert kept["sweetrl"]["version"] == first and kept["choices"] == old["choices"]
        assert new["sweetrl"]["version"] == second and new["choices"] != old["choices"]
        assert found.client.get(f"{found.url}/health").json()["version"] == second
        assert f'sweetrl_agent_info{{model="{MODEL}",version="{second}"}}' in found.metrics()
        # A registry that fails, and a version that cannot be loaded, leave the one that answers.
        with monkeypatch.context() as patch:
            patch.setattr(Registry, "aliases", lambda self: (_ for _ in ()).throw(UserError("no answer")))
            until(lambda: found.endpoint.follower.failures > 0)
            assert found.post(body).json()["choices"] == new["choices"]
        registry.step_back()
        until(lambda: found.endpoint.line.changes == 2)
        assert found.post(body).json()["choices"] == old["choices"]


def test_a_taken_port_is_one_sentence(served: Running, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint_module, "Follower", None)  # nothing is loaded before that is known
    with pytest.raises(UserError, match=r"nothing can be served there \(address already in use\)"):
        serve("models/policy", settings, "127.0.0.1", int(served.url.rpartition(":")[2]), 1.0)


def test_who_samples() -> None:
    vllm = EngineSettings(kind="vllm", urls="http://here:1/v1", model="base")
    local = EngineSettings()
    assert sampler(local).kind == "transformers" and sampler(vllm) == vllm
    assert sampler(vllm, "transformers").kind == "transformers"
    assert sampler(EngineSettings(kind="openai", urls="http://here:1/v1", model="x")).kind == "transformers"
    asked = sampler(vllm, None, "http://there:2/v1")
    assert (asked.kind, asked.urls, asked.model) == ("vllm", "http://there:2/v1", "")
    assert sampler(local, "vllm").urls == ""
    with pytest.raises(UserError, match="load no adapters"):
        sampler(local, "openai")
    with pytest.raises(UserError, match="samples in this process"):
        sampler(local, "transformers", "http://there:2/v1")
