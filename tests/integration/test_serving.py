"""A registered agent behind a real vLLM: by `sweetrl serve`, and by its registered name at the endpoint of vLLM."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from sweetrl.config.settings import EngineSettings, Settings, load_settings
from sweetrl.stages.registration import register_policy
from sweetrl.tracking.registry import Registry
from tests.integration.conftest import REGISTRY_PORT, URL
from tests.serve.made import MODEL, make_project, write_adapter, write_results
from tests.serve.serving import Running, running
from tests.signals import mlflow_server, until

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(1800)]

REQUESTS = [
    [{"role": "user", "content": f"I want a function that computes the price of {count} tickets for a {place}."}]
    for count in (2, 3, 5, 8)
    for place in ("museum", "train", "concert", "ferry")
]


@pytest.fixture(scope="module")
def project(base_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A project whose registry is an MLflow server, with two versions of an agent; the first is champion."""
    root = tmp_path_factory.mktemp("project")
    make_project(root, base_model)
    values = {
        "seed": 7,
        "agent": {"max_turns": 3, "max_new_tokens": 24, "temperature": 0.0},
        "model": {"threads": 1},
        "tracking": {"model": MODEL},
    }
    (root / "params.yaml").write_text(yaml.safe_dump(values))
    with (
        mlflow_server(tmp_path_factory.mktemp("registry"), REGISTRY_PORT) as url,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.chdir(root)
        patch.setenv("MLFLOW_TRACKING_URI", url)
        settings = load_settings(root / "params.yaml")
        for seed, reward in ((1, 0.5), (2, 0.7)):
            write_adapter(root, seed)
            write_results(root, reward)
            register_policy(settings, root)
        Registry(settings.tracking, root).promote("1", "the first")
        yield root


@pytest.fixture(scope="module")
def settings(project: Path) -> Settings:
    return load_settings(project / "params.yaml")


def ask(endpoint: Running, messages: list[dict[str, str]]) -> tuple[str, str]:
    """Return the version that answers, and its reply."""
    answer = endpoint.post({"model": MODEL, "messages": messages, "temperature": 0})
    assert answer.status_code == 200, answer.text
    return answer.json()["sweetrl"]["version"], answer.json()["choices"][0]["message"]["content"]


def test_the_endpoint_before_a_vllm_server(project: Path, settings: Settings, served: EngineSettings) -> None:
    registry = Registry(settings.tracking, project)
    registry.promote("1", "again the first")
    with running(f"{MODEL}@champion", settings) as local:
        by_transformers = [ask(local, messages) for messages in REQUESTS]
    with running(f"{MODEL}@champion", settings, engine=served) as remote, ThreadPoolExecutor(16) as pool:
        by_vllm = list(pool.map(lambda messages: ask(remote, messages), REQUESTS))
        assert {version for version, _ in by_vllm} == {"1"}
        same = sum(a == b for a, b in zip(by_transformers, by_vllm, strict=True))
        assert same >= 0.9 * len(REQUESTS)  # sums in another order break ties
        # A new champion in the middle of many requests: each is answered, by one version or the other.
        many = [pool.submit(ask, remote, REQUESTS[n % len(REQUESTS)]) for n in range(64)]
        registry.promote("2", "better")
        until(lambda: remote.version == "2", seconds=300)
        assert {reply.result()[0] for reply in many} <= {"1", "2"}
        later = [ask(remote, messages) for messages in REQUESTS]
        assert {version for version, _ in later} == {"2"}
        assert sum(a[1] != b[1] for a, b in zip(by_vllm, later, strict=True)) >= len(REQUESTS) // 2
        names = {row["id"] for row in httpx.get(f"{served.urls}/models", trust_env=False).json()["data"]}
        loaded = remote.endpoint.follower.speaker.agent.engine
        assert loaded._adapter_name in names


@pytest.mark.skipif(bool(URL), reason="the server at SWEETRL_VLLM_URL has another registry")
def test_a_registered_name_at_vllms_own_endpoint(project: Path, settings: Settings, served: EngineSettings) -> None:
    registry = Registry(settings.tracking, project)
    registry.promote("1", "the first once more")

    def complete(model: str) -> Any:
        body = {"model": model, "prompt": "price of a ticket", "max_tokens": 24, "temperature": 0}
        return httpx.post(f"{served.urls}/completions", json=body, timeout=600, trust_env=False)

    base = complete(served.model).json()["choices"][0]["text"]
    first = complete(f"{MODEL}@champion").json()["choices"][0]["text"]
    assert complete(f"{MODEL}/1").json()["choices"][0]["text"] == first != base
    assert complete(f"{MODEL}/2").json()["choices"][0]["text"] not in (first, base)
    for unknown in (f"{MODEL}@nobody", "someone-elses@champion"):
        assert complete(unknown).status_code == 404
    # vLLM keeps what it has by its name: after a promotion the name is unloaded, and means the new version.
    registry.promote("2", "better")
    assert complete(f"{MODEL}@champion").json()["choices"][0]["text"] == first
    body = {"lora_name": f"{MODEL}@champion"}
    httpx.post(f"{served.urls}/unload_lora_adapter", json=body, timeout=60, trust_env=False).raise_for_status()
    assert complete(f"{MODEL}@champion").json()["choices"] == complete(f"{MODEL}/2").json()["choices"]
