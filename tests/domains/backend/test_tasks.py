"""The synthetic suite: disjoint splits, tests that expose every detail, users that know what they should."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sweetrl.colbench.environment import Environment
from sweetrl.colbench.files import read_tasks
from sweetrl.domains.backend import Backend
from sweetrl.domains.backend.suite import ScriptedSimulator, generate
from sweetrl.domains.backend.suite.agents import (
    NOTHING,
    UNKNOWN,
    Demonstrator,
    OracleAgent,
    Skill,
    read_request,
    write_answer,
)
from sweetrl.domains.backend.suite.details import BY_NAME, KINDS, kinds_asked
from sweetrl.domains.backend.suite.tasks import draw_spec, evaluate, read_facts, split_of, write_program
from sweetrl.domains.backend.suite.topics import AREAS, DOMAINS
from sweetrl.settings import RewardSettings
from sweetrl.types import Message, Task


def content(task: Task) -> str:
    request = read_request(task.problem_description)
    facts = ";".join(f"{name}={','.join(values)}" for name, values in read_facts(task.hidden_information).items())
    return f"{request.domain.name}|{request.function}|{request.argument}|{facts}"


def play(agent, task: Task, max_turns: int = 10) -> Environment:
    environment = Environment(task, Backend(), ScriptedSimulator(), max_turns=max_turns)
    while not environment.done:
        environment.step(agent.act(task, environment.messages))
    return environment


@pytest.fixture(scope="module")
def some_tasks() -> list[Task]:
    return list(generate("train", 400, seed=3, difficulty=3))


def test_the_suite_is_as_large_and_as_varied_as_promised():
    assert len(DOMAINS) >= 12
    assert len(KINDS) >= 12
    assert len(KINDS) > 10, "more kinds of detail than turns to ask in"
    for domain in DOMAINS:
        assert len(set(domain.relevant)) == len(domain.relevant) == 9, (
            "an agent can ask for all of them, and then answer"
        )
        assert all(name in BY_NAME for name in domain.relevant)
        assert min(len(domain.phrases), len(domain.functions), len(domain.arguments)) >= 2


def test_equal_arguments_give_equal_tasks_and_a_longer_list_starts_the_same():
    first = list(generate("train", 50, seed=1, difficulty=2))
    assert first == list(generate("train", 80, seed=1, difficulty=2))[:50]
    assert first != list(generate("train", 50, seed=2, difficulty=2))


def test_equal_tasks_come_from_another_process_with_another_hash_seed():
    program = (
        "import hashlib; from sweetrl.domains.backend.suite import generate; "
        "print(hashlib.sha256(repr(list(generate('test', 40, 5, 3))).encode()).hexdigest())"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", program], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert len(digests) == 1


def test_train_and_test_share_no_content_for_any_seed():
    train = {content(task) for seed in (1, 2) for task in generate("train", 1500, seed, 3)}
    test = {content(task) for seed in (1, 3) for task in generate("test", 500, seed, 3)}
    assert not train & test
    assert all(split_of(c) == "train" for c in train)
    assert all(split_of(c) == "test" for c in test)


def test_no_content_occurs_twice(some_tasks):
    assert len({content(task) for task in some_tasks}) == len(some_tasks)


@pytest.mark.parametrize("difficulty", [1, 3, 6])
def test_difficulty_is_the_number_of_hidden_details(difficulty):
    counts = [len(read_facts(task.hidden_information)) for task in generate("train", 300, 1, difficulty)]
    assert min(counts) >= max(1, difficulty - 1)
    assert max(counts) <= difficulty + 1
    assert difficulty - 0.6 < sum(counts) / len(counts) < difficulty + 0.6


def test_requests_tell_nothing_of_the_details(some_tasks):
    for task in some_tasks:
        wish, _, _ = task.problem_description.partition("The signature of the function is:")
        assert not any(character.isdigit() for character in wish)
        assert not any(question.split()[0].rstrip(":") in wish for kind in KINDS for question in kind.questions)


def test_requests_name_the_areas_of_their_details_and_no_others(some_tasks):
    assert sorted(name for area in AREAS for name in area.kinds) == sorted(BY_NAME)
    for task in some_tasks:
        hidden = set(read_facts(task.hidden_information))
        words = set(re.findall(r"\w+", task.problem_description.partition(" rules about ")[2].partition(".")[0]))
        for area in AREAS:
            assert bool(words & set(area.words)) == bool(hidden & set(area.kinds)), task.problem_description


def test_the_areas_named_leave_about_five_kinds_to_ask_for(some_tasks):
    left = []
    for task in some_tasks:
        hidden = set(read_facts(task.hidden_information))
        named = {name for area in AREAS if hidden & set(area.kinds) for name in area.kinds}
        left.append(len(named & set(read_request(task.problem_description).domain.relevant)))
    assert 4.5 < sum(left) / len(left) < 6 and max(left) <= 9


def test_the_first_word_of_a_question_tells_its_subject():
    first = {kind.name: {question.split()[0].rstrip("s:") for question in kind.questions} for kind in KINDS}
    assert all(len(words) == 1 for words in first.values())
    assert len(set.union(*first.values())) == len(KINDS)


def test_every_task_has_ten_different_tests(some_tasks):
    for task in some_tasks:
        assert [name for name, _ in task.test_cases] == [f"test{i}" for i in range(1, 11)]
        assert len({call for _, call in task.test_cases}) == 10


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 10**6), x=st.integers(-3, 90), difficulty=st.integers(1, 6))
def test_the_arithmetic_of_the_generator_is_that_of_the_programs_it_writes(seed, x, difficulty):
    spec = draw_spec(random.Random(seed), difficulty)
    namespace: dict = {}
    exec(spec.program(), namespace)  # our own generator's text, not a model's
    expected = namespace[spec.function](x)
    found = evaluate(dict(spec.details), x)
    assert (found, type(found)) == (expected, type(expected))


def test_a_program_that_lacks_a_detail_or_has_a_wrong_value_fails(some_tasks):
    for task in some_tasks[:150]:
        facts = read_facts(task.hidden_information)
        details = {name: tuple(int(v) if v.isdigit() else v for v in values) for name, values in facts.items()}
        inputs = [int(call[call.index("(") + 1 : -1]) for _, call in task.test_cases]
        right = [evaluate(details, x) for x in inputs]
        for name, values in details.items():
            without = {other: v for other, v in details.items() if other != name}
            assert [evaluate(without, x) for x in inputs] != right, (task.id, name)
            for i, value in enumerate(values):
                if isinstance(value, int):
                    changed = {**details, name: (*values[:i], value + 1, *values[i + 1 :])}
                    assert [evaluate(changed, x) for x in inputs] != right, (task.id, name, i)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_every_wording_of_a_question_is_understood(kind):
    for question in kind.questions:
        assert kinds_asked(question) == (kind.name,), question


@pytest.mark.parametrize(
    ("question", "name"),
    [
        ("What VAT rate applies?", "tax"),
        ("Are there any volume discounts?", "bulk"),
        ("How much do you charge per hour?", "rate"),
        ("Is there an upper limit on the price?", "maximum"),
        ("How many decimal places should the result have?", "rounding"),
        ("Do customers pay a deposit that should be deducted?", "credit"),
        ("Is there a flat starting fee?", "base"),
    ],
)
def test_questions_in_other_words_are_understood(question, name):
    assert name in kinds_asked(question)


def test_the_user_answers_from_the_reference_only(some_tasks):
    simulator = ScriptedSimulator()
    for task in some_tasks[:100]:
        facts = read_facts(task.hidden_information)
        for kind in KINDS:
            messages = [Message("user", task.problem_description), Message("assistant", kind.questions[0])]
            reply = simulator.reply(task, messages, seed=4)
            assert reply == simulator.reply(task, messages, seed=4)
            assert reply.count(".") <= 2
            assert len(reply) <= 400
            if kind.name in facts:
                assert all(value in reply for value in facts[kind.name])
            else:
                assert reply in NOTHING
        odd = [Message("user", task.problem_description), Message("assistant", "Do you like music?")]
        assert simulator.reply(task, odd, seed=4) in UNKNOWN


def test_the_user_says_at_most_two_sentences_even_when_asked_for_everything(some_tasks):
    everything = " ".join(kind.questions[0] for kind in KINDS)
    task = next(t for t in some_tasks if len(read_facts(t.hidden_information)) == 4)
    reply = ScriptedSimulator().reply(task, [Message("user", ""), Message("assistant", everything)], 0)
    assert 1 <= reply.count(".") <= 2


def test_the_oracle_solves_everything_and_answering_at_once_solves_next_to_nothing(some_tasks):
    from sweetrl.domains.backend.rewards import CodeScorer

    tasks = some_tasks[:120]
    oracle = [play(OracleAgent(), task).answer for task in tasks]
    at_once = [write_answer(read_request(task.problem_description), {}) for task in tasks]
    with CodeScorer(RewardSettings()) as scorer:
        assert all(score.reward == 1.0 for score in scorer.score_answers(list(zip(tasks, oracle, strict=True))))
        blind = scorer.score_answers(list(zip(tasks, at_once, strict=True)))
    assert sum(score.reward == 1.0 for score in blind) == 0


def test_the_demonstrator_has_the_faults_of_a_base_agent(some_tasks):
    demonstrator = Demonstrator(Skill(0.6), max_turns=10, rng=random.Random(0))
    repeated = irrelevant = early = won = 0
    for task in some_tasks:
        environment = play(demonstrator, task)
        relevant = read_request(task.problem_description).domain.relevant
        asked = [name for m in environment.messages if m.role == "assistant" for name in kinds_asked(m.content)]
        repeated += len(set(asked)) < len(asked)
        irrelevant += any(name not in relevant for name in asked)
        early += not set(read_facts(task.hidden_information)) <= set(asked)
        won += task.ground_truth in (environment.answer or "")
    n = len(some_tasks)
    assert 0.05 < won / n < 0.3
    assert repeated > n / 10
    assert irrelevant > n / 3
    assert early > n / 2


def test_a_perfect_demonstrator_asks_in_the_order_of_the_program_and_wins(some_tasks):
    order = [kind.name for kind in KINDS]
    demonstrator = Demonstrator(Skill(1.0, forget=0.0), max_turns=10, rng=random.Random(0))
    for task in some_tasks[:50]:
        environment = play(demonstrator, task)
        questions = [m.content for m in environment.messages if m.role == "assistant"][:-1]
        asked = [name for question in questions for name in kinds_asked(question)]
        assert asked == sorted(read_request(task.problem_description).domain.relevant, key=order.index)
        assert task.ground_truth in (environment.answer or "")


def test_a_program_without_details_returns_its_argument():
    assert write_program("f", "n", {}) == "def f(n):\n    total = n\n    return total"


def test_facts_of_a_foreign_task_are_empty():
    assert read_facts("def f(x):\n    return x") == {}
    assert read_facts(None) == {}


def test_a_foreign_request_is_refused():
    with pytest.raises(ValueError, match="not a request"):
        read_request("Sort a list. The signature of the function is: def order(xs)")


def test_tasks_have_the_official_form(some_tasks, tmp_path, write_tasks):
    path = write_tasks(tmp_path / "tasks.jsonl", some_tasks[:20])
    row = json.loads(path.read_text().splitlines()[0])
    assert {"problem_description", "ground_truth", "test_cases"} <= set(row)
    assert [t.ground_truth for t in read_tasks(path, Backend())] == [t.ground_truth for t in some_tasks[:20]]
