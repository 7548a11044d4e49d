"""Recorded answers of users: kept as they come, found again word for word."""

from __future__ import annotations

from pathlib import Path

import pytest

from sweetrl.colbench.simulators import LlmSimulator, RecordedSimulator, Recording, is_recording
from sweetrl.domains.backend import Backend
from sweetrl.errors import SimulatorError, UserError
from sweetrl.types import Message, Task

BACKEND = Backend()
TASK = Task("t", "I want f(x).", "def f(x):\n    return x * 7 + 1", (("test1", "f(1)"),))
MESSAGES = (Message("user", "I want f(x)."), Message("assistant", "What is the rate?"))


class Counting:
    """A model that says its seed and remembers how often it was asked."""

    name = "a-model"

    def __init__(self) -> None:
        self.asked: list[int] = []

    async def say(self, instruction: str, seed: int) -> str:
        self.asked.append(seed)
        return f"It is {seed}."


def test_recorded_answers_cost_nothing(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    model = Counting()
    first = LlmSimulator(model, BACKEND, recording=Recording(path), identity="one")
    assert first.reply(TASK, MESSAGES, 5) == "It is 5."
    again = LlmSimulator(model, BACKEND, recording=Recording(path), identity="one")
    assert again.reply(TASK, MESSAGES, 6) == "It is 5."
    other = LlmSimulator(model, BACKEND, recording=Recording(path), identity="two")
    assert other.reply(TASK, MESSAGES, 7) == "It is 7."
    assert len(model.asked) == 2
    assert is_recording(path)
    replay = RecordedSimulator(Recording(path))
    assert replay.reply(TASK, MESSAGES, 9) == "It is 5."  # who was recorded first
    with pytest.raises(SimulatorError, match="the agent has left the recording"):
        replay.reply(TASK, (*MESSAGES, Message("user", "Hm.")), 9)


def test_a_recording_survives_a_kill_and_refuses_other_files(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    recording = Recording(path)
    recording.add(TASK, MESSAGES, "one", "Seven.")
    with path.open("a") as target:
        target.write('{"speaker": "one", "dial')
    fixed = Recording(path)
    assert len(fixed) == 1
    fixed.add(TASK, MESSAGES[:1], "one", "Eight.")
    assert len(Recording(path)) == 2
    assert Recording(path).find(TASK, MESSAGES[:1], "one") == "Eight."
    path.write_text('{"task": {}}\n')
    with pytest.raises(UserError, match=r"answers.jsonl: line 1: this is no recorded answer"):
        Recording(path)
    assert not is_recording(path)
