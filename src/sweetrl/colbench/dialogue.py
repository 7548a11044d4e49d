"""One dialogue between an agent and a user, by ColBench's official protocol.

The user's request opens it. Each agent reply is read as sweetrl.colbench.markers says: one with the marker ends the
dialogue, and the last turn's (10) does in any case, when the whole visible reply is the answer. Otherwise the user
replies, cut at so many characters (officially 400; of pages 1000). A domain may have another idea of what ends a
dialogue and of what its answer is (`Domain.answers`, `Domain.final_answer`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sweetrl.errors import SimulatorError, UserError, UserLeft
from sweetrl.protocols import UserSimulator
from sweetrl.seeds import simulator_seed
from sweetrl.types import ANSWER_MARKER, Message, Outcome, Task

if TYPE_CHECKING:
    from sweetrl.colbench.domain import Domain


def converse(
    act: Callable[[Task, Sequence[Message]], str], user: UserSimulator, task: Task, max_turns: int, seed: int
) -> tuple[Message, ...]:
    """Let an agent that says when it answers talk with a user; return the dialogue."""
    messages = [Message("user", task.problem_description)]
    for _ in range(max_turns):
        messages.append(Message("assistant", act(task, messages)))
        if ANSWER_MARKER in messages[-1].content:
            break
        messages.append(Message("user", user.reply(task, messages, seed)))
    return tuple(messages)


@dataclass(eq=False)
class Environment:
    """One dialogue about `task`: `step` takes the agent's raw replies until `done`.

    Where the user takes time, `say` takes the agent's reply alone, and `hear`, `leave` or `lose` ends the turn.

    `simulator` plays the user; its replies are cut at `reply_characters`. `seed` decides everything random about them:
    turn t gets a seed derived from (seed, t). A user who cannot reply (SimulatorError) loses the dialogue: `outcome` is
    "lost" and `error` says why.
    """

    task: Task
    domain: Domain
    simulator: UserSimulator
    max_turns: int = 10
    reply_characters: int = 400
    seed: int = 0
    turn: int = field(default=0, init=False)
    error: str = field(default="", init=False)
    answer: str | None = field(default=None, init=False)
    """The agent's answer; None while the dialogue goes on, where it was lost, and where there is none."""
    outcome: Outcome | None = field(default=None, init=False)
    """How the dialogue ended; None while it goes on."""

    def __post_init__(self) -> None:
        self._messages = [Message("user", self.task.problem_description)]

    @property
    def messages(self) -> tuple[Message, ...]:
        """The dialogue so far as both sides see it, starting with the user's request; the agent's observation."""
        return tuple(self._messages)

    @property
    def done(self) -> bool:
        """Whether the dialogue has ended."""
        return self.outcome is not None

    @property
    def user_seed(self) -> int:
        """The seed of the user's turn that is next."""
        return simulator_seed(self.seed, self.turn)

    def step(self, raw_reply: str) -> None:
        """Take the agent's next raw reply, and the user's reply to it unless the dialogue ends; raises as `say`."""
        self.say(raw_reply)
        if not self.done:
            self.ask()

    def ask(self) -> None:
        """Let the user reply, here and now."""
        try:
            self.hear(self.simulator.reply(self.task, self.messages, self.user_seed))
        except SimulatorError as error:
            self.lose(str(error))
        except UserLeft:
            self.leave()

    def say(self, raw_reply: str) -> None:
        """Take the agent's next raw reply; unless the dialogue is `done` now, the user is next.

        Raises RuntimeError if the dialogue has ended before, or if it is the user's turn.
        """
        if self.done or self._messages[-1].role != "user":
            why = "has ended" if self.done else "waits for the user, not for the agent"
            raise RuntimeError(f"the dialogue about task {self.task.id!r} {why}")
        self.turn += 1
        visible = self.domain.visible(raw_reply)
        self._messages.append(Message("assistant", visible))
        answers = self.domain.answers(visible)
        if answers or self.turn >= self.max_turns:
            self._finish("answered" if answers else "max_turns_reached")

    def retell(self, visible: str, words: str) -> None:
        """Take over a turn of an earlier dialogue word for word: what the user saw of a reply, and said to it."""
        self.turn += 1
        self._messages += [Message("assistant", visible), Message("user", words)]

    def hear(self, words: str) -> None:
        """Take the user's reply, cut as the protocol says; a UserError for what is no text.

        Half of a surrogate pair, which no file can hold, becomes a question mark.
        """
        if not isinstance(words, str):
            raise UserError(
                f"task {self.task.id}: the user simulator `{self.simulator.name}` returned {repr(words)[:80]}; its "
                "`reply` must return a text."
            )
        words = words[: self.reply_characters].encode("utf-8", "replace").decode("utf-8")
        self._messages.append(Message("user", words))

    def leave(self) -> None:
        """End the dialogue because the user has left: what the agent said last was its last word."""
        self._finish("user_left")

    def lose(self, cause: str) -> None:
        """End the dialogue without an answer, because of `cause`."""
        self.outcome, self.error = "lost", cause

    def _finish(self, outcome: Outcome) -> None:
        self.answer = self.domain.final_answer(self._messages)
        self.outcome = outcome
