"""The official protocol, rule by rule."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweetrl.colbench.environment import Environment, outcome_of
from sweetrl.colbench.markers import marked_answer, visible_reply
from sweetrl.errors import SimulatorError
from sweetrl.seeds import simulator_seed
from sweetrl.types import Message, Task

TASK = Task("a", "Write f.", "def f(): return 'secret'", (("test1", "f()"),))


class Person:
    """Replies with a fixed text and remembers what it was asked."""

    name = "fixed"

    def __init__(self, text: str = "I do not know.") -> None:
        self.text = text
        self.heard: list[tuple[Task, tuple[Message, ...], int]] = []

    def reply(self, task: Task, messages: Sequence[Message], seed: int) -> str:
        self.heard.append((task, tuple(messages), seed))
        return self.text


def test_a_dialogue_of_two_turns() -> None:
    person = Person("Seven.")
    environment = Environment(TASK, person)
    assert environment.messages == (Message("user", "Write f."),)
    assert (environment.done, environment.answer, environment.outcome) == (False, None, None)
    environment.step("How many?")
    assert environment.messages[1:] == (Message("assistant", "How many?"), Message("user", "Seven."))
    assert (environment.done, environment.answer, environment.outcome) == (False, None, None)
    environment.step("I WANT TO ANSWER:\n```python\ndef f(): return 7\n```")
    assert (environment.done, environment.outcome) == (True, "answered")
    assert environment.answer == "\n```python\ndef f(): return 7\n```"
    assert [message.role for message in environment.messages] == ["user", "assistant", "user", "assistant"]
    assert len(person.heard) == 1 and person.heard[0][:2] == (TASK, environment.messages[:2])


@pytest.mark.parametrize(
    ("raw", "visible"),
    [
        ("plain", "plain"),
        ("thought OUTPUT: shown ", " shown "),
        ("OUTPUT:", ""),
        ("a OUTPUT:b OUTPUT:c", "b "),
        ("output: small letters", "output: small letters"),
    ],
)
def test_what_the_person_sees(raw: str, visible: str) -> None:
    assert visible_reply(raw) == visible
    environment = Environment(TASK, Person())
    environment.step(raw)
    assert environment.messages[1].content == visible


@pytest.mark.parametrize(
    ("visible", "answer"),
    [
        ("no marker", None),
        ("I want to answer: x", None),
        ("I WANT TO ANSWER x", None),
        ("I WANT TO ANSWER:", ""),
        ("Well. I WANT TO ANSWER: x", " x"),
        ("I WANT TO ANSWER:x I WANT TO ANSWER:y", "x "),
    ],
)
def test_what_counts_as_an_answer(visible: str, answer: str | None) -> None:
    assert marked_answer(visible) == answer


def test_a_marker_inside_the_thought_does_not_end_the_dialogue() -> None:
    environment = Environment(TASK, Person())
    environment.step("Soon: I WANT TO ANSWER: x OUTPUT: How many?")
    assert not environment.done and environment.messages[1].content == " How many?"
    environment.step("thought OUTPUT: I WANT TO ANSWER: y OUTPUT: noise")
    assert environment.done and environment.answer == " y "


def test_the_tenth_reply_is_the_answer_marker_or_not() -> None:
    person = Person()
    environment = Environment(TASK, person)
    for number in range(9):
        environment.step(f"Question {number}?")
        assert not environment.done
    environment.step("thought OUTPUT:def f(): return 7")
    assert (environment.done, environment.outcome) == (True, "max_turns_reached")
    assert environment.answer == "def f(): return 7"
    assert len(person.heard) == 9 and len(environment.messages) == 20


def test_a_marker_in_the_last_round_still_cuts_the_answer() -> None:
    environment = Environment(TASK, Person(), rounds=1)
    environment.step("Here: I WANT TO ANSWER: x")
    assert (environment.answer, environment.outcome) == (" x", "answered")


def test_the_person_is_cut_off() -> None:
    environment = Environment(TASK, Person("é" * 1000))
    environment.step("How many?")
    assert environment.messages[-1].content == "é" * 400
    environment = Environment(TASK, Person("é" * 1000), reply_characters=5)
    environment.step("How many?")
    assert environment.messages[-1].content == "é" * 5


def test_every_turn_has_its_own_seed_and_equal_dialogues_equal_seeds() -> None:
    heard = []
    for _ in range(2):
        person = Person()
        environment = Environment(TASK, person, seed=5)
        for _ in range(4):
            environment.step("?")
        heard.append([seed for _, _, seed in person.heard])
    assert heard[0] == heard[1] == [simulator_seed(5, turn) for turn in (1, 2, 3, 4)]
    assert len(set(heard[0])) == 4 and simulator_seed(6, 1) not in heard[0]
    assert simulator_seed(0, 1) == 4925445270313286572  # stable: changes would change every run


def test_a_person_who_cannot_reply_loses_the_dialogue() -> None:
    class Silent(Person):
        def reply(self, task: Task, messages: Sequence[Message], seed: int) -> str:
            raise SimulatorError("the server is gone")

    environment = Environment(TASK, Silent())
    environment.step("How many?")
    assert (environment.done, environment.outcome, environment.answer) == (True, "lost", None)
    assert environment.error == "the server is gone"
    assert outcome_of(environment.messages[:1]) == "lost"


def test_a_finished_dialogue_takes_no_more_replies() -> None:
    environment = Environment(TASK, Person(), rounds=1)
    environment.step("I WANT TO ANSWER: x")
    with pytest.raises(RuntimeError, match="has ended"):
        environment.step("more")
    for wrong in ({"rounds": 0}, {"reply_characters": 0}):
        with pytest.raises(ValueError, match="at least 1"):
            Environment(TASK, Person(), **wrong)


PIECES = st.sampled_from(["I WANT TO ANSWER:", "OUTPUT:", " a ", "\n", "?"])


@given(replies=st.lists(st.lists(PIECES, max_size=6).map("".join), min_size=1, max_size=12), rounds=st.integers(1, 10))
def test_any_dialogue_keeps_the_rules(replies: list[str], rounds: int) -> None:
    environment = Environment(TASK, Person("ok"), rounds=rounds)
    for raw in replies:
        if environment.done:
            break
        environment.step(raw)
    roles = [message.role for message in environment.messages]
    assert roles == ["user", "assistant"] * (len(roles) // 2) + ["user"] * (len(roles) % 2)
    assert environment.done == (roles[-1] == "assistant") == (environment.answer is not None)
    assert environment.round <= rounds and roles.count("assistant") == environment.round
    assert not any("I WANT TO ANSWER:" in message.content for message in environment.messages[:-1])
    assert all("OUTPUT:" not in message.content for message in environment.messages)
    if environment.done:
        assert environment.outcome == outcome_of(environment.messages)
        assert environment.answer is not None and environment.answer in environment.messages[-1].content
        assert (environment.outcome == "answered") == ("I WANT TO ANSWER:" in environment.messages[-1].content)
