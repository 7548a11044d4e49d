import math
import random
from dataclasses import replace

import pytest

from sweetrl.backend import Backend
from sweetrl.backend.suite import ScriptedSimulator, generate
from sweetrl.backend.suite.agents import OracleAgent, ScriptedAgent, read_request, write_answer
from sweetrl.backend.suite.details import BY_NAME
from sweetrl.backend.suite.tasks import read_facts
from sweetrl.backend.suite.users import REFUSAL
from sweetrl.colbench.dialogue import Environment
from sweetrl.config.settings import parse_settings
from sweetrl.errors import UserError
from sweetrl.evaluation.metrics import (
    compare,
    compare_parts,
    over_tasks,
    paired,
    read_results,
    result_of,
    results_of,
    write_results,
)
from sweetrl.types import OUTGROWN, AgentTurn, Message, Result, Task, TestResult, Trajectory

BACKEND = Backend()


def talk(task, agent, seed=0, persona="plain"):
    environment = Environment(task, BACKEND, ScriptedSimulator(persona), seed=seed)
    while not environment.done:
        environment.step(agent.act(task, environment.messages))
    return Trajectory(task, 0, environment.messages, (), environment.answer, 0.5, (), environment.outcome)


@pytest.fixture(scope="module")
def tasks():
    return list(generate("test", 40, seed=2, difficulty=3))


def test_the_oracle_makes_no_mistake(tasks):
    for task in tasks:
        result = result_of(talk(task, OracleAgent()), "base", BACKEND)
        faults = (
            result.premature, result.irrelevant, result.unhinted, result.untold, result.forgotten, result.mistaken,
            result.repeated,
        )  # fmt: skip
        assert faults == (False, 0, 0, 0, 0, 0, 0), (task.id, result)
        assert result.details == len(read_facts(task.hidden_information))
        domain = read_request(task.problem_description).domain
        assert (result.topic, result.held_out) == (domain.name, domain.held_out)
        assert result.questions == result.turns - 1 and result.outcome == "answered"


