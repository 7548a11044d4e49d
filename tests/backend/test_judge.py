"""What a reply in a synthetic dialogue is worth."""

from __future__ import annotations

import pytest

from sweetrl.backend.suite import ScriptedSimulator, generate
from sweetrl.backend.suite.agents import OracleAgent, ScriptedAgent, read_request, write_answer
from sweetrl.backend.suite.details import BY_NAME, KINDS
from sweetrl.backend.suite.judge import faults, judge_reply
from sweetrl.backend.suite.tasks import read_facts
from sweetrl.backend.suite.users import REFUSAL
from sweetrl.types import Message, Task, Trajectory

TASKS = [*generate("train", 30, 3, 3), *generate("test", 15, 3, 3)]


def ask(task: Task, names: list[str]) -> list[Message]:
    """A dialogue whose agent asks for these kinds of detail, twice for a kind of two parts."""
    messages = [Message("user", task.problem_description)]
    for name in names:
        for _ in range(BY_NAME[name].parts):
            messages.append(Message("assistant", BY_NAME[name].questions[1]))
            messages.append(Message("user", ScriptedSimulator().reply(task, messages, 1)))
    return messages


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.id)
def test_every_reply_gets_its_verdict(task: Task) -> None:
    request, facts = read_request(task.problem_description), read_facts(task.hidden_information)
    first, *rest = facts
    for kind in KINDS:
        verdict = judge_reply(task, ask(task, [first]), kind.questions[0])
        if kind.name == first:
            assert verdict == "repeated"
        elif kind.name in rest:
            assert verdict == "needed"
        elif kind.name in request.domain.relevant:
            assert verdict == ("hinted" if kind.name in request.named else "plausible")
        else:
            assert verdict == "irrelevant"
    assert judge_reply(task, ask(task, [first]), "How are you?") == "unclear"

    everything = write_answer(request, dict(facts))
    assert judge_reply(task, ask(task, list(facts)), everything) == "complete"
    partly = write_answer(request, {first: facts[first]})
    assert judge_reply(task, ask(task, [first]), partly) == ("premature" if rest else "complete")
    assert judge_reply(task, ask(task, list(facts)), partly) == ("mistaken" if rest else "complete")


def test_the_rest_of_a_detail_is_needed_until_it_is_told() -> None:
    seen = 0
    for task in TASKS:
        facts, request = read_facts(task.hidden_information), read_request(task.problem_description)
        for name in facts:
            if BY_NAME[name].parts == 1:
                continue
            seen += 1
            half = ask(task, [name])[:3]
            for question in (*BY_NAME[name].questions, *BY_NAME[name].follow_ups):
                assert judge_reply(task, half, question) == "needed"
                assert judge_reply(task, ask(task, [name]), question) == "repeated"
            # A detail told in part is not told: leaving it out is no mistake, and answering is too early.
            others = [other for other in facts if other != name]
            answer = write_answer(request, {other: facts[other] for other in others})
            assert judge_reply(task, [*ask(task, others), *half[1:]], answer) == "premature"
            assert judge_reply(task, [*ask(task, others), *ask(task, [name])[1:]], answer) == "mistaken"
    assert seen >= 10


def test_a_step_that_nobody_told_is_a_mistake() -> None:
    for task in TASKS:
        facts, request = read_facts(task.hidden_information), read_request(task.problem_description)
        for kind in KINDS:
            if kind.name not in facts:
                invented = {**facts, kind.name: ("7", "8")[: max(1, len(kind.values))]}
                verdict = judge_reply(task, ask(task, list(facts)), write_answer(request, invented))
                assert verdict == "mistaken", kind.name


def test_a_detail_that_the_user_refused_to_tell_is_not_told() -> None:
    task = next(task for task in TASKS if len(read_facts(task.hidden_information)) >= 2)
    facts, request = read_facts(task.hidden_information), read_request(task.problem_description)
    (first, values), (second, _), *_ = facts.items()
    refused = [Message("assistant", BY_NAME[second].questions[0]), Message("user", REFUSAL)]
    answer = write_answer(request, {first: values})
    assert judge_reply(task, [*ask(task, [first]), *refused], answer) == "premature", "true to what was told"
    assert judge_reply(task, [*ask(task, [first]), *refused], write_answer(request, {})) == "mistaken"


def test_a_question_that_was_misheard_may_be_asked_again() -> None:
    task = next(task for task in TASKS if any(BY_NAME[name].parts == 1 for name in read_facts(task.hidden_information)))
    name = next(name for name in read_facts(task.hidden_information) if BY_NAME[name].parts == 1)
    request, told, words = ask(task, [name])
    misheard = [request, told, Message("user", "What do you mean?"), told, words]
    for dialogue, repeated in ((misheard, 0), ([*misheard, told, words], 1)):
        questions = [message.content for message in dialogue if message.role == "assistant"]
        row = faults(Trajectory(task, 0, tuple(dialogue), answer="", outcome="max_turns_reached"), questions, 7)
        assert (row["repeated"], row["untold"]) == (repeated, row["details"] - 1)


def test_the_oracle_never_does_wrong_and_the_hints_agent_only_follows_hints() -> None:
    for agent, allowed in ((OracleAgent(), {"needed"}), (ScriptedAgent("hints", 7), {"needed", "hinted"})):
        for task in TASKS:
            messages = [Message("user", task.problem_description)]
            verdicts = []
            while not verdicts or verdicts[-1] not in ("complete", "mistaken", "premature"):
                reply = agent.act(task, messages)  # type: ignore[attr-defined]
                verdicts.append(judge_reply(task, messages, reply))
                messages += [Message("assistant", reply)]
                messages += [Message("user", ScriptedSimulator().reply(task, messages, 2))]
            assert verdicts[-1] == "complete" and set(verdicts[:-1]) <= allowed


def test_other_tasks_have_no_verdict() -> None:
    task = Task("1", "Write a function. The signature is def f(x).", "def f(x):\n    return x", (("test1", "f(1)"),))
    assert judge_reply(task, [Message("user", task.problem_description)], "What is x?") is None
    other = Task("2", task.problem_description, task.ground_truth, task.test_cases, hidden_information="rate: 3")
    assert judge_reply(other, [Message("user", task.problem_description)], "What is x?") is None
