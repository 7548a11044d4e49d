"""The official protocol of page design, rule by rule, against a reading of the rules as regular expressions."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweetrl.colbench.dialogue import Environment
from sweetrl.frontend import Frontend
from sweetrl.frontend.pages import PLACEHOLDER, find_page, last_page, read_reply, without_pages
from sweetrl.types import Message, Task

FRONTEND = Frontend()
TASK = Task("p", "A page for my cafe.", '<html><body class="bg-white">x</body></html>', suite="frontend")
FIRST, SECOND = '<html lang="en">\n<body>one</body></html>', "<html><body>two</body></html>"


class Wordy:
    name = "fixed"

    def reply(self, task: Task, messages: Sequence[Message], seed: int) -> str:
        return "Wider. " * 400


def dialogue(*replies: str, max_turns: int = 10) -> Environment:
    environment = Environment(TASK, FRONTEND, Wordy(), max_turns, FRONTEND.reply_characters)
    for reply in replies:
        environment.step(reply)
    return environment


@pytest.mark.parametrize(
    ("text", "page"),
    [
        (f"Here: {FIRST} and {SECOND}", FIRST),
        ('so: <body class="x">b</body>.', '<body class="x">b</body>'),
        ("<html><body>cut off</body>", "<body>cut off</body>"),
        ("<HTML><BODY>loud</BODY></HTML>", None),
        ("```html\n<html>\n</html>\n```", "<html>\n</html>"),
    ],
)
def test_where_a_page_begins_and_ends(text: str, page: str | None) -> None:
    assert find_page(text) == page


@given(
    st.lists(
        st.sampled_from(["<html", "<body", ">", "</html>", "</body>", " a", "\n", "x", "<html>", "<body>"]), max_size=12
    )
)
def test_pages_are_those_of_the_official_expressions(parts: list[str]) -> None:
    text = "".join(parts)
    official = re.search(r"<html.*?>.*?</html>", text, re.S) or re.search(r"<body.*?>.*?</body>", text, re.S)
    assert find_page(text) == (official.group() if official else None)


def test_a_reply_is_words_a_page_and_a_marker() -> None:
    reply = read_reply(f"I think {SECOND}. OUTPUT:Is it blue? {FIRST} I WANT TO ANSWER: OUTPUT: more")
    assert reply.html == FIRST
    assert reply.words == f"Is it blue? {PLACEHOLDER} I WANT TO ANSWER: "
    assert reply.question == "Is it blue?"
    assert read_reply(f"{FIRST}{FIRST}").words == PLACEHOLDER * 2
    assert read_reply(FIRST).question is None
    assert without_pages(f"a {FIRST}") == f"a {PLACEHOLDER}" and without_pages("a") == "a"


def test_the_last_page_is_the_answer_marker_or_not() -> None:
    marked = dialogue(FIRST, f"{SECOND} better?", "I WANT TO ANSWER: that one")
    assert (marked.outcome, marked.answer) == ("answered", SECOND)
    inside = dialogue(FIRST, f"I WANT TO ANSWER: {SECOND}")
    assert inside.answer == SECOND
    worn = dialogue(FIRST, "Is it blue?", max_turns=2)
    assert (worn.outcome, worn.answer) == ("max_turns_reached", FIRST)
    never = dialogue("Is it blue?", "I WANT TO ANSWER: <html>cut")
    assert never.done and never.answer is None and never.outcome == "answered"
    thought = dialogue(f"{FIRST} OUTPUT:I WANT TO ANSWER: nothing")
    assert thought.answer is None


def test_the_users_words_are_cut_at_a_thousand() -> None:
    assert len(dialogue(FIRST).messages[-1].content) == 1000


def test_last_page_looks_at_the_agent_only() -> None:
    assert last_page([Message("user", FIRST), Message("assistant", "hm")]) is None