class Says:
    """Says these replies, one after the other."""

    name = "says"

    def __init__(self, *replies):
        self.replies = replies

    def act(self, task, messages):
        return self.replies[len(messages) // 2]


def test_every_kind_of_fault_is_seen(tasks):
    task = next(task for task in tasks if {"rate", "base"} <= read_facts(task.hidden_information).keys())
    request, facts = read_request(task.problem_description), read_facts(task.hidden_information)
    question = {name: BY_NAME[name].questions[0] for name in BY_NAME}
    foreign = next(name for name in BY_NAME if name not in request.domain.relevant)

    wrong = write_answer(request, {"rate": (str(int(facts["rate"][0]) + 1),)})
    questions = question["rate"], question["base"], question["rate"], question[foreign], "How are you?"
    result = result_of(talk(task, Says(*questions, wrong)), "base", BACKEND)
    assert result.repeated == 1 and result.irrelevant == 2 and result.unhinted == 0
    assert result.untold == len(facts) - 2 and result.premature is (len(facts) > 2)
    assert result.forgotten == 1 and result.mistaken == 1


def test_a_question_is_unhinted_where_the_request_does_not_hint_at_it(tasks):
    for task in tasks:
        request, facts = read_request(task.problem_description), read_facts(task.hidden_information)
        unhinted = [name for name in request.domain.relevant if name not in request.named]
        foreign = next(name for name in BY_NAME if name not in request.domain.relevant)
        first = BY_NAME[next(iter(facts))].questions[0]
        questions = [*BY_NAME[unhinted[0]].questions[:2], BY_NAME[foreign].questions[0]]
        both = f"{first} {BY_NAME[unhinted[0]].questions[0]}"
        talked = talk(task, Says(*questions, first, both, "Hm?", write_answer(request, {})))
        result = result_of(talked, "base", BACKEND)
        assert (result.unhinted, result.irrelevant, result.questions) == (2, 2, 6), task.problem_description
        false = [name for name in request.named if name not in facts]
        replies = [*(BY_NAME[name].questions[0] for name in false), write_answer(request, {})]
        assert result_of(talk(task, Says(*replies)), "base", BACKEND).unhinted == 0, "what is hinted at may be asked"


@pytest.mark.parametrize("name", ["tier", "bulk", "discount"])
def test_a_detail_told_in_part_is_untold_and_its_rest_is_no_repeat(name):
    tasks = [task for task in generate("test", 150, 2, 3) if name in read_facts(task.hidden_information)]
    kind = BY_NAME[name]
    for task in tasks:
        request, facts = read_request(task.problem_description), read_facts(task.hidden_information)
        answer = write_answer(request, {name: facts[name]})
        for questions, untold, repeated in (
            ([kind.questions[0]], len(facts), 0),
            ([kind.questions[0], kind.follow_ups[0]], len(facts) - 1, 0),
            ([kind.questions[0], kind.questions[1]], len(facts) - 1, 0),
            ([kind.questions[0], kind.follow_ups[0], kind.follow_ups[1]], len(facts) - 1, 1),
        ):
            result = result_of(talk(task, Says(*questions, answer)), "base", BACKEND)
            assert (result.untold, result.repeated, result.forgotten) == (untold, repeated, 0)
            assert result.premature is (untold > 0)
    assert tasks


def test_what_an_impatient_user_did_not_tell_is_untold_and_not_forgotten(tasks):
    refused = 0
    for seed, task in enumerate(tasks):
        talked = talk(task, ScriptedAgent("usual", 10), seed, "impatient")
        result = result_of(talked, "base", BACKEND)
        refused += REFUSAL in [message.content for message in talked.messages]
        assert (result.forgotten, result.mistaken) == (0, 0)
        assert (result.untold == 0) == (task.ground_truth in talked.answer)
    assert refused > 20


def test_max_turns_reached_is_not_premature(tasks):
    result = result_of(talk(tasks[0], Says(*["What is it?"] * 10)), "base", BACKEND)
    assert result.outcome == "max_turns_reached" and result.turns == 10 and result.questions == 9
    assert result.premature is False and result.untold == result.details


def test_an_answer_in_the_last_turn_is_not_premature(tasks):
    guess = talk(tasks[0], Says("Hm?", "Hm?", "I WANT TO ANSWER: def f(): ..."))
    assert guess.outcome == "answered" and result_of(guess, "base", BACKEND).premature is True
    assert result_of(guess, "base", BACKEND, max_turns=3).premature is False


def test_other_tasks_have_no_details_and_repeats_are_words():
    task = Task("backend_300-00007", "A request.", "def f(): ...", (("test1", "f()"),))
    words = ("What is x?", "1.", "what is  X?", "Again.", "I WANT TO ANSWER: def f(): ...")
    messages = (
        Message("user", "A request."),
        *(Message("user" if i % 2 else "assistant", text) for i, text in enumerate(words)),
    )
    result = result_of(
        Trajectory(task, 0, messages, (), "def f(): ...", 0.0, (TestResult("test1", False, "x"),)), "base", BACKEND
    )
    assert (
        result.topic == "backend_300" and result.repeated == 1 and result.premature is None and result.details is None
    )
    assert result.tests == 1 and result.tests_passed == 0


def test_topic_and_success_are_what_is_noted_with_the_dialogue():
    task = Task("t-7", "A request.", "def f(): ...", (("test1", "f()"),))
    messages = (Message("user", "A request."), Message("assistant", "What is x?"))
    left = Trajectory(task, 0, messages, (), "What is x?", 1.0, (), "user_left", extra={"topic": "taxi"}, solved=False)
    result = result_of(left, "base", BACKEND)
    assert (result.topic, result.outcome, result.reward, result.success) == ("taxi", "user_left", 1.0, False)
    assert (result.turns, result.questions) == (1, 0), "the last reply counts as the answer"
    assert result_of(replace(left, reward=0.2, solved=True), "base", BACKEND).success is True
    assert result_of(replace(left, extra={}, solved=None), "base", BACKEND).success is True
    assert result_of(replace(left, extra={}), "base", BACKEND).topic == "t"


def results(count=60, lost=()):
    chance = random.Random(1)
    rows = []
    for policy, level in (("base", 0.3), ("trained", 0.7)):
        for index in range(count):
            success = chance.random() < level
            reward = None if (policy, index) in lost else 1.0 if success else chance.choice([0.0, 0.5])
            rows.append(
                Result(
                    f"t{index:03d}", policy, ("taxi", "hotel")[index % 2], reward, success and reward is not None,
                    "lost" if reward is None else "answered", 0, 10, 5, 4, 1, premature=not success, irrelevant=1,
                    unhinted=2, details=3, untold=1, forgotten=0, mistaken=1, held_out=index % 2 == 1,
                )
            )  # fmt: skip
    return rows


def test_held_out_domains_are_counted_apart():
    taxis = [replace(result, held_out=result.topic == "taxi") for result in results()]
    summary = compare(taxis, resamples=500)
    taxi = summary["topics"]["taxi"]
    assert taxi["held_out"] and not summary["topics"]["hotel"]["held_out"]
    assert summary["held_out"] == {key: taxi[key] for key in ("tasks", "base", "trained")}
    assert (summary["held_out_before"], summary["held_out_after"]) == (taxi["base"]["value"], taxi["trained"]["value"])
    for every in (False, True):
        assert "held_out" not in compare([replace(result, held_out=every) for result in results()], resamples=500)


def test_comparison():
    summary = compare(results(), resamples=500)
    assert summary["tasks"] == 60 and summary["tasks_lost"] == 0
    assert summary["success_difference"] == pytest.approx(summary["success_after"] - summary["success_before"])
    assert summary["success_p_value"] < 0.01 and summary["difference"]["success"]["low"] > 0
    base = summary["policies"]["base"]
    assert base["success"]["low"] < base["success"]["value"] < base["success"]["high"]
    assert base["details_brought_out"] == {"value": pytest.approx(2 / 3), "count": 120, "of": 180}
    assert base["mistaken_details"]["value"] == pytest.approx(0.5)
    assert base["repeated_questions"]["value"] == pytest.approx(0.25)
    assert base["unhinted_questions"] == {"value": pytest.approx(0.5), "count": 120, "of": 240}
    assert summary["topics"].keys() == {"hotel", "taxi"} and summary["topics"]["taxi"]["tasks"] == 30
    gained, lost = summary["difference"]["success"]["gained"], summary["difference"]["success"]["lost"]
    assert (gained - lost) / 60 == pytest.approx(summary["success_difference"])
    rewards = [[result.reward for result in results() if result.policy == policy] for policy in ("base", "trained")]
    means = [sum(values) / 60 for values in rewards]
    assert [summary["reward_before"], summary["reward_after"]] == pytest.approx(means)
    assert summary["reward_difference"] == pytest.approx(means[1] - means[0])
    assert summary["reward_p_value"] == summary["difference"]["reward"]["p_value"] < 0.01
    assert base["reward"]["value"] == summary["reward_before"] and base["reward"]["low"] < means[0]
    assert summary == compare(results(), resamples=500)


def test_the_parts_of_a_reward_are_compared_where_it_has_several():
    def played(*parts):
        tasks = (Task(f"t{number}", "backend", "", "") for number in range(len(parts)))
        rows = zip(tasks, parts, strict=True)
        return [Trajectory(task, 0, (), reward=sum(each.values()) if each else None, parts=each) for task, each in rows]

    before = played({"tests": 0.0}, {"tests": 0.5, "price": -0.1}, {"tests": 1.0}, {"tests": 1.0, "price": -0.3})
    after = played({"tests": 1.0}, {"tests": 1.0, "price": -0.2}, {}, {"tests": 1.0, "price": -0.1})
    parts = compare_parts(before, after, 0.95, 200, 0)  # the third task was lost
    assert set(parts) == {"tests", "price"} and parts["tests"]["difference"]["n"] == 3
    assert parts["tests"]["base"]["value"] == 0.5 and parts["tests"]["difference"]["value"] == 0.5
    assert parts["price"]["difference"]["value"] == pytest.approx((0 - 0.1 + 0.2) / 3)
    assert compare_parts(played({"tests": 1.0}), played({"tests": 0.0}), 0.95, 200, 0) == {}


def test_a_lost_dialogue_takes_its_task_out_for_both():
    rows = results(lost={("base", 3), ("trained", 7)})
    before, after = paired(rows)
    assert len(before) == len(after) == 58
    assert [result.task_id for result in before] == [result.task_id for result in after]
    assert compare(rows, resamples=200)["tasks_lost"] == 2


LOST = Trajectory(
    Task("t-0", "Why?", "a"), 0, (Message("user", "Why?"), Message("assistant", "What?"), Message("user", "This.")),
    (AgentTurn(1, "What?"),), outcome="lost", error=f"{OUTGROWN}: no room",
)  # fmt: skip


def test_who_outgrows_the_context_has_failed_and_who_is_lost_to_others_has_not():
    assert (result_of(LOST, "trained", BACKEND).reward, result_of(LOST, "trained", BACKEND).success) == (0.0, False)
    for others in (replace(LOST, error="the user fell silent"), replace(LOST, messages=LOST.messages[:1], turns=())):
        assert result_of(others, "trained", BACKEND).reward is None


class Penalty:
    reward_range = (-1.0, 0.0)

    def __call__(self, task, dialogue):
        return -0.5


def endless(task, dialogue):
    return -0.5


def test_a_full_context_is_never_better_than_another_failure():
    """It had the domain's least reward, 0, where questions cost something and where `reward.function` goes below 0."""
    other = replace(LOST, task=replace(LOST.task, id="t-1"), outcome="answered", reward=-0.75, error="")
    spoken = {"trained": [LOST, other]}
    for changes, alone, together in (
        ({"turn_cost": 0.1}, -0.1, -0.1),
        ({"function": f"{__name__}:Penalty"}, -1.0, -1.0),
        ({"function": f"{__name__}:Penalty", "turn_cost": 0.1}, -1.1, -1.1),
        ({"function": f"{__name__}:endless"}, None, -0.75),  # then it is the least of those that were measured
        ({"function": "no_such_module:reward"}, None, -0.75),  # the viewer shows dialogues of others, too
    ):
        domain = BACKEND.configured(parse_settings({"reward": changes}))
        assert result_of(LOST, "trained", domain).reward == alone
        assert [result.reward for result in results_of(spoken, domain)] == [together, -0.75]
        assert results_of({"trained": [LOST]}, domain)[0].reward == alone

    class Unbounded(Backend):
        reward_range = (-math.inf, math.inf)  # as an OpenEnv environment's unless it says otherwise

    assert results_of(spoken, Unbounded())[0].reward == -0.75


def test_two_tasks_of_one_id_are_no_comparison():
    rows = results()
    with pytest.raises(UserError, match="task t003: there are several results of one policy"):
        compare([*rows, rows[3]], resamples=200)


def test_without_tasks_there_is_nothing_to_compare():
    with pytest.raises(UserError, match="at least 2 tasks"):
        compare(results(count=1))


def test_results_survive_the_file(tmp_path):
    rows = [
        *results(4),
        replace(results(1)[0], task_id="foreign", premature=None, unhinted=None, details=None, reward=None),
    ]
    write_results(tmp_path / "a.parquet", rows)
    write_results(tmp_path / "b.parquet", rows)
    assert read_results(tmp_path / "a.parquet") == rows
    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "b.parquet").read_bytes()
    (tmp_path / "broken.parquet").write_text("no")
    for name in ("none", "broken"):
        with pytest.raises(UserError, match=rf"{name}\.parquet: .* run the stage `evaluate`"):
            read_results(tmp_path / f"{name}.parquet")


def test_attempts_at_one_task_count_once(tasks):
    """Twenty attempts at one of two tasks tell no more of the tasks than two attempts do."""

    def rates(*rewards):  # of each task, its attempts'
        dialogues = [
            Trajectory(task, attempt, (), (), None, reward, (), "answered")
            for task, each in zip(tasks, rewards, strict=False)
            for attempt, reward in enumerate(each)
        ]
        return over_tasks(dialogues)

    assert rates([1.0, 0.0], [0.5, 0.5], [0.0]) == rates([1.0, 0.0] * 10, [0.5] * 20, [0.0, None])
    mixed = rates([1.0, 0.0], [0.5, 0.5], [0.0])
    assert (mixed["success"]["value"], mixed["mean reward"]["value"], mixed["success"]["n"]) == pytest.approx(
        (1 / 6, 1 / 3, 3)
    )
    assert mixed["success"]["low"] < 1 / 6 < mixed["success"]["high"]
    never = rates(*[[0.0] * 4] * 4)["success"]
    assert never["value"] == 0.0 and never["high"] == pytest.approx(0.4899, abs=1e-3), "4 tasks show little"
    assert rates([1.0] * 9) == {}
