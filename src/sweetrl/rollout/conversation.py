"""One dialogue with an agent from outside: any program that turns the user's words into a reply.

env = sweetrl.domain("backend")
with sweetrl.opened(env) as world:
    talk = world.begin(next(env.tasks("test", 1, seed=7, difficulty=3)))
    words = talk.request
    while words is not None:
        words = talk.say(my_agent(talk.system, talk.messages))
    print(talk.score().reward)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sweetrl.rollout.dialogue import Dialogue
from sweetrl.rollout.scored import scored
from sweetrl.types import Completion, Message, Outcome, Trajectory

if TYPE_CHECKING:
    from sweetrl.protocols import Scorer


class Conversation:
    """A dialogue of `OpenEnvironment.begin`: `say` takes the agent's replies until it returns None, then `score`."""

    def __init__(self, dialogue: Dialogue, scorer: Scorer, agent: str = "") -> None:
        self._dialogue, self._scorer, self._agent = dialogue, scorer, agent
        self._scored: Trajectory | None = None

    @property
    def system(self) -> str:
        """The agent's system prompt."""
        return self._dialogue.texts[0][1]

    @property
    def request(self) -> str:
        """The user's request, which opens the dialogue."""
        return self._dialogue.task.problem_description

    @property
    def messages(self) -> tuple[Message, ...]:
        """What both sides have seen so far, from the user's request on."""
        return self._dialogue.environment.messages

    @property
    def done(self) -> bool:
        """Whether the dialogue has ended."""
        return self._dialogue.done

    @property
    def outcome(self) -> Outcome | None:
        """How the dialogue ended; None while it goes on."""
        return self._dialogue.environment.outcome

    def say(self, reply: str) -> str | None:
        """Take the agent's reply; return what the user says to it, or None where the dialogue ends.

        Raises RuntimeError after the end.
        """
        self._dialogue.take(Completion((), (), reply, "stop"))
        if not self.done:
            self._dialogue.ask()
        return None if self.done else self.messages[-1].content

    def score(self) -> Trajectory:
        """Return the ended dialogue with its reward (None where it was lost). RuntimeError while it goes on."""
        if not self.done:
            raise RuntimeError(f"the dialogue about task {self._dialogue.task.id!r} goes on; it is scored at its end")
        if self._scored is None:
            self._scored = scored([self._dialogue.close(self._agent)], self._scorer)[0]
        return self._scored
