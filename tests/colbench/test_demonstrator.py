"""The scripted agent for tasks with facts: what it asks, and that it ends with the reference."""

from __future__ import annotations

import pytest

from sweetrl.backend import Backend
from sweetrl.colbench.demonstrator import HABIT
from sweetrl.config.settings import PretrainSettings
from sweetrl.types import ANSWER_MARKER, Task

PROGRAM = """def fee(articles, age=30):
    if not articles:
        return 0
    total = sum(articles) * 1.07
    if age > 65:
        total = total - 3
    return round(total, 2)"""
TASK = Task("t", "I want the fee for some articles.", PROGRAM, (("test1", "fee([1, 2])"),), hidden_information=PROGRAM)
DOMAIN = Backend()


def questions_of(seed: int, **skill: float) -> list[str]:
    """The agent's questions in one dialogue, which is checked."""
    settings = PretrainSettings.model_validate({"informed": 0.0, **skill})
    shown = DOMAIN.demonstrate(TASK, settings, 5, seed)
    assert shown == DOMAIN.demonstrate(TASK, settings, 5, seed), "a function of its arguments"
    assert len(DOMAIN.demonstrate(TASK, settings, 40, seed).messages) <= 2 * len(HABIT) + 2, "no question twice"
    replies = [message.content for message in shown.messages if message.role == "assistant"]
    assert replies[-1].startswith(ANSWER_MARKER) and len(replies) <= 5
    assert DOMAIN.final_answer(shown.messages) == f"\n```python\n{PROGRAM}\n```"
    assert not any("```" in reply for reply in replies[:-1])
    return replies[:-1]


@pytest.mark.parametrize("informed", [False, True])
def test_an_agent_that_heeds_the_task_asks_about_its_facts(informed: bool) -> None:
    about = {fact.question for fact in DOMAIN.facts(TASK)}
    skill = {"informed": 1.0, "informed_heed": 1.0} if informed else {"heed_least": 1.0, "heed_most": 1.0}
    dialogues = [questions_of(seed, **skill) for seed in range(40)]
    assert all(set(questions) <= about and len(questions) == len(set(questions)) for questions in dialogues)
    assert any(len(questions) > 1 for questions in dialogues)


def test_an_agent_that_does_not_asks_out_of_habit_and_stops_early_at_times() -> None:
    dialogues = [questions_of(seed, heed_least=0.0, heed_most=0.0) for seed in range(40)]
    assert all(set(questions) <= set(HABIT) and len(questions) == len(set(questions)) for questions in dialogues)
    assert {len(questions) for questions in dialogues} >= {0, 4}
