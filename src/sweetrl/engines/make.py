"""From settings to engines: who produces the agent's tokens, and which servers must run for that."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sweetrl.config.settings import EngineSettings, ModelSettings, ServerSettings
from sweetrl.engines.chat import ChatFormat
from sweetrl.engines.openai import OpenAIEngine
from sweetrl.engines.remote import Access
from sweetrl.engines.retry import RetryPolicy
from sweetrl.errors import UserError
from sweetrl.io import digest
from sweetrl.models.check import check_adapter, check_weights
from sweetrl.protocols import Engine

# The name under which a server of ours serves the base model.
SERVED = "base"
# The environment variable in which a process names the server that it lends to those it starts (`lending`).
LENT = "SWEETRL_LENT_SERVER"


@dataclass(frozen=True)
class Agent:
    """An engine that plays the agent, and the chat format of its tokens (None: it takes text)."""

    engine: Engine
    chat: ChatFormat | None


def make_agent(engine: EngineSettings, model: ModelSettings, adapter: Path | None, rows: int) -> Agent:
    """Return the agent that the settings describe: `model.base` or the served model, with `adapter` on it."""
    if engine.kind == "transformers":
        from sweetrl.engines.transformers import TransformersEngine

        local = TransformersEngine(model.base, adapter, model.dtype, model.device, model.threads, rows)
        return Agent(local, local.chat)
    if engine.kind == "vllm":
        from sweetrl.engines.vllm import VllmEngine
        from sweetrl.models.load import load_tokenizer, vocabulary_of

        remote = VllmEngine(access(engine), load_tokenizer(model.base), adapter, vocabulary_of(model.base))
        return Agent(remote, remote.chat)
    if adapter is not None:
        raise UserError(
            f"engine openai: the adapter {adapter} cannot be loaded through chat completions; set `engine.kind: vllm`, "
            "or serve the trained model under a name of its own and evaluate that with `sweetrl evaluate --tasks`."
        )
    return Agent(OpenAIEngine(access(engine)), None)


def access(settings: ServerSettings) -> Access:
    """Return where the servers of `settings` are, with the key from the environment."""
    return Access(
        urls=tuple(url.rstrip("/") for url in settings.urls.replace(",", " ").split()),
        model=settings.model,
        key=os.environ.get(settings.key_variable, "").strip(),
        key_variable=settings.key_variable,
        concurrency=settings.concurrency,
        retry_policy=RetryPolicy(settings.timeout_seconds, settings.attempts, backoff=settings.backoff_seconds),
        gpus=settings.gpus,
    )


@contextmanager
def serving(engine: EngineSettings, model: ModelSettings, log: Path, rank: int = 16) -> Iterator[EngineSettings]:
    """Yield `engine` with a server behind it: vllm without `urls` gets one of our own for as long as this lasts.

    Where a server of the same model and settings is lent to this process, it is taken. `log` is the file of the
    server's output, `rank` the largest rank of the adapters that it must load.
    """
    with watched(engine, model, log, rank) as (served, _):
        yield served


@contextmanager
def watched(
    engine: EngineSettings, model: ModelSettings, log: Path, rank: int = 16
) -> Iterator[tuple[EngineSettings, Callable[[], bool]]]:
    """Do as `serving` does, and yield a function, too: whether the server of our own has ended for good."""
    lent = _lent(engine, model, rank) if needs_server(engine) else engine
    if lent is not None:
        yield lent, lambda: False
        return
    from sweetrl.engines.vllm_server import ManagedServer, free_port, gpus_of, vllm_command

    folder = Path(model.base)
    check_weights(folder)  # vLLM has rules of its own
    port = free_port()
    command = vllm_command(
        engine.command,
        f"--dtype {model.dtype} {engine.arguments}",
        str(folder.resolve()) if folder.is_dir() else model.base,
        port,
        SERVED,
        rank,
    )
    gpus = engine.gpus or gpus_of(command)
    # Its own last words are "Engine core initialization failed", after an assertion without a message.
    half = "vLLM's kernels for adapters on a GPU take half precision only: set `model.dtype: bfloat16`"
    with ManagedServer(command, port, log) as server:
        server.wait_ready(engine.start_seconds, half if gpus and model.dtype == "float32" else "")
        served = engine.model_copy(update={"urls": server.url, "model": SERVED, "gpus": gpus})
        yield served, lambda: server.given_up


def needs_server(engine: EngineSettings) -> bool:
    """Whether whoever uses `engine` starts a server for it."""
    return engine.kind == "vllm" and not engine.urls.strip()


@contextmanager
def lending(engine: EngineSettings, model: ModelSettings, log: Path, rank: int) -> Iterator[dict[str, str]]:
    """Run a server of our own for others; yield the environment in which processes on this machine find it."""
    with serving(engine, model, log, rank) as served:
        where = {"urls": served.urls, "model": served.model, "gpus": served.gpus}
        yield {LENT: json.dumps({"what": _what(engine, model), "rank": rank, "where": where})}


def _lent(engine: EngineSettings, model: ModelSettings, rank: int) -> EngineSettings | None:
    """Return `engine` at the server that is lent to this process; None where there is none, or one of another kind."""
    offer = json.loads(os.environ.get(LENT) or "{}")
    if offer.get("what") != _what(engine, model) or offer["rank"] < rank:
        return None
    return engine.model_copy(update=offer["where"])


def _what(engine: EngineSettings, model: ModelSettings) -> str:
    """What decides how a server of our own answers, and how many GPUs are put down to it."""
    return digest(engine.command, engine.arguments, engine.gpus, model.dtype, str(Path(model.base).resolve()))


def adapter_lora_rank(adapter: Path) -> int:
    """Return the rank of a LoRA adapter; UserError where there is none."""
    return int(check_adapter(adapter)["r"])
