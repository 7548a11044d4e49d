"""An agent: a base model with or without an adapter, in this process or at a server; and the server it may need."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sweetrl.config.settings import EngineSettings, ModelSettings, section
from sweetrl.engines.chat import ChatFormat
from sweetrl.engines.openai import OpenAIEngine
from sweetrl.errors import UserError
from sweetrl.models.check import check_adapter, check_weights, is_full
from sweetrl.protocols import AsyncEngine, Engine

# The name under which a server of ours serves the base model.
SERVED = "base"


@dataclass(frozen=True)
class Agent:
    """An engine that plays the agent, and the chat format of its tokens (None: it takes text)."""

    engine: Engine | AsyncEngine
    chat: ChatFormat | None


@dataclass(frozen=True)
class Policy:
    """An agent that can be asked for replies.

        policy = Policy.load("models/base")                          # in this process, with transformers
        policy = Policy.load("models/base", adapter="models/policy")
        policy = Policy.server("http://localhost:8000/v1", model="my-model")

    Nothing is loaded, and no server asked, before the agent is.
    """

    model: ModelSettings = field(default_factory=ModelSettings, hash=False)  # `template_options` have no hash
    engine: EngineSettings = field(default_factory=lambda: EngineSettings(kind="transformers"))
    adapter: Path | None = None

    @classmethod
    def load(cls, model: str | Path = "models/base", adapter: str | Path | None = None, **options: Any) -> Policy:
        """Return the agent in a model's folder (or under a hub's name); `options` are those of section `model`.

        Nothing is loaded before the agent is asked.
        """
        return cls(section(ModelSettings, {**options, "base": str(model)}, "Policy.load")).adapted(adapter)

    @classmethod
    def server(cls, *urls: str, model: str = "", adapter: str | Path | None = None, **options: Any) -> Policy:
        """Return the agent at servers of one model.

        `options` are those of section `engine` (`kind: openai`), and the `template_options` of section `model`.
        """
        template = {"template_options": options.pop("template_options", {})}
        values = {"kind": "openai", **options, "urls": " ".join(urls), "model": model}
        base = section(ModelSettings, template, "Policy.server")
        return cls(base, section(EngineSettings, values, "Policy.server")).adapted(adapter)

    @property
    def name(self) -> str:
        """What dialogues call the agent: its base (or the served model), and the adapter's folder."""
        base = self.engine.model if self.engine.kind == "openai" else self.model.base
        return base if self.adapter is None else f"{base}+{self.adapter}"

    def adapted(self, adapter: str | Path | None) -> Policy:
        """Return the same agent with another adapter."""
        return replace(self, adapter=None if adapter is None else Path(adapter))

    @property
    def full(self) -> bool:
        """Whether `adapter` is a folder of all the model's weights, trained."""
        return self.adapter is not None and is_full(self.adapter)

    @property
    def served(self) -> Policy:
        """The agent whose model a server has: that without an adapter, or with the full weights."""
        return self if self.full else self.adapted(None)

    @property
    def lora_rank(self) -> int:
        """The rank of the agent's adapter; 16 without one."""
        return 16 if self.adapter is None else adapter_lora_rank(self.adapter)

    @contextmanager
    def serving(self, log: Path, lora_rank: int | None = None) -> Iterator[Policy]:
        """Yield the agent with a server behind it where it needs one of its own; `log` takes the server's output.

        `lora_rank` is that of the largest adapter to be loaded; by default the agent's own.
        """
        model = self.model
        if self.full:
            if self.engine.kind == "vllm" and self.engine.addresses:
                raise UserError(
                    f"engine.urls: a running server cannot load the full weights in {self.adapter}; leave it empty, or "
                    "serve that folder yourself and take `engine.kind: openai`."
                )
            model = model.model_copy(update={"base": str(self.adapter)})
        with watched(self.engine, model, log, lora_rank or self.lora_rank) as (engine, _):
            yield replace(self, engine=engine)

    def open(self, rows: int = 256, singly: bool = False) -> Agent:
        """Return the engine that produces the agent's tokens, for `rows` dialogues at a time; close it afterwards.

        With `singly` an engine in this process is asked prompt by prompt where it can be (on a GPU), so that dialogues
        do not wait for each other.
        """
        engine, model, adapter = self.engine, self.model, self.adapter
        if engine.kind == "transformers":
            from sweetrl.engines.stream import Stream
            from sweetrl.engines.transformers import TransformersEngine

            how = (model.dtype, model.device, model.threads, rows)
            more: dict[str, Any] = {"chat_options": model.chat_options, "quantization": model.quantization}
            local = TransformersEngine(model.base, adapter, *how, **more)
            return Agent(Stream(local) if singly and local.slotted else local, local.chat)
        if engine.kind == "vllm":
            from sweetrl.engines.vllm import VllmEngine
            from sweetrl.models.load import load_tokenizer, vocabulary_of

            tokenizer, adapter = load_tokenizer(model.base), None if self.full else adapter
            remote = VllmEngine(engine, tokenizer, adapter, vocabulary_of(model.base), model.chat_options)
            return Agent(remote, remote.chat)
        if adapter is not None:
            raise UserError(
                f"engine openai: the adapter {adapter} cannot be loaded through chat completions; set `engine.kind: "
                "vllm`, or serve the trained model under a name of its own and evaluate that with `sweetrl evaluate "
                "--tasks`."
            )
        return Agent(OpenAIEngine(engine, model.template_options), None)


@contextmanager
def watched(
    engine: EngineSettings, model: ModelSettings, log: Path, rank: int = 16
) -> Iterator[tuple[EngineSettings, Callable[[], bool]]]:
    """Yield `engine` with a server behind it, and a function: whether a server of our own has ended for good.

    vllm without `urls` gets one for as long as this lasts. `log` is the file of its output, `rank` the largest rank of
    the adapters that it must load.
    """
    if engine.kind != "vllm" or engine.addresses:
        yield engine, lambda: False
        return
    from sweetrl.engines.vllm_server import ManagedServer, free_port, gpus_of, vllm_command

    folder = Path(model.base)
    check_weights(folder)  # vLLM has rules of its own
    port = free_port()
    command = vllm_command(
        engine.command,
        f"--dtype {model.dtype} {'--quantization bitsandbytes ' * (model.quantization == 'nf4')}{engine.arguments}",
        str(folder.resolve()) if folder.is_dir() else model.base,
        port,
        SERVED,
        rank,
    )
    gpus = engine.gpus or gpus_of(command)
    # Its own last words are "Engine core initialization failed", after an assertion without a message.
    advice = "vLLM's kernels for adapters on a GPU take half precision only: set `model.dtype: bfloat16`"
    with closing(ManagedServer(command, port, log)) as server:
        server.wait_ready(engine.start_seconds, advice if gpus and model.dtype == "float32" else "")
        served = engine.model_copy(update={"urls": server.url, "model": SERVED, "gpus": gpus})
        yield served, lambda: server.given_up


def adapter_lora_rank(adapter: Path) -> int:
    """Return the rank of a LoRA adapter, 16 for full weights; UserError where there is neither."""
    return 16 if is_full(adapter) else int(check_adapter(adapter)["r"])
