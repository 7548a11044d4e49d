"""A language model as the person, recorded answers, and you at the terminal: with a scripted model behind them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from sweetrl.colbench.recording import RecordedSimulator, Recording, is_recording
from sweetrl.colbench.simulators import ConsoleUser, LlmSimulator, spoken
from sweetrl.errors import SimulatorError, UserError
from sweetrl.protocols import AsyncUserSimulator
from sweetrl.types import Message, Task

TASK = Task("t", "I want f(x).", "def f(x):\n    return x * 7 + 1", (("test1", "f(1)"),))
MESSAGES = (Message("user", "I want f(x)."), Message("assistant", "What is the rate?"))


class Model:
    """Says what `words` makes of the instruction and the seed; remembers what it was asked."""

    name = "a-model"

    def __init__(self, words: Callable[[str, int], str]) -> None:
        self.words = words
        self.asked: list[tuple[str, int]] = []

    async def say(self, instruction: str, seed: int) -> str:
        self.asked.append((instruction, seed))
        return self.words(instruction, seed)


def test_the_model_reads_request_reference_and_dialogue() -> None:
    model = Model(lambda instruction, seed: "  Person: It is 7.\n")
    person = LlmSimulator(model)
    assert isinstance(person, AsyncUserSimulator)
    assert person.reply(TASK, MESSAGES, 5) == "It is 7."
    ((instruction, seed),) = model.asked
    assert seed == 5
    for part in (TASK.problem_description, TASK.ground_truth, "Assistant: What is the rate?"):
        assert part in instruction
    assert person.name == "llm:a-model"


def test_thoughts_and_names_are_not_said() -> None:
    assert spoken("<think>\nthe rate is x * 7\n</think>\n\nPerson: Seven.") == "Seven."
    assert spoken("Seven.") == "Seven."


def test_the_cut_comes_before_everything_else() -> None:
    person = LlmSimulator(Model(lambda *_: "It is 7. " * 10 + "```"), reply_characters=20, leaks="refuse")
    assert person.reply(TASK, MESSAGES, 0) == "It is 7. It is 7. It"


def test_leaks_are_let_through_and_counted_or_refused() -> None:
    leaking = LlmSimulator(Model(lambda *_: "```x```"))
    assert leaking.reply(TASK, MESSAGES, 0) == "```x```"  # counted by the rollout, in what it records
    model = Model(lambda instruction, seed: "Seven." if "could not be sent" in instruction else "return x * 7 + 1")
    person = LlmSimulator(model, leaks="refuse")
    assert person.reply(TASK, MESSAGES, 3) == "Seven."
    assert [seed for _, seed in model.asked] == [3, 4] and person.refused == 1
    stubborn = LlmSimulator(Model(lambda *_: "return x * 7 + 1"), leaks="refuse", attempts=2)
    with pytest.raises(SimulatorError, match=r"leaks the reference \(code\) in each of 2 attempts"):
        stubborn.reply(TASK, MESSAGES, 0)
    assert stubborn.refused == 2


def test_a_person_without_words_loses_the_dialogue() -> None:
    with pytest.raises(SimulatorError, match="said nothing"):
        LlmSimulator(Model(lambda *_: " \n")).reply(TASK, MESSAGES, 0)


def test_recorded_answers_cost_nothing(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    model = Model(lambda instruction, seed: f"It is {seed}.")
    first = LlmSimulator(model, recording=Recording(path), identity="one")
    assert first.reply(TASK, MESSAGES, 5) == "It is 5."
    again = LlmSimulator(model, recording=Recording(path), identity="one")
    assert again.reply(TASK, MESSAGES, 6) == "It is 5."
    other = LlmSimulator(model, recording=Recording(path), identity="two")
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


def test_many_wait_for_the_model_at_once() -> None:
    inside = most = 0

    class Waiting(Model):
        async def say(self, instruction: str, seed: int) -> str:
            nonlocal inside, most
            inside += 1
            most = max(most, inside)
            await asyncio.sleep(0.001)
            inside -= 1
            return "Seven."

    person = LlmSimulator(Waiting(lambda *_: ""))

    async def all_of_them() -> list[str]:
        return await asyncio.gather(*(person.answer(TASK, MESSAGES, seed) for seed in range(9)))

    assert asyncio.run(all_of_them()) == ["Seven."] * 9
    assert most == 9


def test_you_see_who_you_are_and_may_leave() -> None:
    told: list[str] = []
    person = ConsoleUser(ask=lambda prompt: " It is 7. ", tell=told.append)
    assert person.reply(TASK, MESSAGES, 0) == "It is 7."
    assert TASK.ground_truth in "".join(told) and told[-1] == "agent> What is the rate?"
    told.clear()
    person.reply(TASK, (*MESSAGES, Message("user", "7"), Message("assistant", "And?")), 0)
    assert told == ["agent> And?"]

    def leave(prompt: str) -> str:
        raise EOFError

    with pytest.raises(SimulatorError, match="left the dialogue"):
        ConsoleUser(ask=leave, tell=told.append).reply(TASK, MESSAGES, 0)
