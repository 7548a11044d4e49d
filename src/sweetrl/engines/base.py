"""The one protocol between whoever needs tokens and whoever produces them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable


class EngineError(Exception):
    """One reply could not be had, and the message says why: this dialogue is lost, others go on."""


class NoRoom(EngineError):
    """The prompt leaves no room for a reply in the model's context; asking again changes nothing."""


# A message's content: a text, or texts and pictures (PNG) in order; pictures are for engines that say they take them.
Content = str | tuple[str | bytes, ...]


@dataclass(frozen=True)
class Prompt:
    """A prompt as token ids, and the seed that decides everything random about its completions.

    Equal (engine, prompt, sampling) gives equal completions, whatever else is in the batch. `messages` are the same
    prompt as (role, content) pairs, for engines that take text only. Prompts of equal `group` begin alike: an engine
    with several servers sends them to the same one, where the beginning is cached.
    """

    token_ids: tuple[int, ...]
    seed: int
    messages: tuple[tuple[str, Content], ...] = ()
    group: str = ""


@dataclass(frozen=True)
class Sampling:
    """How to sample. temperature 0 means greedy. `n` completions are drawn for each prompt.

    A reply ends (finish_reason "stop") with the model's own ends and with any of `stop_ids`, which is its last id then;
    an engine that takes text only refuses those. It is broken off ("length") after `max_new_tokens`, or where the
    context is full.
    """

    max_new_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    n: int = 1
    stop_ids: tuple[int, ...] = ()


@dataclass(frozen=True)
class Completion:
    """One sampled reply: ids as sampled (an end-of-turn id included), log-probs at temperature 1, text without it.

    An engine that knows only text leaves ids and log-probs empty. `prompt_tokens` and `generated_tokens` are what a
    server says it has read and written for this reply (0: not told; with n > 1 the prompt counts once, with the first).
    `cached_tokens` of the prompt were not computed again. `busy` is this reply's share of the engine's busy seconds:
    what is under way together shares the time. What a reply cost is no part of what it is: the last two do not count
    when completions are compared.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    text: str
    finish_reason: Literal["stop", "length"]
    prompt_tokens: int = 0
    generated_tokens: int = 0
    cached_tokens: int = field(default=0, compare=False)
    busy: float = field(default=0.0, compare=False)


@dataclass(frozen=True)
class Usage:
    """Tokens and time spent so far by an engine.

    `seconds` is the time in which the engine was at work on at least one reply. Of `requests` to servers `retries` were
    repetitions after a fault; `failures` replies could not be had at all. What a fault cost is part of `requests` and
    `seconds`, and of no tokens.
    `devices` accelerators work for the engine (0 on CPUs).
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    seconds: float = 0.0
    requests: int = 0
    retries: int = 0
    failures: int = 0
    devices: int = 0

    @property
    def gpu_seconds(self) -> float:
        """Accelerators times busy seconds; 0 on CPUs."""
        return self.devices * self.seconds


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


@runtime_checkable
class AsyncEngine(Protocol):
    """Produces tokens for each prompt on its own, many at once: a server, or a batch engine behind a bridge.

    `speaks_tokens` says whether completions hold token ids; where not, prompts need `messages`.
    """

    name: str
    speaks_tokens: bool

    async def ask(self, prompt: Prompt, sampling: Sampling) -> list[Completion]:
        """Return `sampling.n` completions of one prompt; may be awaited in any event loop.

        Raises EngineError where they cannot be had (NoRoom: the context is full), UserError for what the user must
        mend before anybody gets a reply.
        """
        ...

    def usage(self) -> Usage:
        """What this engine has spent since it was made."""
        ...

    def close(self) -> None:
        """Free everything; the engine is not used afterwards."""
        ...
