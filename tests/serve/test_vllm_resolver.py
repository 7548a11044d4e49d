"""Adapters by the name that a request gives, from the registry; vLLM itself is stood in for by its two classes."""

from __future__ import annotations

import asyncio
import sys
from collections import namedtuple
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from sweetrl.config.settings import Settings
from sweetrl.file_hashes import dvc_hash
from sweetrl.serve.vllm_resolver import MODELS, _other_base, find_adapter, register
from sweetrl.stages.registration import register_policy
from sweetrl.tracking.chat_agent import AgentConfig
from sweetrl.tracking.registry import Registry
from tests.serve.made import MODEL


@pytest.fixture(scope="module")
def champion(project: Path, settings: Settings) -> str:
    registry = Registry(settings.tracking, project)
    number = register_policy(settings, project).version
    registry.promote(number, "the first")
    return number


@pytest.fixture(autouse=True)
def store(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{project}/mlflow.db")


def test_an_alias_and_a_number_are_the_registered_adapter(project: Path, champion: str) -> None:
    for name in (f"{MODEL}@champion", f"{MODEL}/{champion}"):
        adapter = find_adapter(name, str(project / "models/base"), frozenset({MODEL}))
        assert adapter is not None
        assert dvc_hash(adapter) == dvc_hash(project / "models/policy")


def test_other_names_are_left_to_others(project: Path, champion: str) -> None:
    own = ("@nobody", "/999", "/99999999999999999999", "@a b", "")
    for name in ("gpt-4", "other@champion", f"../{MODEL}@champion", "", *(f"{MODEL}{end}" for end in own)):
        assert find_adapter(name, str(project / "models/base"), frozenset({MODEL})) is None, name


def test_another_base_is_refused(
    project: Path, champion: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert find_adapter(f"{MODEL}@champion", str(tmp_path), frozenset({MODEL})) is None
    assert "another base than the server's" in caplog.text
    assert find_adapter(f"{MODEL}@champion", "meta/other", frozenset({MODEL})) is None
    assert "the server has meta/other" in caplog.text


@pytest.mark.parametrize(
    ("served", "right"),
    [
        ("org/name", True),
        ("/cache/hub/models--org--name/snapshots/0123", True),
        ("/cache/hub/models--org--name/snapshots/4567", False),
        ("/cache/hub/models--org--other/snapshots/0123", False),
    ],
)
def test_the_hubs_cache_of_the_base_is_the_base(served: str, right: bool) -> None:
    """With HF_HUB_OFFLINE=1 vLLM names the base by its folder in the cache."""
    reason = _other_base(AgentConfig("org/name", base_revision="0123"), served)
    assert (reason == "") == right
    unknown = _other_base(AgentConfig("org/name"), "/cache/hub/models--org--name/snapshots/4567")
    assert unknown == "", "of which revision it was is not known"


Request = namedtuple("Request", "lora_name lora_int_id lora_path")


@pytest.fixture
def resolvers(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    registered: dict[str, Any] = {}
    request, resolver = ModuleType("vllm.lora.request"), ModuleType("vllm.lora.resolver")
    request.LoRARequest = Request  # type: ignore[attr-defined]
    resolver.LoRAResolver = object  # type: ignore[attr-defined]
    resolver.LoRAResolverRegistry = type("R", (), {"register_resolver": staticmethod(registered.__setitem__)})  # type: ignore[attr-defined]
    for name, module in (
        ("vllm", ModuleType("vllm")),
        ("vllm.lora", ModuleType("vllm.lora")),
        ("vllm.lora.request", request),
        ("vllm.lora.resolver", resolver),
    ):
        monkeypatch.setitem(sys.modules, name, module)
    return registered


def test_nothing_is_registered_unless_models_are_named(
    resolvers: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(MODELS, raising=False)
    register()
    assert resolvers == {}


def test_vllm_gets_a_request_with_the_adapters_path(
    project: Path, champion: str, resolvers: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(MODELS, f"another, {MODEL}")
    register()
    (resolver,) = resolvers.values()
    request = asyncio.run(resolver.resolve_lora(str(project / "models/base"), f"{MODEL}@champion"))
    assert request.lora_name == f"{MODEL}@champion"
    assert (Path(request.lora_path) / "adapter_config.json").exists()
    assert asyncio.run(resolver.resolve_lora(str(project / "models/base"), "gpt-4")) is None
