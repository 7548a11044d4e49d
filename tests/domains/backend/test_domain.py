"""Backend Programming as a domain: its files, its user, its score, and what its replies are worth."""

from __future__ import annotations

from pathlib import Path

import pytest

from sweetrl.colbench.environment import Environment
from sweetrl.domains.backend import Backend
from sweetrl.domains.backend.suite.agents import OracleAgent
from sweetrl.domains.backend.suite.details import BY_NAME
from sweetrl.domains.backend.suite.judge import WORTH
from sweetrl.domains.backend.suite.tasks import read_facts
from sweetrl.errors import UserError
from sweetrl.plugins import find_domain
from sweetrl.settings import Settings
from sweetrl.types import Message, Task, Trajectory

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


def test_a_question_that_passes_over_a_hidden_detail_is_worth_less_than_none() -> None:
    for task in TASKS:
        first, *rest = read_facts(task.hidden_information)
        messages = [Message("user", task.problem_description)]
        needed = BACKEND.judge(task, messages, BY_NAME[first].questions[0])
        assert needed is not None and (needed.verdict, needed.worth) == ("needed", WORTH["needed"])
        if rest:  # asking for a later detail passes over the first one
            later = BACKEND.judge(task, messages, BY_NAME[rest[-1]].questions[0])
            assert later is not None and later.verdict == "needed" and later.worth < WORTH["repeated"]
    assert BACKEND.judge(FOREIGN, [Message("user", "halve")], "What is x?") is None
    assert BACKEND.diagnose(Trajectory(FOREIGN, 0, ()), [], 10) == {}


def test_a_program_needs_tests_and_a_page_a_domain_of_its_own() -> None:
    row = {"problem_description": "halve", "ground_truth": FOREIGN.ground_truth, "test_cases": {"a": "f(1)"}}
    assert BACKEND.parse_task(row, "here", "x").suite == "backend"
    with pytest.raises(UserError, match="here: the key `test_cases` is missing; add it"):
        BACKEND.parse_task({key: row[key] for key in ("problem_description", "ground_truth")}, "here", "x")
    with pytest.raises(UserError, match="`vision` looks at pages; set `suite: frontend`"):
        BACKEND.load_critic("vision", Path("none"))
    assert isinstance(find_domain("backend"), Backend)
