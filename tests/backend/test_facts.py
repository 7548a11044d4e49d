"""What a reference does, in sentences, none of which is code."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from functools import partial

import pytest

from sweetrl.backend import Backend
from sweetrl.backend.facts import described
from sweetrl.backend.suite import generate
from sweetrl.colbench.described import UNKNOWN, DescribedUser
from sweetrl.colbench.files import read_tasks
from sweetrl.colbench.leaks import leaked_fragment, squeeze
from sweetrl.evaluation.users import check_user
from sweetrl.types import Message, Task
from tests.conftest import shared

BACKEND = Backend()

ORDERS = '''
def bill(orders, limit=100, express=False):
    """Not among the facts."""
    rates = {"gold": 0.8, "silver": 0.9}
    if not orders:
        return 0
    total = 0
    for order in orders:
        if order["weight"] >= 2.5 and order["kind"] not in ("gift", "sample"):
            total += order["price"] * order["count"]
    if total > limit:
        total = total * rates["gold"] - 5
    elif total < 0:
        raise ValueError("no negative bill")
    else:
        total = max(total, 10)
    dear = sorted(orders, key=lambda o: o["price"], reverse=True)[:3]
    return {"total": round(total / 60, 2), "dear": [o["name"] for o in dear if o["price"] % 2 == 0]}
'''


@pytest.mark.parametrize(
    "sentence",
    [
        "If the limit is not given, 100 is used.",
        'The rates have "gold" as 0.8 and "silver" as 0.9.',
        "If the orders are empty, it should return 0.",
        "The total starts at 0.",
        'For each order in the orders, if the "weight" of the order is at least 2.5 and the "kind" of the order is '
        'none of "gift" or "sample", the "price" of the order multiplied by the "count" of the order is added to '
        "the total.",
        'If the total is more than the limit, the total becomes (the total multiplied by the "gold" of the rates) '
        'minus 5; otherwise, if the total is less than 0, it is an error (ValueError) that says "no negative bill"; '
        "otherwise the total becomes the larger of the total and 10.",
        'The dear is the first 3 of the orders, sorted by its "price", largest first.',
        'It should return a dictionary with "total" and "dear".',
        '"total" in the result is (the total divided by 60) rounded to 2 decimals.',
        '"dear" in the result is a list of the "name" of o for each o in the dear where the "price" of o is even.',
    ],
)
def test_a_program_is_described_in_sentences(sentence: str) -> None:
    assert sentence in {fact.text for fact in described(ORDERS)}


def test_facts_differ_and_have_questions_that_do_not_give_them_away() -> None:
    facts = described(ORDERS)
    assert len({fact.text for fact in facts}) == len(facts)
    for fact in facts:
        assert fact.question.endswith("?") and not any(digit in fact.question for digit in "0123456789")
    assert described("this is no program") == ()


def test_facts_of_the_suite_hold_no_code() -> None:
    for task in generate("test", 40, 3, 3):
        for fact in described(task.ground_truth):
            assert BACKEND.find_leak(task, fact.text) is None, fact


QUESTIONS = (
    *(
        "How is the result calculated?",
        "What should be returned? In which order?",
        "Are there thresholds or conditions?",
    ),
    *("What should happen for empty input, and which errors are raised?", "Which fields does each item have?"),
    *("Please show me the code.", "Tell me everything you know.", "What are all constants, tables and defaults?"),
)


@pytest.mark.parametrize("name", ["backend_300.jsonl", "backend_train_400.jsonl"])
def test_no_answer_about_a_real_task_is_a_leak(name: str) -> None:
    tasks = list(read_tasks(shared(name), BACKEND))
    user, silent = DescribedUser(BACKEND.facts), 0
    for task in tasks:
        fragments, request = BACKEND.hidden_fragments(task), squeeze(task.problem_description)
        messages = [Message("user", task.problem_description)]
        for question in (*QUESTIONS, *(fact.question for fact in BACKEND.facts(task))):
            words = user.reply(task, [*messages, Message("assistant", question)], 7)
            assert BACKEND.find_leak(task, words) is None, (task.id, words)
            assert leaked_fragment(fragments, squeeze(words), [request, squeeze(question)]) is None, (task.id, words)
            assert len(words) <= 400
            messages += [Message("assistant", question), Message("user", words)]
        silent += all(message.content in UNKNOWN for message in messages[2::2])
    assert silent < len(tasks) / 50  # nearly all of them have facts
    answers = check_user(BACKEND, user, "described", tasks, 7, 1)
    assert answers.rate("right", "asked").value > 0.9 and answers.counts["leaks"] == 0


def test_the_answer_to_a_repeated_question_begins_with_new_facts() -> None:
    task = Task("t", "I want f(x).", "def f(x):\n    if x > 9:\n        return 'big'\n    return 'small'", ())
    user, messages = DescribedUser(BACKEND.facts), [Message("user", "I want f(x).")]
    replies = []
    for _ in range(3):
        messages.append(Message("assistant", "What should be returned?"))
        replies.append(user.reply(task, messages, 1))
        messages.append(Message("user", replies[-1]))
    assert '"big"' in replies[0] and '"small"' in " ".join(replies[:2]) and replies[2] not in UNKNOWN


def test_what_is_returned_behind_another_return_is_for_the_other_cases() -> None:
    facts = described("def f(x):\n    for each in x:\n        if each > 9:\n            return each\n    return 0")
    assert facts[-1].text == "In all other cases, it should return 0."


@pytest.mark.parametrize("default", [repr("long " * 80), " + ".join("1" * 600)], ids=["long", "hundreds of terms"])
def test_a_default_without_words_costs_no_other_sentence(default: str) -> None:
    facts = described(f"def f(x, text={default}, n=3):\n    return x * n")
    assert [fact.text for fact in facts] == [
        "If n is not given, 3 is used.",
        "It should return x multiplied by n.",
    ]


def test_a_slice_in_a_tuple_index_costs_no_other_sentence() -> None:
    facts = described("def f(x, n=3):\n    if n > 9:\n        return x[:, 0]\n    return x * n")
    assert "If n is not given, 3 is used." in [fact.text for fact in facts]


def test_an_expression_of_hundreds_of_terms_costs_no_other_sentence() -> None:
    facts = described(f"def f(x):\n    if {' + '.join(['x'] * 500)}:\n        return 3\n    return 1")
    assert [fact.text for fact in facts] == ["In all other cases, it should return 1."]


def test_scores_do_not_depend_on_the_order_of_a_set() -> None:
    facts = described(
        "def f(price, hours, weight, night, customers):\n"
        "    if price > 100 and hours < 5 and weight >= 3:\n"
        "        return price * hours - weight\n"
        "    if night and weight > 20 and customers < 4:\n"
        "        return price * 2 + weight / customers\n"
        "    if hours > 12 and not night and price < 7:\n"
        "        return hours * customers + price * weight\n"
        "    return price + hours + weight"
    )
    question = "What happens to the price when hours, weight, night and customers are high, and what should I multiply?"
    code = (
        "import pickle, sys; from sweetrl.colbench.described import scored;"
        f"print(list(scored({question!r}, '', pickle.load(sys.stdin.buffer)).values()))"
    )
    run = partial(subprocess.check_output, [sys.executable, "-c", code], input=pickle.dumps(facts))
    assert len({run(env=os.environ | {"PYTHONHASHSEED": str(seed)}) for seed in range(4)}) == 1


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ("return np.array(x).sum()", "It should return what sum gives for what array gives for x."),
        ("return np.array(x).mean()", "It should return what mean gives for what array gives for x."),
        ("return time.count('a')", 'It should return how often "a" occurs in the time.'),
        ("return sort()", "It should return what sort gives."),
        ("return sum(x, start=5)", "It should return what sum gives for x and start 5."),
        ("return time.split(sep=',')", 'It should return what split gives for the time and sep ",".'),
        ("return (-x) ** 2", "It should return (minus x) squared."),
        ("return sum(x) ** 2", "It should return (the sum of x) squared."),
        ("return abs(time - x) ** 3", "It should return the absolute value of (the time minus x) cubed."),
        (
            "for n in range(x, 0 + 1, -1):\n        print(n)",
            "For each n from x up to but not including 0 plus 1 in steps of minus 1, it prints n.",
        ),
        ("total: int = 0\n    for each in x:\n        total += each", "The total starts at 0."),
        ("low = 0\n    high = 1\n    for _ in x:\n        low, high = high, low + high", "The low starts at 0."),
    ],
)
def test_no_argument_is_left_out_and_what_changes_only_starts(body: str, sentence: str) -> None:
    assert sentence in [fact.text for fact in described(f"def f(x, time):\n    {body}")]
