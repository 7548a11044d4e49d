"""`sweetrl users check`: a good user is distinguished from users who guess, refuse, leak or give up."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from sweetrl.backend import Backend
from sweetrl.colbench.described import DescribedUser, Fact
from sweetrl.colbench.personas import REFUSAL
from sweetrl.colbench.users import ScriptedUser
from sweetrl.errors import SimulatorError
from sweetrl.evaluation.users import FOREIGN, FOREIGN_QUESTIONS, check_user, says
from sweetrl.types import Message, Task

BACKEND = Backend()
PROGRAM = "def f(x, y):\n    rate = 7\n    if x > 40:\n        return 'large'\n    return round(y * rate, 3)"
TASKS = [Task(f"t{number}", "I want f(x, y).", PROGRAM, (("test1", "f(1, 2)"),)) for number in range(3)]


def lost(task: Task, messages: Sequence[Message], seed: int) -> str:
    raise SimulatorError("the server is gone")


@pytest.mark.parametrize(
    ("user", "right", "wrong", "early", "invented", "leaks"),
    [
        (DescribedUser(BACKEND.facts), 1.0, 0.0, 0.0, 0.0, 0.0),
        (ScriptedUser(lambda *_: "It is 12."), 0.0, 1.0, 0.0, 1.0, 0.0),
        (ScriptedUser(lambda *_: "I do not know."), 0.0, 0.0, 0.0, 0.0, 0.0),
        (ScriptedUser(lambda *_: REFUSAL), 0.0, 0.0, 1.0, 0.0, 0.0),
        (ScriptedUser(lambda *_: "```python\nreturn 1\n```"), 0.0, 1.0, 0.0, 1.0, 1.0),
        (ScriptedUser(lost), 0.0, 0.0, 1.0, 0.0, 0.0),
    ],
)
def test_what_a_user_says_is_counted(
    user: DescribedUser | ScriptedUser, right: float, wrong: float, early: float, invented: float, leaks: float
) -> None:
    answers = check_user(BACKEND, user, "user", TASKS, 5, 4)
    rates = {what: rate.value for what, rate in answers.rates()}
    assert rates["right"] == right and rates["wrong"] == wrong and rates["ended early"] == early
    assert rates["answered what it cannot know"] == invented and rates["leaked code"] == leaks
    assert answers.counts["foreign"] == len(TASKS) * FOREIGN and answers.counts["asked"] >= len(TASKS)
    assert answers == check_user(BACKEND, user, "user", TASKS, 5, 4)
    assert len(FOREIGN_QUESTIONS) >= FOREIGN


@pytest.mark.parametrize(
    ("text", "words", "said"),
    [
        ("The rate is 5.", "It is 5.", True),
        ("The rate is 5.", "5% of it, at most $100.", True),
        ("The rate is 5.", "It is 15.", False),
        ("The rate is 5.", "It is 0.5.", False),
        ("The rate is 0.5.", "0.50, I think.", True),
        ("The limit is 1000.", "It is 1,000.", True),
        ("The limit is 1000.", "It is 1,000,000.", False),
        ("The limits are 5 and 100.", "5, 100", True),
        ('Above that it is "large".', "Then it is called large.", True),
        ('It returns "huge" above 9.', "Above 9.", True),  # the question has the text already
    ],
)
def test_a_fact_is_said_by_its_own_numbers_and_texts(text: str, words: str, said: bool) -> None:
    assert says(words, Fact("rate", text, "-"), TASKS[0], 'When does it return "huge"?') == said
