"""An agent: a base model with or without an adapter, in this process or at a server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sweetrl.config.settings import EngineSettings, ModelSettings, section
from sweetrl.engines.make import Agent, adapter_lora_rank, make_agent, serving


@dataclass(frozen=True)
class Policy:
    """An agent that can be asked for replies.

        policy = Policy.load("models/base")                          # in this process, with transformers
        policy = Policy.load("models/base", adapter="models/policy")
        policy = Policy.server("http://localhost:8000/v1", model="my-model")

    Nothing is loaded, and no server asked, before the agent is.
    """

    model: ModelSettings = field(default_factory=ModelSettings)
    engine: EngineSettings = field(default_factory=EngineSettings)
    adapter: Path | None = None

    @classmethod
    def load(cls, model: str | Path = "models/base", adapter: str | Path | None = None, **options: Any) -> Policy:
        """Return the agent in a model's folder (or under a hub's name); `options` are those of section `model`.

        Nothing is loaded before the agent is asked.
        """
        return cls(section(ModelSettings, {**options, "base": str(model)}, "Policy.load"), adapter=_path(adapter))

    @classmethod
    def server(cls, *urls: str, model: str = "", adapter: str | Path | None = None, **options: Any) -> Policy:
        """Return the agent at servers of one model; `options` are those of section `engine` (`kind: openai`)."""
        values = {"kind": "openai", **options, "urls": " ".join(urls), "model": model}
        return cls(engine=section(EngineSettings, values, "Policy.server"), adapter=_path(adapter))

    @property
    def name(self) -> str:
        """What dialogues call the agent: its base (or the served model), and the adapter's folder."""
        base = self.engine.model if self.engine.kind == "openai" else self.model.base
        return base if self.adapter is None else f"{base}+{self.adapter}"

    def adapted(self, adapter: str | Path | None) -> Policy:
        """Return the same agent with another adapter."""
        return replace(self, adapter=_path(adapter))

    @property
    def lora_rank(self) -> int:
        """The rank of the agent's adapter; 16 without one."""
        return 16 if self.adapter is None else adapter_lora_rank(self.adapter)

    @contextmanager
    def serving(self, log: Path, lora_rank: int | None = None) -> Iterator[Policy]:
        """Yield the agent with a server behind it where it needs one of its own; `log` takes the server's output.

        `lora_rank` is that of the largest adapter to be loaded; by default the agent's own.
        """
        with serving(self.engine, self.model, log, lora_rank or self.lora_rank) as engine:
            yield replace(self, engine=engine)

    def open(self, rows: int = 256) -> Agent:
        """Return the engine that produces the agent's tokens, for `rows` dialogues at a time; close it afterwards."""
        return make_agent(self.engine, self.model, self.adapter, rows)


def _path(adapter: str | Path | None) -> Path | None:
    return None if adapter is None else Path(adapter)
