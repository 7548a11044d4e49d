"""benchmarks/real_tasks.py: its checks find what they are for, and are quiet where nothing is wrong."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from sweetrl.colbench.find import load_domain
from sweetrl.config.settings import parse_settings
from sweetrl.engines.chat import ChatFormat
from sweetrl.models.load import load_tokenizer
from sweetrl.types import AgentTurn, Message, Task, TestResult, Trajectory

TASK = Task(
    "t",
    "I want a price.",
    "def price(hours):\n    total = min(hours, 8) * 7 + 3\n    return round(total, 2)",
    (("test1", "price(3)"),),
)
ANSWER = "I WANT TO ANSWER:\n```python\ndef price(hours):\n    return 24\n```"
DOMAIN = load_domain(parse_settings({"agent": {"max_turns": 3}, "reward": {"workers": 1}}))


BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(BENCHMARKS), *sys.path])  # as for a script that is run from there


@pytest.fixture
def chat(tiny_model: Path) -> ChatFormat:
    return ChatFormat(load_tokenizer(tiny_model))


@pytest.fixture
def good(chat: ChatFormat) -> Trajectory:
    texts = ["What is the rate?", ANSWER]
    turns = tuple(
        AgentTurn(1 + 2 * place, text, chat.reply(text), finish_reason="stop") for place, text in enumerate(texts)
    )
    said = [TASK.problem_description, texts[0], "The rate is 7.", texts[1]]
    messages = tuple(Message("assistant" if place % 2 else "user", text) for place, text in enumerate(said))
    answer = DOMAIN.final_answer(messages)
    return Trajectory(TASK, 0, messages, turns, answer, 1.0, (TestResult("test1", True, "passed"),))


def heard(one: Trajectory, words: str) -> Trajectory:
    messages = list(one.messages)
    messages[2] = Message("user", words)
    return replace(one, messages=tuple(messages))


FAULTS: dict[str, Callable[[Trajectory], Trajectory]] = {
    "ids": lambda one: replace(one, turns=(replace(one.turns[0], raw="something else"), *one.turns[1:])),
    "marker": lambda one: replace(one, outcome="max_turns_reached"),
    "length": lambda one: heard(one, "word " * 100),
    "leaks": lambda one: replace(one, extra={"leaks": "2:quote"}),
    "hidden": lambda one: heard(one, "Well, min(hours, 8) * 7 + 3 and return round(total, 2) please."),
    "scores": lambda one: replace(one, reward=0.0),
}


def test_nothing_is_found_where_nothing_is_wrong(good: Trajectory, chat: ChatFormat) -> None:
    from real_tasks import checks, facts

    assert dict(checks([good], DOMAIN, chat)) == {name: [] for name in FAULTS}
    rows = dict(facts([good]))
    assert (rows["replies"], rows["of them with the marker"], rows["successes"]) == (2, 1, 1)


@pytest.mark.parametrize("name", FAULTS)
def test_every_fault_is_found(name: str, good: Trajectory, chat: ChatFormat) -> None:
    from real_tasks import checks

    found = dict(checks([FAULTS[name](good)], DOMAIN, chat))
    assert found[name] and found[name][0].startswith("t")
