"""A dialogue with the agent in which whoever reads the page is the user: what `sweetrl play` does at a terminal.

One dialogue at a time, in a thread of its own; beginning another one ends it. Protocol, token ids and scoring are those
of training and evaluation.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweetrl.cli.play import find_task, load_agent
from sweetrl.colbench.find import load_domain
from sweetrl.errors import SimulatorError, UserError
from sweetrl.types import AgentTurn, Message, Task, Trajectory
from sweetrl.viewer.dialogue import plain

if TYPE_CHECKING:
    from sweetrl.colbench.domain import Domain
    from sweetrl.config.settings import Settings
    from sweetrl.viewer.heat import Heat

logger = logging.getLogger("sweetrl")

LEFT = "you left the dialogue"


@dataclass
class PageUser:
    """The user's side of one dialogue: what the agent said is put into `said`, the answer is waited for."""

    said: list[Message]
    tell: Any
    answers: queue.SimpleQueue[str | None] = field(default_factory=queue.SimpleQueue)

    name = "human"
    serial = True

    def reply(self, task: Task, messages: Sequence[Message], seed: int) -> str:
        """Show the agent's words and return what is typed in the page; SimulatorError when the dialogue is left."""
        self.tell(messages)
        answer = self.answers.get()
        if answer is None:
            raise SimulatorError(LEFT)
        return answer


class Live:
    """The dialogue that is under way, if any. `heat` gives advantages where a critic is at hand."""

    def __init__(self, settings: Settings, tasks: Path | None, heat: Heat | None) -> None:
        self.settings, self.tasks, self.heat = settings, tasks, heat
        self._lock = threading.Lock()
        self._state: dict[str, Any] = {"status": "none"}
        self._user: PageUser | None = None
        self._number = 0

    def state(self) -> dict[str, Any]:
        """Return the dialogue as it stands; `status` is none, loading, thinking, waiting, done or lost."""
        with self._lock:
            return dict(self._state)

    def begin(self, reference: str, policy: str, seed: int) -> dict[str, Any]:
        """Begin a dialogue about the task called `reference` with the agent `policy` (as `sweetrl play` takes them)."""
        domain = load_domain(self.settings)
        task = find_task(reference, self.tasks, domain)
        agent = load_agent(policy, self.settings)
        with self._lock:
            self._end()  # not before: of two who begin at once one would wait for ever
            self._number += 1
            number = self._number
            user = self._user = PageUser([], lambda messages: self._heard(number, domain, task, messages))
            self._state = {
                "status": "loading",
                "policy": policy,
                "agent": agent.name,
                "max_turns": self.settings.agent.max_turns,
                "dialogue": plain(_so_far(task, [Message("user", task.problem_description)]), domain),
                "advantages": [],
                "error": "",
            }
        work = (number, domain, task, agent, user, seed)
        threading.Thread(target=self._run, args=work, name="live-dialogue", daemon=True).start()
        return self.state()

    def say(self, words: str) -> dict[str, Any]:
        """Give the user's answer; UserError where nobody waits for one."""
        with self._lock:
            if self._state["status"] != "waiting" or self._user is None:
                raise UserError("nobody waits for an answer: the agent is thinking, or the dialogue is over.")
            dialogue = self._state["dialogue"]
            said = {"role": "user", "pieces": [("", words)]}
            messages = [*dialogue["messages"], said]
            self._state |= {"status": "thinking", "dialogue": {**dialogue, "messages": messages}}
            self._user.answers.put(words)
        return self.state()

    def leave(self) -> dict[str, Any]:
        """End the dialogue, if one is under way."""
        with self._lock:
            self._end()
        return self.state()

    def _end(self) -> None:
        """Tell the user of the dialogue under way that they have left; for whoever has the lock."""
        if self._user is not None:
            self._user.answers.put(None)
            self._user = None

    def _run(self, number: int, domain: Domain, task: Task, agent: Any, user: PageUser, seed: int) -> None:
        from sweetrl.api import rollouts

        try:
            with rollouts.opened(domain) as environment, rollouts.serving([agent], None) as (served,):
                self._change(number, status="thinking")
                one = rollouts.attempt_one(replace(environment, simulator=user), served, task, seed)
            advantages = self._advantages(one)
            status = "lost" if one.outcome == "lost" else "done"
            self._change(number, status=status, dialogue=plain(one, domain), advantages=advantages, error=one.error)
        except UserError as error:
            self._change(number, status="lost", error=str(error))
        except Exception:
            logger.exception("the live dialogue failed")
            self._change(number, status="lost", error="the dialogue failed; the server's log says why")
        finally:
            with self._lock:
                if self._number == number:
                    self._user = None

    def _heard(self, number: int, domain: Domain, task: Task, messages: Sequence[Message]) -> None:
        one = _so_far(task, messages)
        self._change(number, status="waiting", dialogue=plain(one, domain), advantages=self._advantages(one))

    def _advantages(self, one: Trajectory) -> list[float]:
        if self.heat is None or not self.heat.there or not one.turns:
            return []
        with suppress(UserError):
            return self.heat.advantages(one)
        return []

    def _change(self, number: int, **values: Any) -> None:
        with self._lock:
            if self._number == number:
                self._state = {**self._state, **values}


def _so_far(task: Task, messages: Sequence[Message]) -> Trajectory:
    """An unfinished dialogue; its turns have no token ids yet."""
    turns = [AgentTurn(index, one.content) for index, one in enumerate(messages) if one.role == "assistant"]
    return Trajectory(task, 0, tuple(messages), tuple(turns), outcome="lost", simulator=PageUser.name)
