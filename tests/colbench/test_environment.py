"""The official protocol, rule by rule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweetrl.colbench.dialogue import Environment
from sweetrl.colbench.domain import Domain
from sweetrl.colbench.markers import marked_answer, visible_reply
from sweetrl.errors import UserError
from sweetrl.seeds import simulator_seed
from sweetrl.types import Message, Task

DOMAIN = Domain()  # the protocol is that of any domain
TASK = Task("a", "Write f.", "def f(): return 'secret'", (("test1", "f()"),))


class User:
    """Replies with a fixed text and remembers what it was asked."""

    name = "fixed"

    def __init__(self, text: str = "I do not know.") -> None:
        self.text = text
        self.heard: list[tuple[Task, tuple[Message, ...], int]] = []

    def reply(self, task: Task, messages: Sequence[Message], seed: int) -> str:
        self.heard.append((task, tuple(messages), seed))
        return self.text


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
def test_what_the_user_sees(raw: str, visible: str) -> None:
    assert visible_reply(raw) == visible
    environment = Environment(TASK, DOMAIN, User())
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
    environment = Environment(TASK, DOMAIN, User())
    environment.step("Soon: I WANT TO ANSWER: x OUTPUT: How many?")
    assert not environment.done and environment.messages[1].content == " How many?"
    environment.step("thought OUTPUT: I WANT TO ANSWER: y OUTPUT: noise")
    assert environment.done and environment.answer == " y "


def test_the_tenth_reply_is_the_answer_marker_or_not() -> None:
    user = User()
    environment = Environment(TASK, DOMAIN, user)
    for number in range(9):
        environment.step(f"Question {number}?")
        assert not environment.done
    environment.step("thought OUTPUT:def f(): return 7")
    assert (environment.done, environment.outcome) == (True, "max_turns_reached")
    assert environment.answer == "def f(): return 7"
    assert len(user.heard) == 9 and len(environment.messages) == 20


def test_the_user_is_cut_off() -> None:
    environment = Environment(TASK, DOMAIN, User("é" * 1000))
    environment.step("How many?")
    assert environment.messages[-1].content == "é" * 400
    environment = Environment(TASK, DOMAIN, User("é" * 1000), reply_characters=5)
    environment.step("How many?")
    assert environment.messages[-1].content == "é" * 5


@pytest.mark.parametrize("words", [None, 7, b"Seven.", ["Seven."]])
def test_what_is_no_text_is_one_sentence(words: Any) -> None:
    with pytest.raises(UserError) as refused:
        Environment(TASK, DOMAIN, User(words)).step("How many?")
    message = f"task a: the user simulator `fixed` returned {words!r}; its `reply` must return a text."
    assert str(refused.value) == message


def test_half_of_a_surrogate_pair_is_no_reason_to_lose_what_is_written_later() -> None:
    environment = Environment(TASK, DOMAIN, User("Seven \ud800 \U0001f600"))
    environment.step("How many?")
    assert environment.messages[-1].content == "Seven ? \U0001f600"


def test_every_turn_has_its_own_seed_and_equal_dialogues_equal_seeds() -> None:
    heard = []
    for _ in range(2):
        user = User()
        environment = Environment(TASK, DOMAIN, user, seed=5)
        for _ in range(4):
            environment.step("?")
        heard.append([seed for _, _, seed in user.heard])
    assert heard[0] == heard[1] == [simulator_seed(5, turn) for turn in (1, 2, 3, 4)]
    assert len(set(heard[0])) == 4 and simulator_seed(6, 1) not in heard[0]


def test_a_domain_may_end_a_dialogue_in_its_own_way() -> None:
    class Haggling(Domain):
        def answers(self, visible: str) -> bool:
            return "deal" in visible

        def final_answer(self, messages: Sequence[Message]) -> str | None:
            return messages[-2].content if self.answers(messages[-1].content) else None

    environment = Environment(TASK, Haggling(), User("Five."), max_turns=3)
    environment.step("I WANT TO ANSWER: Four?")
    assert not environment.done
    environment.step("It is a deal.")
    assert (environment.outcome, environment.answer) == ("answered", "Five.")
    environment = Environment(TASK, Haggling(), User("Five."), max_turns=1)
    environment.step("Four?")
    assert (environment.outcome, environment.answer) == ("max_turns_reached", None)


def test_a_finished_dialogue_takes_no_more_replies() -> None:
    environment = Environment(TASK, DOMAIN, User(), max_turns=1)
    environment.step("I WANT TO ANSWER: x")
    with pytest.raises(RuntimeError, match="has ended"):
        environment.step("more")


PIECES = st.sampled_from(["I WANT TO ANSWER:", "OUTPUT:", " a ", "\n", "?"])


@given(
    replies=st.lists(st.lists(PIECES, max_size=6).map("".join), min_size=1, max_size=12), max_turns=st.integers(1, 10)
)
def test_any_dialogue_keeps_the_rules(replies: list[str], max_turns: int) -> None:
    environment = Environment(TASK, DOMAIN, User("ok"), max_turns=max_turns)
    for raw in replies:
        if environment.done:
            break
        environment.step(raw)
    roles = [message.role for message in environment.messages]
    assert roles == ["user", "assistant"] * (len(roles) // 2) + ["user"] * (len(roles) % 2)
    assert environment.done == (roles[-1] == "assistant") == (environment.answer is not None)
    assert environment.turn <= max_turns and roles.count("assistant") == environment.turn
    assert not any("I WANT TO ANSWER:" in message.content for message in environment.messages[:-1])
    assert all("OUTPUT:" not in message.content for message in environment.messages)
    if environment.done:
        assert environment.outcome == DOMAIN.outcome(environment.messages)
        assert environment.answer is not None and environment.answer in environment.messages[-1].content
        assert (environment.outcome == "answered") == ("I WANT TO ANSWER:" in environment.messages[-1].content)
