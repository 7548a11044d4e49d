"""Who plays the person: the protocol every human simulator follows, one that replays recorded dialogues, and the prompt
that makes a language model one.

A simulator knows the hidden reference (Task.ground_truth) and must never hand it over; what it says is all that the
agent learns about it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from sweetrl.colbench.prompts import render
from sweetrl.colbench.types import Message, Task, Trajectory


class SimulatorError(Exception):
    """The person cannot reply (a server failed, a recording ends): this dialogue is lost, others go on."""


class Simulator(Protocol):
    """Plays the person of a task."""

    name: str

    def reply(self, task: Task, messages: Sequence[Message], seed: int) -> str:
        """Return the person's reply to the last of `messages` (the agent's), a function of the arguments alone.

        `messages` starts with the person's request; `seed` decides everything random. Raises SimulatorError where
        there is no reply. May be called from several threads.
        """
        ...


class ReplaySimulator:
    """Says what the person said in recorded trajectories, as long as the agent says the same again.

    For running an imported dialogue again: in tests, for demonstrations, or to score it as if it were new.
    """

    name = "replay"

    def __init__(self, trajectories: Iterable[Trajectory]) -> None:
        # Keyed by the whole dialogue, so that several attempts at one task replay side by side. Where two attempts
        # heard different replies to the same words, the first one recorded is taken.
        self._replies: dict[tuple[str, tuple[Message, ...]], str] = {}
        for trajectory in trajectories:
            for index, message in enumerate(trajectory.messages):
                if index > 0 and message.role == "user":
                    self._replies.setdefault((trajectory.task.id, trajectory.messages[:index]), message.content)

    def reply(self, task: Task, messages: Sequence[Message], seed: int) -> str:
        """Return the recorded reply to exactly these messages; SimulatorError where there is none."""
        try:
            return self._replies[task.id, tuple(messages)]
        except KeyError:
            raise SimulatorError(
                f"task {task.id!r}: no recorded reply after {len(messages)} messages; the agent has left the recording"
            ) from None


def simulator_prompt(task: Task, messages: Sequence[Message], template: str = "backend_simulator") -> str:
    """Return the instruction that makes a language model play the person of `task` at this point of the dialogue.

    `template` is a shipped prompt's name or a file of your own with {request}, {reference} and {dialogue} in it. The
    result holds the reference: it is for the simulator's model and nobody else.
    """
    speaker = {"user": "Person", "assistant": "Assistant", "system": "System"}
    dialogue = "\n".join(f"{speaker[message.role]}: {message.content}" for message in messages)
    return render(template, request=task.problem_description, reference=task.ground_truth, dialogue=dialogue)
