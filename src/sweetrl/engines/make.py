"""From settings to engines: who produces the agent's tokens, and which servers must run for that."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sweetrl.engines.chat import ChatFormat
from sweetrl.engines.openai import OpenAIEngine
from sweetrl.engines.remote import Access
from sweetrl.engines.retry import RetryPolicy
from sweetrl.errors import UserError
from sweetrl.protocols import Engine
from sweetrl.settings import EngineSettings, ModelSettings, ServerSettings

# The name under which a server of ours serves the base model.
SERVED = "base"


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
        from sweetrl.models import load_tokenizer

        remote = VllmEngine(access(engine), load_tokenizer(model.base), adapter)
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
        key=os.environ.get(settings.key_variable, ""),
        key_variable=settings.key_variable,
        concurrency=settings.concurrency,
        retry_policy=RetryPolicy(
            settings.timeout_seconds, settings.attempts, settings.budget_seconds, settings.backoff_seconds
        ),
        gpus=settings.gpus,
    )


@contextmanager
def serving(engine: EngineSettings, model: ModelSettings, log: Path, rank: int = 16) -> Iterator[EngineSettings]:
    """Yield `engine` with a server behind it: vllm without `urls` gets one of our own for as long as this lasts.

    `log` is the file of the server's output, `rank` the largest rank of the adapters that it must load.
    """
    if engine.kind != "vllm" or engine.urls.strip():
        yield engine
        return
    from sweetrl.engines.server import ManagedServer, free_port, gpus_of, vllm_command

    folder = Path(model.base)
    port = free_port()
    command = vllm_command(
        engine.command,
        f"--dtype {model.dtype} {engine.arguments}",
        str(folder.resolve()) if folder.is_dir() else model.base,
        port,
        SERVED,
        rank,
    )
    with ManagedServer(command, port, log) as server:
        server.wait_ready(engine.start_seconds)
        gpus = engine.gpus or gpus_of(command)
        yield engine.model_copy(update={"urls": server.url, "model": SERVED, "gpus": gpus})


def adapter_rank(adapter: Path) -> int:
    """Return the rank of a peft adapter; UserError where there is none."""
    try:
        return int(json.loads((Path(adapter) / "adapter_config.json").read_text(encoding="utf-8"))["r"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{adapter}: there is no readable peft adapter here (adapter_config.json); run the stage that trains it."
        ) from error
