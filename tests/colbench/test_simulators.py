"""Replayed people, and the prompt that makes a language model one."""

from __future__ import annotations

from pathlib import Path

import pytest

from sweetrl.colbench.environment import Environment
from sweetrl.colbench.simulators import ReplaySimulator, simulator_prompt
from sweetrl.errors import SimulatorError, UserError
from sweetrl.types import Message, Task, Trajectory

TASK = Task("a", "Write f. {reference}", "def f(x):\n    return {'a': x}[f'{x}']", (("test1", "f(1)"),))


def recorded(*said: str) -> Trajectory:
    texts = (TASK.problem_description, *said)
    messages = tuple(Message("user" if index % 2 == 0 else "assistant", text) for index, text in enumerate(texts))
    return Trajectory(TASK, 0, messages)


def test_a_recording_replays_word_for_word() -> None:
    first = recorded("How many?", "Seven.", "Which?", "Both.", "I WANT TO ANSWER: x")
    second = recorded("Which?", "The left one.", "I WANT TO ANSWER: y")
    person = ReplaySimulator([first, second])
    for recording in (first, second):
        environment = Environment(TASK, person, seed=9)
        for message in recording.messages[1::2]:
            environment.step(message.content)
        assert environment.messages == recording.messages and environment.done


def test_the_first_of_two_recordings_speaks() -> None:
    person = ReplaySimulator([recorded("How many?", "Seven."), recorded("How many?", "Eight.")])
    assert person.reply(TASK, recorded("How many?").messages, 0) == "Seven."


def test_leaving_the_recording_loses_the_dialogue() -> None:
    person = ReplaySimulator([recorded("How many?", "Seven.", "I WANT TO ANSWER: x")])
    with pytest.raises(SimulatorError, match="left the recording"):
        person.reply(TASK, recorded("Why?").messages, 0)
    environment = Environment(TASK, person)
    environment.step("Why?")
    assert environment.outcome == "lost" and "task 'a'" in environment.error


def test_the_prompt_holds_everything_once_and_as_it_is() -> None:
    dialogue = [Message("user", "Write f."), Message("assistant", "What of {dialogue} and {0}?")]
    text = simulator_prompt(TASK, dialogue)
    assert text.count(TASK.ground_truth) == 1
    assert text.count(TASK.problem_description) == 1
    assert "Person: Write f.\nAssistant: What of {dialogue} and {0}?" in text


def test_a_template_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "person.txt"
    path.write_text("{request}|{reference}|{dialogue}")
    assert simulator_prompt(TASK, [Message("user", "hi")], str(path)).endswith("|Person: hi")
    path.write_text("{request}|{dialogue}")
    with pytest.raises(UserError, match=r"the placeholder \{reference\} is missing"):
        simulator_prompt(TASK, [], str(path))
