"""What counts as a leak, and what a user may well say: both by example, and on all tasks of suites."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from sweetrl.backend import Backend
from sweetrl.backend.leaks import find_leak
from sweetrl.colbench.files import read_tasks
from sweetrl.types import Task

REFERENCE = '''def withdraw(balance, amount):
    """Take money out of an account."""
    # never below zero
    if amount > balance or amount <= 0:
        return "Insufficient funds for this withdrawal, or a bad amount"
    return round(balance - amount * 1.02, 2)
'''
TASK = Task("t", "I want withdraw(balance, amount).", REFERENCE, (("test1", "withdraw(1, 2)"),))


@pytest.mark.parametrize(
    "reply",
    [
        "Sure:\n```python\nreturn 1\n```",
        "def withdraw(balance, amount): and so on",
        "Then it does this:\nfee = amount * 0.02",
        "    return balance - amount",
        "import math",
        "for item in items:",
        "It is `balance - amount * 1.02` in the end.",
        "Use `round(x, 2)` for that.",
        "if amount > balance:\n    return None",
        "Something like lambda x: x + 1 would do.",
        "else:",
    ],
)
def test_code_is_a_leak(reply: str) -> None:
    leak = find_leak(TASK, reply)
    assert leak is not None and leak.kind == "code"


def test_the_reference_word_for_word_is_a_leak() -> None:
    leak = find_leak(TASK, "Well, it rounds (balance - amount * 1.02, 2), nothing else.")
    assert leak is not None and leak.kind == "quote"
    assert "balance - amount * 1.02" in leak.text
    assert find_leak(TASK, "It rounds balance - amount.") is None
    for quoted in (
        'It is "round(balance - amount * 1.02, 2)".',
        "That's all: round(balance - amount * 1.02, 2), isn't it?",
        "Rule #1 is round(balance - amount * 1.02, 2).",
    ):
        assert find_leak(TASK, quoted) is not None
        assert find_leak(Task("t", f"I want withdraw: {quoted}", REFERENCE), quoted) is None
    request = Task("t", f"I want this:\n{REFERENCE}", REFERENCE)  # what everybody knows is no secret
    assert find_leak(request, "Well, it rounds (balance - amount * 1.02, 2), nothing else.") is None


@pytest.mark.parametrize(
    "reply",
    [
        "The fee is 2 % of the amount, rounded to 2 places.",
        'It says "Insufficient funds for this withdrawal, or a bad amount" then.',
        "Return None, please.",
        "None",
        "return nothing",
        "Yes/no, I do not know.",
        "For each item in the list, add its price.",
        "If the amount is larger than the balance, it is refused.",
        "While there is money, go on: one at a time.",
        "rate: 7",
        "The keys are `name` and `price`.",
        "It is called `withdraw()`.",
        "With a discount of 10%:",
        "",
    ],
)
def test_facts_in_plain_words_are_not(reply: str) -> None:
    assert find_leak(TASK, reply) is None


def test_real_references_are_recognised_and_real_requests_are_no_leaks(real_backend_tasks: Path) -> None:
    tasks = list(read_tasks(real_backend_tasks, Backend()))
    kinds: Counter[str] = Counter()
    plain = 0
    for task in tasks:
        lines = [line for line in task.ground_truth.splitlines() if line.strip()]
        leak = find_leak(task, "\n".join(lines[1:] or lines))
        kinds[leak.kind if leak else "none"] += 1
        wish = task.problem_description.partition("The signature of the function is")[0]
        plain += find_leak(task, wish) is not None
    assert kinds["none"] <= 0.01 * len(tasks), kinds
    assert plain <= 0.01 * len(tasks)
