"""One vLLM server of the base model on the CPU for all tests here, started as the stages start it.

SWEETRL_VLLM_URL names a running server instead (another version, on a GPU): it must serve models/base in float32
as `base`, and be started with VLLM_ALLOW_RUNTIME_LORA_UPDATING=True, --enable-lora, --max-loras 3 and
--enable-prompt-tokens-details.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from sweetrl.config.settings import EngineSettings, LoraSettings, ModelSettings
from sweetrl.engines.policy import watched
from sweetrl.engines.transformers import TransformersEngine
from sweetrl.engines.vllm import VllmEngine
from sweetrl.engines.vllm_server import free_port
from sweetrl.lm.adapters import attach_adapter, load_base, save_adapter
from sweetrl.models.load import load_tokenizer

PYTHON, URL = os.environ.get("SWEETRL_VLLM", ""), os.environ.get("SWEETRL_VLLM_URL", "")
# Small, in this process's reach, and without a thread for each core.
SMALL = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": "1500",  # a starved machine: after 300 s the server would end itself
}


REGISTRY_PORT = free_port()
# The server is told where the registry is when it starts, and asks it only when a request names a registered model.
REGISTRY_ENV = {"MLFLOW_TRACKING_URI": f"http://127.0.0.1:{REGISTRY_PORT}", "SWEETRL_LORA_MODELS": "agent-to-hand-over"}
USER = "user"


def adapter_of(base: Path, folder: Path, noise: float) -> Path:
    """Write an adapter that differs from the base by a constant."""
    model, _ = load_base(ModelSettings(base=str(base), threads=1))
    adapted = attach_adapter(model, LoraSettings(rank=8), 1)
    for name, value in adapted.named_parameters():
        if "lora_B" in name:
            value.data.fill_(noise)
    save_adapter(adapted, folder, str(base))
    return folder


@pytest.fixture(scope="session")
def base_model() -> Path:
    """The small agent that ships with the project."""
    return Path(__file__).resolve().parents[2] / "models" / "base"


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory, base_model: Path) -> Iterator[EngineSettings]:
    """A server of the base model that runs two adapters side by side; one of them, USER, from its start."""
    if URL:
        folder = adapter_of(base_model, tmp_path_factory.mktemp("user") / "adapter", 0.01)
        body = {"lora_name": USER, "lora_path": str(folder)}
        assert httpx.post(f"{URL}/load_lora_adapter", json=body, timeout=300).status_code == 200
        yield EngineSettings(kind="vllm", urls=URL, model="base", timeout_seconds=600.0)
        httpx.post(f"{URL}/unload_lora_adapter", json={"lora_name": USER}, timeout=60).raise_for_status()
        return
    if not PYTHON:
        pytest.skip("vLLM has an environment of its own: run `make test-vllm`")
    folder = adapter_of(base_model, tmp_path_factory.mktemp("user") / "adapter", 0.01)
    before = {name: os.environ.get(name) for name in SMALL}
    os.environ.update(SMALL)
    settings = EngineSettings(
        kind="vllm",
        command="env "
        + " ".join(f"{name}={value}" for name, value in REGISTRY_ENV.items())
        + f" '{PYTHON}' -m vllm.entrypoints.openai.api_server --model {{model}}",
        # Prompts prefilled in parts end vLLM 0.32 on CPUs where requests have seeds: its generator has no offset there.
        # An adapter that was unloaded keeps its place until others need it; two are in use at a time.
        # Named here, the user's model is there again when the server had to be started again.
        arguments=f"--enforce-eager --max-loras 3 --no-enable-chunked-prefill --lora-modules {USER}={folder}",
        timeout_seconds=600.0,
        start_seconds=1500.0,  # 40 s on an idle machine
    )
    try:
        base, log = ModelSettings(base=str(base_model)), tmp_path_factory.mktemp("vllm") / "log"
        with watched(settings, base, log) as (running, _):
            yield running
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


@pytest.fixture(scope="session")
def user(served: EngineSettings) -> str:
    """The name of the user's model: an adapter at the same server. (Not the base: see docs/real-models.md.)"""
    return USER


@pytest.fixture(scope="session")
def remote(served: EngineSettings, base_model: Path) -> Iterator[VllmEngine]:
    """The base model at that server."""
    engine = VllmEngine(served, load_tokenizer(base_model))
    yield engine
    engine.close()


@pytest.fixture(scope="session")
def local(base_model: Path) -> TransformersEngine:
    """The base model in this process."""
    return TransformersEngine(base_model, device="cpu", threads=1)
