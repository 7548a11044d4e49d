"""One dialogue between an agent and a person, by ColBench's official protocol.

The person's request opens it. Each agent reply is read like this (the official rules, to the letter):
- with an "OUTPUT:" in it, the person sees what stands after the first one, up to a second one if there is one; what
  stands before is the agent's own thought. Without one the person sees the whole reply. Nothing is stripped.
- if what the person sees holds "I WANT TO ANSWER:", the dialogue ends, and the answer is what follows the first one,
  up to a second one if there is one.
- at the last round (10) the dialogue ends in any case: without the marker the whole visible reply is the answer.
Otherwise the person replies, cut at 400 characters. Markers are case-sensitive; one inside the thought does not count.
Where a page is designed (suite frontend) all this holds but the answer: it is the last page that any reply held, marker
or not (see sweetrl.colbench.pages), and replies are cut at 1000 characters.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from sweetrl.colbench.pages import last_page
from sweetrl.colbench.simulators import Simulator, SimulatorError
from sweetrl.colbench.types import ANSWER_MARKER, OUTPUT_MARKER, Message, Outcome, Suite, Task


def visible_reply(raw: str) -> str:
    """Return what the person sees of a raw reply: the text between the first and the second "OUTPUT:", or all of it."""
    parts = raw.split(OUTPUT_MARKER, 2)
    return parts[1] if len(parts) > 1 else raw


def marked_answer(visible: str) -> str | None:
    """Return what follows "I WANT TO ANSWER:" (up to a second one), or None where the reply does not answer."""
    parts = visible.split(ANSWER_MARKER, 2)
    return parts[1] if len(parts) > 1 else None


def outcome_of(messages: Sequence[Message]) -> Outcome:
    """How a finished dialogue ended: the agent answered, was made to at the last round, or the dialogue broke off."""
    if not messages or messages[-1].role != "assistant":
        return "lost"
    return "out_of_rounds" if marked_answer(messages[-1].content) is None else "answered"


def final_answer(messages: Sequence[Message], suite: Suite) -> str | None:
    """Return the answer of a dialogue that ends with the last of `messages`; None where a page is missing."""
    if suite == "frontend":
        return last_page(messages)
    visible = messages[-1].content
    answer = marked_answer(visible)
    return visible if answer is None else answer


class Environment:
    """One dialogue about `task`: `step` takes the agent's raw replies until `done`.

    Where the person takes time, `say` takes the agent's reply alone, `turn_seed(seed, round)` is the person's seed, and
    `hear` or `lose` ends the turn.

    `simulator` plays the person; its replies are cut at `reply_characters`. `seed` decides everything random about
    them: turn t gets a seed derived from (seed, t). A person who cannot reply (SimulatorError) loses the dialogue:
    `outcome` is "lost" and `error` says why.
    """

    def __init__(
        self, task: Task, simulator: Simulator, rounds: int = 10, reply_characters: int = 400, seed: int = 0
    ) -> None:
        if rounds < 1 or reply_characters < 1:
            raise ValueError(f"rounds ({rounds}) and reply_characters ({reply_characters}) must be at least 1")
        self.task = task
        self.simulator = simulator
        self.rounds = rounds
        self.reply_characters = reply_characters
        self.seed = seed
        self.round = 0
        self.error = ""
        self._messages = [Message("user", task.problem_description)]
        self._answer: str | None = None
        self._outcome: Outcome | None = None

    @property
    def messages(self) -> tuple[Message, ...]:
        """The dialogue so far as both sides see it, starting with the person's request; the agent's observation."""
        return tuple(self._messages)

    @property
    def done(self) -> bool:
        """Whether the dialogue has ended."""
        return self._outcome is not None

    @property
    def answer(self) -> str | None:
        """The agent's answer; None while the dialogue goes on, where it was lost, and where no page was shown."""
        return self._answer

    @property
    def outcome(self) -> Outcome | None:
        """How the dialogue ended; None while it goes on."""
        return self._outcome

    def step(self, raw_reply: str) -> None:
        """Take the agent's next raw reply, and the person's reply to it unless the dialogue ends.

        Raises RuntimeError if the dialogue has ended before.
        """
        self.say(raw_reply)
        if self.done:
            return
        try:
            reply = self.simulator.reply(self.task, self.messages, turn_seed(self.seed, self.round))
        except SimulatorError as error:
            self.lose(str(error))
            return
        self.hear(reply)

    def say(self, raw_reply: str) -> None:
        """Take the agent's next raw reply; unless the dialogue is `done` now, the person is next.

        Raises RuntimeError if the dialogue has ended before, or if it is the person's turn.
        """
        if self.done:
            raise RuntimeError(f"the dialogue about task {self.task.id!r} has ended; make a new Environment")
        if self._messages[-1].role != "user":
            raise RuntimeError(f"the dialogue about task {self.task.id!r} waits for the person, not for the agent")
        self.round += 1
        visible = visible_reply(raw_reply)
        self._messages.append(Message("assistant", visible))
        if marked_answer(visible) is not None or self.round >= self.rounds:
            self._answer = final_answer(self._messages, self.task.suite)
            self._outcome = outcome_of(self._messages)

    def hear(self, reply: str) -> None:
        """Take the person's reply, cut as the protocol says."""
        self._messages.append(Message("user", reply[: self.reply_characters]))

    def lose(self, cause: str) -> None:
        """End the dialogue without an answer, because of `cause`."""
        self._outcome, self.error = "lost", cause


def turn_seed(seed: int, turn: int) -> int:
    """Return the person's seed (63 bits) for turn `turn` (from 1) of a dialogue with `seed`; stable everywhere."""
    return int.from_bytes(hashlib.sha256(f"person:{seed}:{turn}".encode()).digest()[:8], "big") >> 1
