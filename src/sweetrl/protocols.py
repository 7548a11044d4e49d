"""What plays a part in a dialogue or in learning from it, as protocols: anything with these methods will do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from sweetrl.types import Completion, Content, Message, Prompt, Reply, Sampling, Score, Task, Trajectory, Usage

# Who speaks


class UserSimulator(Protocol):
    """Plays the user of a task: sees the hidden reference and must never hand it over.

    class Terse:
        name = "terse"

        def reply(self, task, messages, seed):
            return "Seven." if "rate" in messages[-1].content else "I do not know."
    """

    name: str

    def reply(self, task: Task, messages: Sequence[Message], seed: int) -> str:
        """Return the user's reply to the last of `messages` (the agent's), a function of the arguments alone.

        `messages` starts with the user's request; `seed` decides everything random. Raises SimulatorError where there
        is no reply, and UserLeft to end the dialogue without another word. May be called from several threads.

        A simulator may say more of itself: `instant` (it answers at once, without waiting for anything), `serial` (it
        has one dialogue at a time), `checked` (what it says is searched for leaks).
        """
        ...


@runtime_checkable
class AsyncUserSimulator(UserSimulator, Protocol):
    """A user who takes time: many dialogues wait for them at once."""

    async def answer(self, task: Task, messages: Sequence[Message], seed: int) -> str:
        """As UserSimulator.reply; may be awaited in any event loop."""
        ...


class Speaker(Protocol):
    """A language model that follows an instruction."""

    name: str

    async def say(self, instruction: Content, seed: int) -> str:
        """Return the model's words; SimulatorError where there are none to be had."""
        ...


# Who produces tokens


class Sampler(Protocol):
    """Samples; what an engine and its sessions have in common."""

    def sample(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[list[Completion]]:
        """Return `sampling.n` completions for each prompt, in order.

        A prompt that leaves no room in the model's context gets completions without tokens (finish_reason "length").
        """
        ...


class Accounted(Protocol):
    """What every engine has: a name, an account of what it has spent, and an end."""

    name: str

    def usage(self) -> Usage:
        """What this engine has spent since it was made."""
        ...

    def close(self) -> None:
        """Free everything; the engine is not used afterwards."""
        ...


class Engine(Sampler, Accounted, Protocol):
    """Produces tokens for many prompts at once."""

    def session(self) -> Sampler:
        """Return a sampler for calls that belong together: it may keep what it computed and reuse it for prompts that
        begin like earlier ones (the next turn of a dialogue). Results equal those of `sample` up to rounding, and are a
        function of the session's calls alone: a session is the unit of determinism.
        """
        ...


@runtime_checkable
class AsyncEngine(Accounted, Protocol):
    """Produces tokens for each prompt on its own, many at once: a server, or an engine of this process (Stream).

    `speaks_tokens` says whether completions hold token ids; where not, prompts need `messages`.
    """

    speaks_tokens: bool

    async def ask(self, prompt: Prompt, sampling: Sampling) -> list[Completion]:
        """Return `sampling.n` completions of one prompt (fewer where a server withholds some); for any event loop.

        Raises EngineError where they cannot be had (NoRoom: the context is full), UserError for what the user must
        fix before anybody gets a reply.
        """
        ...


class Chat(Protocol):
    """How dialogues become token ids (sweetrl.engines.chat.ChatFormat)."""

    def open(self, system: str | None, request: str) -> tuple[int, ...]:
        """Ids up to and including the first assistant header."""
        ...

    def begin(self, system: str | None, request: str) -> Any:
        """The prompts of a dialogue, one after the other (sweetrl.engines.chat.Prompts)."""
        ...

    def follow(self, ended: bool, words: str) -> tuple[int, ...]:
        """Ids from a reply up to and including the next assistant header, where the template only appends."""
        ...

    def reply(self, text: str) -> tuple[int, ...]:
        """Ids of a reply given as text, with the end of the turn."""
        ...

    def plain(self, words: str) -> tuple[int, ...]:
        """Ids of words alone."""
        ...


# Who judges


class RewardFunction(Protocol):
    """A reward: a plain function of a task and a finished dialogue.

    def brief(task, dialogue):
        return {"tests": dialogue.reward, "brevity": 0.1 * (len(dialogue.turns) <= 3)}

    A dict names the parts of the reward, which is their sum.
    """

    def __call__(self, task: Task, dialogue: Trajectory) -> float | Mapping[str, float]:
        """Return the reward of `dialogue`."""
        ...


class Scorer(Protocol):
    """Scores finished dialogues; one with a true `thread_safe` may be called by several threads at the same time."""

    def score(self, dialogues: Sequence[Trajectory]) -> list[Score]:
        """Return one score for each dialogue, in order."""
        ...


Replies = Sequence[Sequence[Reply]]  # for each agent turn of a dialogue the candidates in the reply's place
Work = tuple[Trajectory, Replies]


class Critic(Protocol):
    """Gives candidate replies an advantage (sweetrl.sweet.critic has several)."""

    def rate(self, work: Sequence[Work]) -> list[list[list[float]]]:
        """Return for each dialogue, turn and candidate its advantage; only their order at one state matters.

        A dialogue may have more turns than there are candidates for; the rest are not looked at.
        """
        ...


Tools = Any  # what a domain needs while dialogues go on (a sandbox, a browser), as its `open` yields it
