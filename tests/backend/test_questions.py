"""Which kinds of detail a reply asks for: questions count in any words, code and statements never do."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweetrl.backend.suite.details import BY_NAME, KINDS, kinds_asked

QUESTIONS = [(kind.name, question) for kind in KINDS for question in (*kind.questions, *kind.follow_ups)]
EVERYTHING = "\n".join(line.format(7, 8, x="x") for kind in KINDS for line in kind.code)


@pytest.mark.parametrize(("name", "question"), QUESTIONS, ids=str)
def test_every_wording_of_a_question_is_understood(name: str, question: str) -> None:
    assert kinds_asked(question) == (name,)


@pytest.mark.parametrize(
    ("question", "name"),
    [
        ("What VAT rate applies?", "tax"),
        ("Is there an upper limit on the price?", "maximum"),
        ("Do customers pay a deposit that should be deducted?", "credit"),
        ("I need to know the currency.", "label"),
        ("Could you confirm the discount.", "discount"),
        ("what is the minimum", "minimum"),
        ("- which currency\n- and what tax", "label"),
        ("1. What is the tax?\n2. And the minimum?", "minimum"),
        ("**Is there a tax?**", "tax"),
        ("Do you charge anything more, e.g. a fixed fee?", "base"),
        ("Wait... what about tax?!?", "tax"),
    ],
)
def test_questions_in_other_words_are_understood(question: str, name: str) -> None:
    assert name in kinds_asked(question)


def test_two_questions_are_about_two_kinds_although_one_is_more_specific() -> None:
    assert kinds_asked("What VAT rate applies?") == ("tax",)
    assert kinds_asked("What is the rate? Is there a tax?") == ("rate", "tax")
    assert kinds_asked("What is the rate?\nIs there a discount for bulk orders?") == ("rate", "bulk")


STATEMENTS = [
    "I will add the tax and a fixed amount.",
    "Let me write it with a tax, a discount and the insurance.",
    "When the number is above the limit, the extra is charged.",
    "What I do is subtract the credit.",
    "Which gives the maximum.",
    "Tax, discount, minimum, maximum, currency, insurance.",
    "OK, no tax!",
]
CODE = [
    "def price(hours, tax=7, minimum=3, discount=None):",
    "async def tax(rate):",
    "    # what is the tax?",
    "# Is there a minimum? What about insurance?",
    'input("What is the tax?")',
    "return total  # or is there a discount?",
    "if tax > limit:  # is there a limit?",
    "else:",
    "from tax import rate",
    "assert minimum, 'is there a minimum?'",
    ">>> tax(5) or what is the tax?",
    "totals['tax'] = 5  # what is the tax?",
    "```python\nWhat is the tax?\n```",
    "~~~\nIs there a minimum?\n~~~",
    "```\nWhat is the tax? It has no end\n\nIs there a discount?",
    "`What is the tax?`",
    "``What is the `tax`?``",
    "``What is the tax?``",
    '"""What is the tax?\nWhich currency?"""',
    "'''Is there a discount?'''",
    f"```{EVERYTHING}```",
    EVERYTHING,
]


@pytest.mark.parametrize("text", [*STATEMENTS, *CODE])
def test_statements_and_code_ask_nothing(text: str) -> None:
    assert kinds_asked(text) == ()


@pytest.mark.parametrize("text", [*STATEMENTS, *CODE])
def test_real_questions_around_statements_and_code_count(text: str) -> None:
    name, question = "zero", "Zero: what is the result?"
    assert kinds_asked(f"{question}\n{text}") == (name,)
    endless = text.count("```") == 1
    assert kinds_asked(f"{text}\n{question}") == (() if endless else (name,))
    assert kinds_asked(f"{question}\n\n{text}\n\n{question}") == (name,)


# Hostile text


PIECES = [
    "`", "``", "```", "~~~", '"""', "'''", "\n", "\r", "\u2028", "?", "? ", " ?", ":", " ", "\t", "#", " # ", "=",
    "(", ")", "\\", "\0", "e.g. ", "please ", "say ", "first ", "free ", "price ", "every ", "one is ", "if :", "what ",
    "a", "tax", "What is the tax?", "\ud800", "é", "0 ", "\u202e",
]  # fmt: skip


def quick(text: str) -> tuple[str, ...]:
    start = time.process_time()
    kinds = kinds_asked(text)
    assert time.process_time() - start < 5.0
    assert set(kinds) <= BY_NAME.keys() and list(kinds) == sorted(kinds, key=list(BY_NAME).index)
    return kinds


@pytest.mark.parametrize("piece", PIECES, ids=repr)
@pytest.mark.parametrize("other", ["", "\n", "`", "?", " x"], ids=repr)
def test_a_hundred_thousand_characters_are_read_in_no_time(piece: str, other: str) -> None:
    text = ((piece + other) * 100_000)[:100_000]
    assert len(text) == 100_000
    quick(text)
    quick(f"What is the tax? {text}")
    quick(f"{text} What is the tax?")
    quick(f"```{text}")


@given(st.text(max_size=300))
def test_any_text_is_read(text: str) -> None:
    quick(text)
    assert kinds_asked(f"```{text.replace('```', '')}```\nWhat is the tax?") == ("tax",)
    line = text.replace("`", "").replace("\n", " ")
    assert kinds_asked(f"`{line}` is it.") == () or "\r" in line or len(line.splitlines()) > 1
