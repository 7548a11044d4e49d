"""Backend Programming as a domain: its files, its user, its score, and what its replies are worth."""

from __future__ import annotations

from sweetrl.backend import Backend
from sweetrl.backend.suite.agents import OracleAgent, ScriptedAgent, read_request
from sweetrl.colbench.dialogue import Environment
from sweetrl.config.settings import Settings
from sweetrl.evaluation.metrics import COLUMNS
from sweetrl.types import Task, Trajectory

BACKEND = Backend()
TASKS = list(BACKEND.tasks("train", 5, 3, 3))
FOREIGN = Task("t", "halve", "def f(x):\n    return x / 2", (("test1", "f(1)"), ("test2", "f(2)")))


def test_a_dialogue_of_the_suite_is_scored_in_the_sandbox() -> None:
    with BACKEND.open() as tools:
        user, scorer = BACKEND.scripted_user(tools), BACKEND.scorer(tools)
        dialogues = []
        for task in TASKS:
            assert BACKEND.knows(task) and BACKEND.own(task) is task
            environment = Environment(task, BACKEND, user)
            while not environment.done:
                environment.step(OracleAgent().act(task, environment.messages))
            dialogues.append(Trajectory(task, 0, environment.messages, answer=environment.answer))
        scores = scorer.score([*dialogues, Trajectory(FOREIGN, 0, (), answer="def f(x): return 0.5")])
    assert [score.reward for score in scores] == [1.0] * 5 + [0.5]
    assert BACKEND.score(FOREIGN, FOREIGN.ground_truth).reward == 1.0
    assert not BACKEND.knows(FOREIGN)


def test_the_semantics_are_a_setting() -> None:
    official = BACKEND.configured(Settings.model_validate({"reward": {"semantics": "official"}}))
    banned = f"{FOREIGN.ground_truth}\n# sudo"
    assert (BACKEND.scoring(), BACKEND.evaluation_rules()) == ("fixed", ["fixed"])
    assert (official.scoring(), official.evaluation_rules()) == ("official", ["official"])
    assert (BACKEND.score(FOREIGN, banned).reward, official.score(FOREIGN, banned).reward) == (1.0, 0.0)


def test_a_diagnosis_fills_columns_of_a_result() -> None:
    for task in (*TASKS, *BACKEND.tasks("test", 40, 3, 3)):
        environment = Environment(task, BACKEND, BACKEND.scripted_user(None))
        while not environment.done:
            environment.step(ScriptedAgent("usual", 7).act(task, environment.messages))
        played = Trajectory(task, 0, environment.messages, answer=environment.answer, outcome=environment.outcome)
        found = BACKEND.diagnose(played, BACKEND.questions(played), 7)
        assert found.keys() <= set(COLUMNS) and {"unhinted", "held_out", "topic"} <= found.keys()
        request = read_request(task.problem_description)
        assert (found["topic"], found["held_out"]) == (request.domain.name, request.domain.held_out)
