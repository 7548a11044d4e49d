"""What goes wrong in dialogues about pages of the suite, judged by the dialogues alone."""

from __future__ import annotations

from collections.abc import Sequence

from sweetrl.colbench.dialogue import Environment
from sweetrl.evaluation.metrics import result_of, summarize_policy
from sweetrl.frontend import Frontend
from sweetrl.frontend.suite import generate
from sweetrl.frontend.suite.agents import SHOW, OracleAgent, belief, scripted_user, show
from sweetrl.frontend.suite.designs import BY_NAME, Design
from sweetrl.frontend.suite.tasks import read_facts, read_request, reference_design
from sweetrl.types import Message, Result, Task, Trajectory

TASKS = list(generate("test", 40, 3))
FRONTEND = Frontend()
MAX_TURNS = 8


class Writes:
    """Shows what is settled for `shown` turns, then ends with a page made of it and of the hidden details."""

    name = "writes"

    def __init__(self, shown: int, last: str) -> None:
        self.shown, self.last = shown, last

    def act(self, task: Task, messages: Sequence[Message]) -> str:
        settled = belief(messages)
        if len(messages) // 2 < self.shown:
            return show(settled, False, SHOW[0])
        return show(self._page(task, settled), True, "")

    def _page(self, task: Task, settled: Design) -> Design:
        facts = read_facts(task.hidden_information)
        if self.last == "plain":
            return read_request(task.problem_description)
        if self.last == "other":
            others = {name: [v for v in BY_NAME[name].values[1:] if v != facts[name]] for name in facts}
            return settled.set({name: values[0] for name, values in others.items() if values})
        return settled


def talk(task: Task, agent: object) -> Result:
    environment = Environment(task, FRONTEND, scripted_user(), MAX_TURNS)
    while not environment.done:
        environment.step(agent.act(task, environment.messages))  # type: ignore[attr-defined]
    dialogue = Trajectory(task, 0, environment.messages, (), environment.answer, 0.5, (), environment.outcome)
    return result_of(dialogue, "base", FRONTEND, MAX_TURNS)


def test_the_user_reveals_everything_to_the_oracle_which_makes_no_mistake() -> None:
    for task in TASKS:
        result = talk(task, OracleAgent())
        assert (result.untold, result.forgotten, result.mistaken, result.premature) == (0, 0, 0, False), task.id
        assert result.details == len(read_facts(task.hidden_information))
        assert result.topic == reference_design(task).topic
        assert result.irrelevant is None


def test_an_answer_before_all_is_revealed_is_premature() -> None:
    for task in TASKS:
        result = talk(task, Writes(1, "settled"))
        assert result.details is not None and result.untold is not None
        assert result.forgotten == result.mistaken == 0
        assert result.premature is (result.untold > 0)
        assert result.details - result.untold <= 3, "the user names three differences at a time"
    assert any(result.premature for result in (talk(task, Writes(1, "settled")) for task in TASKS))


def test_details_that_were_revealed_are_forgotten_or_mistaken() -> None:
    for task in TASKS:
        heeds = talk(task, Writes(1, "settled"))
        forgets, mistakes = talk(task, Writes(1, "plain")), talk(task, Writes(1, "other"))
        assert forgets.untold == mistakes.untold == heeds.untold
        assert heeds.details is not None and heeds.untold is not None
        revealed = heeds.details - heeds.untold
        assert forgets.forgotten == revealed and forgets.mistaken == 0
        single = sum(len(BY_NAME[name].values) == 2 for name in read_facts(task.hidden_information))
        assert mistakes.mistaken is not None and mistakes.forgotten == 0
        assert revealed - single <= mistakes.mistaken <= revealed
        assert forgets.premature


def test_the_summary_says_nothing_of_questions_where_nobody_knows() -> None:
    summary = summarize_policy([talk(task, Writes(1, "settled")) for task in TASKS], 0.95, 100, 0)
    assert summary["details_brought_out"]["of"] == sum(len(read_facts(task.hidden_information)) for task in TASKS)
    assert summary["forgotten_details"]["value"] == 0.0 < summary["premature_answers"]["value"]
    assert "irrelevant_questions" not in summary


def test_a_page_of_another_suite_has_no_details() -> None:
    task = Task("page-1", "A page, please.", "<html><body>Hello</body></html>", suite="frontend")
    silent = Trajectory(task, 0, (Message("user", task.problem_description),), (), None, 0.0)
    result = result_of(silent, "base", FRONTEND)
    assert result.details is None and result.premature is None
