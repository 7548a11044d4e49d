"""The settings of model servers: the agent's engine and the language model behind the user."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from sweetrl.sections import Positive, Rate, Section


class ServerSettings(Section):
    """How servers are reached, and how patiently."""

    urls: str = Field(
        "",
        description="Base URLs of the servers, as in `http://localhost:8000/v1`, separated by spaces; all serve the "
        "same model and are balanced by outstanding requests.",
    )
    model: str = Field("", description="The model's name at the server (vllm: empty takes the first one there).")
    key_variable: str = Field(
        "OPENAI_API_KEY", description="Environment variable with the server's key; unset or empty if there is none."
    )
    concurrency: Positive = Field(64, description="Concurrent requests, all servers together.")
    timeout_seconds: Rate = Field(300.0, description="Time-out of one attempt at a reply.")
    attempts: Positive = Field(12, description="Attempts at one reply; then its dialogue (`rank`: its state) is lost.")
    budget_seconds: Rate = Field(1800.0, description="Time-out of all attempts at one reply.")
    backoff_seconds: Rate = Field(
        0.5, description="Longest first wait before a retry; it doubles, up to 60 s. Retry-After is obeyed."
    )
    gpus: int = Field(
        0,
        ge=0,
        description="GPUs behind all these servers together, for the account of GPU-seconds; 0: none, or not yours. A "
        "server that the stage starts itself is counted without it.",
    )


class EngineSettings(ServerSettings):
    """Who produces the agent's tokens in `collect`, `rank` and `evaluate`."""

    kind: Literal["transformers", "vllm", "openai"] = Field(
        "transformers",
        description="`transformers`: in this process. `vllm`: a vLLM server, by token ids, adapters included. "
        "`openai`: any chat completions server; text only, so no token ids, log-probs or adapters.",
    )
    command: str = Field(
        "vllm serve {model}",
        description="vllm without `urls`: the command that starts a server of `model.base` ({model}) for the stage; it "
        "gets `arguments` and what sweetrl needs (port, name, adapters) behind it.",
    )
    arguments: str = Field("--enforce-eager", description="Further arguments of that program.")
    start_seconds: Rate = Field(900.0, description="How long that server may take to start.")


class UserServerSettings(ServerSettings):
    """The language model behind the user (kind: llm), at a chat completions server."""

    max_new_tokens: Positive = Field(256, description="Token limit of the user's reply, before it is cut.")
    temperature: float = Field(0.0, ge=0.0, description="Sampling temperature of the user (official: 0).")
