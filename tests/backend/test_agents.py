"""Agents of different skill: reading the hints pays, habit and chance do not; demonstrations are reproducible."""

from __future__ import annotations

import pytest

from sweetrl.backend import Backend
from sweetrl.backend.rewards import CodeScorer
from sweetrl.backend.suite import ScriptedSimulator, generate
from sweetrl.backend.suite.agents import ScriptedAgent, demonstrate
from sweetrl.backend.suite.topics import DOMAINS
from sweetrl.colbench.dialogue import Environment
from sweetrl.config.settings import PretrainSettings, RewardSettings
from sweetrl.types import ANSWER_MARKER, Task

TURNS = 7  # agent.max_turns of params.yaml
BACKEND = Backend()
PARTS = {
    "validation": lambda: generate("train", 300, 17, 3),
    "test": lambda: generate("test", 300, 17, 3),
    "held-out domains": lambda: generate("test", 300, 17, 3, [domain for domain in DOMAINS if domain.held_out]),
    "other domains": lambda: generate("test", 300, 17, 3, [domain for domain in DOMAINS if not domain.held_out]),
}


def play(agent: ScriptedAgent, task: Task) -> Environment:
    environment = Environment(task, BACKEND, ScriptedSimulator(), max_turns=TURNS)
    while not environment.done:
        environment.step(agent.act(task, environment.messages))
    return environment


def won(environment: Environment) -> bool:
    return environment.task.ground_truth in (environment.answer or "")


@pytest.fixture(scope="module")
def some_tasks() -> list[Task]:
    return list(generate("train", 200, seed=3, difficulty=3))


# Controls


@pytest.mark.parametrize("part", PARTS)
def test_reading_the_hints_succeeds_and_the_usual_order_and_chance_do_not(part: str) -> None:
    tasks = list(PARTS[part]())
    hints, usual, random = (
        sum(won(play(ScriptedAgent(order, TURNS), task)) for task in tasks) / len(tasks)
        for order in ("hints", "usual", "random")  # type: ignore[arg-type]
    )
    assert hints >= 0.97 and usual <= 0.35 and random <= 0.15
    assert usual > 0.05, "habit alone sometimes succeeds"


def test_the_sandbox_agrees_on_who_won() -> None:
    tasks = [*generate("train", 25, 5, 3), *generate("test", 25, 5, 3)]
    dialogues = [
        play(agent, task)
        for agent in (ScriptedAgent("hints", TURNS), ScriptedAgent("usual", TURNS), ScriptedAgent("random", TURNS))
        for task in tasks
    ]
    with CodeScorer(RewardSettings()) as scorer:
        scores = scorer.score_answers([(dialogue.task, dialogue.answer) for dialogue in dialogues])
    for dialogue, score in zip(dialogues, scores, strict=True):
        assert (score.reward == 1.0) == won(dialogue), dialogue.messages
    assert any(score.reward == 1.0 for score in scores[50:]) and any(0.0 < score.reward < 1.0 for score in scores[50:])


# Demonstrators


def test_demonstrations_are_functions_of_their_arguments(some_tasks: list[Task]) -> None:
    settings = PretrainSettings()
    dialogues = [demonstrate(task, settings, TURNS, seed) for seed, task in enumerate(some_tasks)]
    assert dialogues == [demonstrate(task, settings, TURNS, seed) for seed, task in enumerate(some_tasks)]
    assert dialogues != [demonstrate(task, settings, TURNS, seed + 1) for seed, task in enumerate(some_tasks)]
    for task, dialogue in zip(some_tasks, dialogues, strict=True):
        roles = [message.role for message in dialogue.messages]
        assert roles == ["user", "assistant"] * (len(roles) // 2) and len(roles) <= 2 * TURNS
        assert dialogue.messages[0].content == task.problem_description
        answers = [ANSWER_MARKER in message.content for message in dialogue.messages[1::2]]
        assert answers == [False] * (len(roles) // 2 - 1) + [True]
    assert 0.2 < sum(dialogue.informed for dialogue in dialogues) / len(dialogues) < 0.4
