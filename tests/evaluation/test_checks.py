"""The checks that the stage `validate` makes of a dialogue; what tests/stages/test_validate.py shows is there."""

from dataclasses import replace

import pytest

from sweetrl.backend import Backend
from sweetrl.evaluation import checks
from sweetrl.types import AgentTurn, Message, Task, TestResult, Trajectory

BACKEND = Backend()
TASK = Task(
    id="t0",
    problem_description="I want a price. The signature of the function is: def price(hours)",
    ground_truth="def price(hours):\n    if hours < 0:\n        return 45\n    total = hours * 7\n    return total",
    test_cases=(("test1", "price(3)"), ("test2", "price( -1 )")),
    hidden_information="negative: 45\nrate: 7",
)


def dialogue(*contents, **changes):
    """A trajectory whose messages are `contents` in turn, recorded as an agent's raw replies, consistent throughout."""
    messages = tuple(Message("assistant" if i % 2 else "user", text) for i, text in enumerate(contents))
    turns = tuple(
        AgentTurn(i, m.content, (1, 2), (-0.1, -0.2), "stop") for i, m in enumerate(messages) if m.role == "assistant"
    )
    values = {
        "answer": messages[-1].content.split("I WANT TO ANSWER:")[-1],
        "reward": 0.5,
        "tests": (TestResult("test1", True, "passed"), TestResult("test2", False, "wrong")),
    }
    return Trajectory(TASK, 0, messages, turns, **(values | changes))


GOOD = dialogue(
    TASK.problem_description, "What is the rate?", "The rate is 7 per unit.", "I WANT TO ANSWER:\ndef price(hours): ..."
)


FRAGMENTS = BACKEND.hidden_fragments(TASK)


def swap(trajectory, index, message):
    messages = list(trajectory.messages)
    messages[index] = message
    return replace(trajectory, messages=tuple(messages))


def test_turn_order():
    assert "message 0 is by the system" in checks.turn_order(swap(GOOD, 0, Message("system", "x")))
    assert checks.turn_order(replace(GOOD, messages=GOOD.messages[:3], outcome="lost")) is None
    assert checks.turn_order(replace(GOOD, messages=())) == "there are no messages"
    assert checks.turn_order(GOOD) is None


def test_protocol():
    assert "2 agent turns, at most 1" in checks.protocol(GOOD, BACKEND, 1)
    early = dialogue(TASK.problem_description, "I WANT TO ANSWER: 1", "What?", "I WANT TO ANSWER: 2")
    assert "goes on after the answer in turn 1" in checks.protocol(early, BACKEND, 10)
    assert "messages say 'answered'" in checks.protocol(replace(GOOD, outcome="max_turns_reached"), BACKEND, 10)
    silent = dialogue(TASK.problem_description, "What?", "7", "def price(hours): ...", outcome="max_turns_reached")
    assert checks.protocol(silent, BACKEND, 2) is None
    assert "said to have reached its last turn after 2 of 10" in checks.protocol(silent, BACKEND, 10)


def test_a_user_who_left_is_no_fault_of_the_protocol():
    left = dialogue(TASK.problem_description, "What?", "7", "def price(hours): ...", outcome="user_left")
    assert checks.protocol(left, BACKEND, 10) is None
    answered = replace(GOOD, outcome="user_left")
    assert "the outcome is 'user_left', but the messages say 'answered'" in checks.protocol(answered, BACKEND, 10)
    assert "the answer is not" in checks.protocol(replace(left, answer="7"), BACKEND, 10)


def test_turn_record():
    assert "turn records point at [1]" in checks.turn_record(replace(GOOD, turns=GOOD.turns[:1]), BACKEND)
    first = replace(GOOD.turns[0], raw="THOUGHT: hm OUTPUT:What is the rate?")
    assert checks.turn_record(replace(GOOD, turns=(first, GOOD.turns[1])), BACKEND) is None
    for logprobs, words in (((-0.1,), "1 log-probs"), ((-0.1, 0.4), "at most 0"), ((-0.1, float("nan")), "at most 0")):
        second = replace(GOOD.turns[1], logprobs=logprobs)
        assert words in checks.turn_record(replace(GOOD, turns=(GOOD.turns[0], second)), BACKEND)


def test_tests_and_reward():
    assert "1 test results" in BACKEND.check_score(replace(GOOD, tests=GOOD.tests[:1]))
    assert BACKEND.check_score(replace(GOOD, tests=())) is None
    assert checks.scored(replace(GOOD, reward=float("nan"))) == "its reward is not a number"
    assert checks.scored(replace(GOOD, outcome="lost")) == "it was lost and yet has a reward"
    assert checks.scored(replace(GOOD, outcome="lost", reward=None)) is None


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("Write total = hours * 7 please.", "line 4 of the reference"),
        ("total=hours*7", "line 4 of the reference"),
        ("It says:\nif hours < 0:\n return 45", "line 2 of the reference"),
        ("My notes: negative: 45\nrate: 7", "lines 1 and following of the hidden information"),
        ("For example price(3).", "the call of hidden test test1"),
        ("price(-1) should work.", "the call of hidden test test2"),
        (BACKEND.privileged_prompt(replace(TASK, ground_truth="...")), "the critic's privileged prefix"),
    ],
)
def test_leaks_are_found_in_what_the_user_says(words, name):
    assert checks.leak(swap(GOOD, 2, Message("user", words)), FRAGMENTS) == f"message 2 (user) holds {name}"
    assert checks.leak(GOOD, FRAGMENTS, system=f"You help. {words}") == f"the system prompt holds {name}"


@pytest.mark.parametrize(
    "words", ["If negative, return 45.", "It starts with def price(hours):", "rate: 7", "I do not know."]
)
def test_telling_a_value_or_the_signature_is_no_leak(words):
    assert checks.leak(swap(GOOD, 2, Message("user", words)), FRAGMENTS) is None


def test_what_the_agent_said_first_may_be_repeated():
    first = swap(GOOD, 1, Message("assistant", "What should price(3) return? Is it total = hours * 7?"))
    assert checks.leak(swap(first, 2, Message("user", "Yes, total = hours * 7, so price(3) is 21.")), FRAGMENTS) is None
    assert checks.leak(swap(GOOD, 3, Message("assistant", TASK.ground_truth)), FRAGMENTS) is None
