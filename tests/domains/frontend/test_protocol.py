"""The official protocol of page design, rule by rule, against a reading of the rules as regular expressions."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweetrl.colbench.environment import Environment
from sweetrl.colbench.prompts import privileged_prefix, system_prompt
from sweetrl.domains.frontend.pages import PLACEHOLDER, find_page, last_page, read_reply, without_pages
from sweetrl.evaluation.checks import leak, protocol
from sweetrl.evaluation.checks import tests_agree as agree
from sweetrl.rollout.dialogue import open_dialogue
from sweetrl.settings import AgentSettings
from sweetrl.types import Message, Task

TASK = Task("p", "A page for my cafe.", '<html><body class="bg-white">x</body></html>', suite="frontend")
ONE, TWO = '<html lang="en">\n<body>one</body></html>', "<html><body>two</body></html>"


class Person:
    name = "fixed"

    def reply(self, task: Task, messages: Sequence[Message], seed: int) -> str:
        return "Wider. " * 400


def dialogue(*replies: str, rounds: int = 10) -> Environment:
    environment = Environment(TASK, Person(), rounds=rounds, reply_characters=1000)
    for reply in replies:
        environment.step(reply)
    return environment


@pytest.mark.parametrize(
    ("text", "page"),
    [
        (f"Here: {ONE} and {TWO}", ONE),
        ("<body>b</body> <html>h</html>", "<html>h</html>"),
        ('so: <body class="x">b</body>.', '<body class="x">b</body>'),
        ("<html><body>cut off</body>", "<body>cut off</body>"),
        ("<HTML><BODY>loud</BODY></HTML>", None),
        ("</html><html>", None),
        ("<html", None),
        ("no page", None),
        ("```html\n<html>\n</html>\n```", "<html>\n</html>"),
    ],
)
def test_where_a_page_is_found(text: str, page: str | None) -> None:
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


def test_a_hostile_reply_is_read_in_linear_time() -> None:
    assert find_page("<html>" * 200_000 + "<body" * 200_000) is None


def test_a_reply_is_words_a_page_and_a_marker() -> None:
    reply = read_reply(f"I think {TWO}. OUTPUT:Is it blue? {ONE} I WANT TO ANSWER: OUTPUT: more")
    assert reply.html == ONE and reply.final
    assert reply.words == f"Is it blue? {PLACEHOLDER} I WANT TO ANSWER: "
    assert reply.question == "Is it blue?"
    assert read_reply(f"{ONE}{ONE}").words == PLACEHOLDER * 2
    assert read_reply(ONE).question is None and not read_reply(ONE).final
    assert without_pages(f"a {ONE}") == f"a {PLACEHOLDER}" and without_pages("a") == "a"


def test_the_last_page_is_the_answer_marker_or_not() -> None:
    marked = dialogue(ONE, f"{TWO} better?", "I WANT TO ANSWER: that one")
    assert (marked.outcome, marked.answer) == ("answered", TWO)
    inside = dialogue(ONE, f"I WANT TO ANSWER: {TWO}")
    assert inside.answer == TWO
    worn = dialogue(ONE, "Is it blue?", rounds=2)
    assert (worn.outcome, worn.answer) == ("max_turns_reached", ONE)
    never = dialogue("Is it blue?", "I WANT TO ANSWER: <html>cut")
    assert never.done and never.answer is None and never.outcome == "answered"
    thought = dialogue(f"{ONE} OUTPUT:I WANT TO ANSWER: nothing")
    assert thought.answer is None


def test_the_persons_words_are_cut_at_a_thousand() -> None:
    assert len(dialogue(ONE).messages[-1].content) == 1000


def test_last_page_looks_at_the_agent_only() -> None:
    assert last_page([Message("user", ONE), Message("assistant", "hm")]) is None


def test_prompts_are_those_of_the_suite() -> None:
    assert "page" in system_prompt("short", "frontend") and system_prompt("short", "frontend") != system_prompt("short")
    assert "tailwindcss@2.2.19" in system_prompt("full", "frontend")
    assert privileged_prefix(TASK) == f"The finished page is:\n{TASK.ground_truth}\n"
    opened = open_dialogue(TASK, 0, None, Person(), AgentSettings(), 1000, 0)
    assert opened.texts[0] == ("system", system_prompt("short", "frontend"))


def test_collected_dialogues_are_checked_by_the_same_rules() -> None:
    opened = open_dialogue(TASK, 0, None, Person(), AgentSettings(rounds=2), 1000, 0)
    opened.environment.step(ONE)
    opened.environment.step("done?")
    one = opened.close("agent")
    assert one.answer == ONE
    assert protocol(one, 2) is None and agree(one) is None
    from dataclasses import replace

    assert "the answer is not what" in str(protocol(replace(one, answer="done?"), 2))
    told = replace(
        one, messages=(one.messages[0], one.messages[1], Message("user", TASK.ground_truth), one.messages[3])
    )
    assert "holds line 1 of the reference" in str(leak(told))
