"""The generated suites to the byte: whoever changes them changes what every agent was trained and measured on."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from sweetrl.backend import Backend
from sweetrl.backend.suite import ScriptedSimulator, agents
from sweetrl.backend.suite.users import PERSONAS
from sweetrl.colbench.dialogue import Environment
from sweetrl.colbench.domain import Domain
from sweetrl.config.settings import PretrainSettings, Settings
from sweetrl.frontend import Frontend
from sweetrl.frontend.suite import agents as page_agents
from sweetrl.protocols import UserSimulator
from sweetrl.types import Message, Task, Trajectory

PLAIN = Settings.model_validate({"suite_options": {"hints": "plain"}})
DOMAINS = {"backend": Backend(), "plain": Backend().configured(PLAIN), "frontend": Frontend()}


def digest(values: Iterable[Any]) -> str:
    return hashlib.sha256(repr(list(values)).encode()).hexdigest()[:16]


def facts(task: Task) -> tuple[Any, ...]:
    return task.id, task.problem_description, task.ground_truth, task.test_cases, task.hidden_information


def words(messages: Iterable[Message]) -> list[str]:
    return [message.content for message in messages]


@pytest.mark.parametrize("name", DOMAINS)
def test_tasks(name: str) -> None:
    domain = DOMAINS[name]
    made = [
        facts(task)
        for split in ("train", "test")
        for difficulty in (1, 3, 5)
        for task in (*domain.tasks(split, 60, 7, difficulty), *domain.pretraining_tasks(30, 1, difficulty))
    ]
    assert digest(made) == TASKS[name]


@pytest.mark.parametrize("name", ["backend", "frontend"])
def test_demonstrations_and_their_judgments(name: str) -> None:
    domain, contents = DOMAINS[name], []
    for seed, task in enumerate(domain.tasks("train", 80, 5, 3)):
        shown = domain.demonstrate(task, PretrainSettings(), 7, seed)
        messages = shown.messages
        dialogue = Trajectory(task, 0, messages, answer=domain.final_answer(messages), outcome=domain.outcome(messages))
        judgments = [domain.judge(task, messages[:at], messages[at].content) for at in range(1, len(messages), 2)]
        contents += [words(messages), shown.informed, [(each.worth, each.verdict) for each in judgments if each]]
        contents += [sorted(domain.diagnose(dialogue, domain.questions(dialogue), 7).items())]
        contents += [(fragment.name, fragment.text) for fragment in domain.hidden_fragments(task)]
    assert digest(contents) == DEMONSTRATIONS[name]


Agents = Callable[[int], list[Any]]
CONTROLS: dict[str, Agents] = {
    "backend": lambda turns: [
        *(agents.ScriptedAgent(order, turns) for order in ("hints", "usual", "random")), agents.OracleAgent()
    ],
    "frontend": lambda turns: [
        *(page_agents.ScriptedAgent(start, turns) for start in ("hints", "usual", "random")), page_agents.OracleAgent()
    ],
}  # fmt: skip
USERS: dict[str, list[UserSimulator]] = {
    "backend": [ScriptedSimulator(persona) for persona in PERSONAS],
    "frontend": [page_agents.scripted_user(), page_agents.scripted_user(1)],
}


def play(domain: Domain, task: Task, user: UserSimulator, agent: Any) -> list[str]:
    environment = Environment(task, domain, user, 7, domain.reply_characters, seed=2)
    while not environment.done:
        environment.step(agent.act(task, environment.messages))
    return words(environment.messages)


@pytest.mark.parametrize("name", CONTROLS)
def test_dialogues_of_every_user_with_every_control(name: str) -> None:
    domain = DOMAINS[name]
    dialogues = [
        play(domain, task, user, agent)
        for task in domain.tasks("test", 25, 2, 4)
        for user in USERS[name]
        for agent in CONTROLS[name](7)
    ]
    assert digest(dialogues) == DIALOGUES[name]


TASKS = {"backend": "b0f4ec8c87717199", "plain": "146ae734a4705354", "frontend": "a55b886b718acc0f"}
DEMONSTRATIONS = {"backend": "27a2cacbb1c213fe", "frontend": "b1c9e78daadef976"}
DIALOGUES = {"backend": "6c8fa478e3311e76", "frontend": "de11688402997d42"}
