"""Who plays the user: a replayed dialogue, a language model (a scripted one here), and you at the terminal."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from sweetrl.backend import Backend
from sweetrl.colbench.dialogue import Environment
from sweetrl.colbench.domain import Domain
from sweetrl.colbench.users import (
    ConsoleUser,
    LlmSimulator,
    Recording,
    ReplaySimulator,
    is_recording,
    simulator_prompt,
    spoken,
)
from sweetrl.errors import SimulatorError, UserError
from sweetrl.evaluation import checks
from sweetrl.protocols import AsyncUserSimulator
from sweetrl.types import Message, Task, Trajectory

TASK = Task("a", "Write f. {reference}", "def f(x):\n    return {'a': x}[f'{x}']", (("test1", "f(1)"),))


BACKEND = Backend()
RATES = Task("t", "I want f(x).", "def f(x):\n    return x * 7 + 1", (("test1", "f(1)"),))
MESSAGES = (Message("user", "I want f(x)."), Message("assistant", "What is the rate?"))


def recorded(*replies: str) -> Trajectory:
    texts = (TASK.problem_description, *replies)
    messages = tuple(Message("user" if index % 2 == 0 else "assistant", text) for index, text in enumerate(texts))
    return Trajectory(TASK, 0, messages)


def test_a_recording_replays_word_for_word() -> None:
    first = recorded("How many?", "Seven.", "Which?", "Both.", "I WANT TO ANSWER: x")
    second = recorded("Which?", "The left one.", "I WANT TO ANSWER: y")
    user = ReplaySimulator(Recording.of([first, second]))
    for recording in (first, second):
        environment = Environment(TASK, Domain(), user, seed=9)
        for message in recording.messages[1::2]:
            environment.step(message.content)
        assert environment.messages == recording.messages and environment.done


def test_the_prompt_holds_everything_once_and_as_it_is() -> None:
    dialogue = [Message("user", "Write f."), Message("assistant", "What of {dialogue} and {0}?")]
    text = simulator_prompt(TASK, dialogue, "backend_simulator")
    assert text.count(TASK.ground_truth) == 1
    assert text.count(TASK.problem_description) == 1
    assert "Person: Write f.\nAssistant: What of {dialogue} and {0}?" in text


# A language model


class Model:
    """Says what `words` makes of the instruction and the seed; remembers its calls."""

    name = "a-model"

    def __init__(self, words: Callable[[str, int], str]) -> None:
        self.words = words
        self.calls: list[tuple[str, int]] = []

    async def say(self, instruction: str, seed: int) -> str:
        self.calls.append((instruction, seed))
        return self.words(instruction, seed)


def test_the_model_reads_request_reference_and_dialogue() -> None:
    model = Model(lambda instruction, seed: "  Person: It is 7.\n")
    user = LlmSimulator(model, BACKEND)
    assert isinstance(user, AsyncUserSimulator)
    assert user.reply(RATES, MESSAGES, 5) == "It is 7."
    ((instruction, seed),) = model.calls
    assert seed == 5
    for part in (RATES.problem_description, RATES.ground_truth, "Assistant: What is the rate?"):
        assert part in instruction
    assert user.name == "llm:a-model"


def test_thoughts_and_names_are_not_said() -> None:
    assert spoken("<think>\nthe rate is x * 7\n</think>\n\nPerson: Seven.") == "Seven."
    assert spoken("Seven.") == "Seven."
    assert spoken("<think>they want the rate, which is x * 7") == spoken("<think>7</think><think>x * 7") == ""
    assert spoken("Seven. <think>Was that all?") == "Seven."
    assert spoken("Person: Seven.\n\nAssistant: And the tax?\nPerson: 5 percent.") == "Seven."
    assert spoken("Ask the\nassistant: it knows.") == "Ask the\nassistant: it knows."


def test_the_cut_comes_before_everything_else() -> None:
    user = LlmSimulator(Model(lambda *_: "It is 7. " * 10 + "```"), BACKEND, reply_characters=20, leaks="refuse")
    assert user.reply(RATES, MESSAGES, 0) == "It is 7. It is 7. It"


def test_leaks_are_let_through_and_counted_or_refused() -> None:
    leaking = LlmSimulator(Model(lambda *_: "```x```"), BACKEND)
    assert leaking.reply(RATES, MESSAGES, 0) == "```x```"  # counted by the rollout, in what it records
    model = Model(lambda instruction, seed: "Seven." if "could not be sent" in instruction else "return x * 7 + 1")
    user = LlmSimulator(model, BACKEND, leaks="refuse")
    assert user.reply(RATES, MESSAGES, 3) == "Seven."
    assert [seed for _, seed in model.calls] == [3, 4]
    stubborn = LlmSimulator(Model(lambda *_: "return x * 7 + 1"), BACKEND, leaks="refuse")
    with pytest.raises(SimulatorError, match=r"leaks the reference \(code\) in each of 3 attempts"):
        stubborn.reply(RATES, MESSAGES, 0)


def test_what_validate_would_not_accept_is_refused_too() -> None:
    task = Task(
        "t", "What do they pay?", "def pay(h):\n    total = h * 7 + 12\n    return total\n", (("test1", "pay(3)"),)
    )
    messages = (Message("user", task.problem_description), Message("assistant", "What is it?"))
    for leaking in ("They pay total = h * 7 + 12, no more.", "Try pay(3), which is 33."):
        assert BACKEND.find_leak(task, leaking) is None  # nobody would call it code, alone
        model = Model(lambda instruction, seed, leaking=leaking: leaking if seed == 3 else "Seven each, and twelve.")
        assert LlmSimulator(model, BACKEND, leaks="refuse").reply(task, messages, 3) == "Seven each, and twelve."
        dialogue = Trajectory(task, 0, (*messages, Message("user", leaking)))
        assert checks.leak(dialogue, BACKEND.hidden_fragments(task)) is not None
        # What the agent has brought up is no secret.
        brought = (messages[0], Message("assistant", f"Is it this? {leaking}"))
        assert LlmSimulator(model, BACKEND, leaks="refuse").reply(task, brought, 3) == leaking


def test_you_see_who_you_are_and_may_leave() -> None:
    shown: list[str] = []
    user = ConsoleUser(ask=lambda prompt: " It is 7. ", tell=shown.append)
    assert user.serial, "one dialogue at a time"
    assert user.reply(RATES, MESSAGES, 0) == "It is 7."
    assert RATES.ground_truth in "".join(shown) and shown[-1] == "agent> What is the rate?"
    shown.clear()
    user.reply(RATES, (*MESSAGES, Message("user", "7"), Message("assistant", "And?")), 0)
    assert shown == ["agent> And?"]

    def leave(prompt: str) -> str:
        raise EOFError

    with pytest.raises(SimulatorError, match="left the dialogue"):
        ConsoleUser(ask=leave, tell=shown.append).reply(RATES, MESSAGES, 0)


# Recorded answers


def test_recorded_answers_cost_nothing(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    model = Model(lambda instruction, seed: f"It is {seed}.")
    first = LlmSimulator(model, BACKEND, recording=Recording(path), identity="one")
    assert first.reply(RATES, MESSAGES, 5) == "It is 5."
    again = LlmSimulator(model, BACKEND, recording=Recording(path), identity="one")
    assert again.reply(RATES, MESSAGES, 6) == "It is 5."
    other = LlmSimulator(model, BACKEND, recording=Recording(path), identity="two")
    assert other.reply(RATES, MESSAGES, 7) == "It is 7."
    assert len(model.calls) == 2
    assert is_recording(path)
    replay = ReplaySimulator(Recording(path))
    assert replay.reply(RATES, MESSAGES, 9) == "It is 5."  # who was recorded first
    with pytest.raises(SimulatorError, match="the agent has left the recording"):
        replay.reply(RATES, (*MESSAGES, Message("user", "Hm.")), 9)


def test_a_recording_survives_a_kill_and_refuses_other_files(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    recording = Recording(path)
    recording.add(RATES, MESSAGES, "one", "Seven.")
    with path.open("a") as target:
        target.write('\n{"speaker": "one", "dial')
    Recording(path).add(RATES, MESSAGES[:1], "one", "Eight.")
    again = Recording(path)
    assert [again.find(RATES, heard, "one") for heard in (MESSAGES, MESSAGES[:1])] == ["Seven.", "Eight."]
    path.write_text('{"task": {}}\n')
    with pytest.raises(UserError, match=r"answers.jsonl: line 1: the key `speaker` is missing"):
        Recording(path)
    assert not is_recording(path)
