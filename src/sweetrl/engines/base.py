"""The one protocol between whoever needs tokens and whoever produces them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol


@dataclass(frozen=True)
class Prompt:
    """A prompt as token ids, and the seed that decides everything random about its completions.

    Equal (engine, prompt, sampling) gives equal completions, whatever else is in the batch.
    """

    token_ids: tuple[int, ...]
    seed: int


@dataclass(frozen=True)
class Sampling:
    """How to sample. temperature 0 means greedy. `n` completions are drawn for each prompt."""

    max_new_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    n: int = 1


@dataclass(frozen=True)
class Completion:
    """One sampled reply: ids as sampled (an end-of-turn id included), log-probs at temperature 1, text without it."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    text: str
    finish_reason: Literal["stop", "length"]


@dataclass(frozen=True)
class Usage:
    """Tokens and time spent so far by an engine."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    seconds: float = 0.0


class Sampler(Protocol):
    """Samples; what an engine and its sessions have in common."""

    def sample(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[list[Completion]]:
        """Return `sampling.n` completions for each prompt, in order.

        A prompt that leaves no room in the model's context gets completions without tokens (finish_reason "length").
        """
        ...


class Engine(Sampler, Protocol):
    """Produces tokens for many prompts at once."""

    name: str

    def session(self) -> Sampler:
        """Return a sampler for calls that belong together: it may keep what it computed and reuse it for prompts that
        begin like earlier ones (the next turn of a dialogue). Results equal those of `sample` up to rounding, and are a
        function of the session's calls alone: a session is the unit of determinism.
        """
        ...

    def usage(self) -> Usage:
        """What this engine has spent since it was made."""
        ...

    def close(self) -> None:
        """Free everything; the engine is not used afterwards."""
        ...
