"""What a reply in a synthetic dialogue is worth."""

from __future__ import annotations

import pytest

from sweetrl.domains.backend.suite import ScriptedSimulator, generate
from sweetrl.domains.backend.suite.agents import OracleAgent, read_request, write_answer
from sweetrl.domains.backend.suite.details import BY_NAME, KINDS
from sweetrl.domains.backend.suite.judge import judge_reply
from sweetrl.domains.backend.suite.tasks import read_facts
from sweetrl.types import Message, Task

TASKS = list(generate("train", 40, 3, 3))


def ask(task: Task, names: list[str]) -> list[Message]:
    messages = [Message("user", task.problem_description)]
    for name in names:
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
        else:
            assert verdict == ("plausible" if kind.name in request.domain.relevant else "irrelevant")
    assert judge_reply(task, ask(task, [first]), "How are you?") == "unclear"

    everything = write_answer(request, dict(facts))
    assert judge_reply(task, ask(task, list(facts)), everything) == "complete"
    partly = write_answer(request, {first: facts[first]})
    assert judge_reply(task, ask(task, [first]), partly) == ("premature" if rest else "complete")
    assert judge_reply(task, ask(task, list(facts)), partly) == ("mistaken" if rest else "complete")


def test_the_oracle_never_does_wrong() -> None:
    for task in TASKS:
        messages = [Message("user", task.problem_description)]
        verdicts = []
        while not verdicts or verdicts[-1] not in ("complete", "mistaken", "premature"):
            reply = OracleAgent().act(task, messages)
            verdicts.append(judge_reply(task, messages, reply))
            messages += [Message("assistant", reply)]
            messages += [Message("user", ScriptedSimulator().reply(task, messages, 2))]
        assert verdicts[-1] == "complete" and set(verdicts[:-1]) <= {"needed", "plausible"}


def test_other_tasks_have_no_verdict() -> None:
    task = Task("1", "Write a function. The signature is def f(x).", "def f(x):\n    return x", (("test1", "f(1)"),))
    assert judge_reply(task, [Message("user", task.problem_description)], "What is x?") is None
