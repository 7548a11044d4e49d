"""What a reply in a synthetic dialogue is worth, known from how the task was made: for measuring critics and agents."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

from sweetrl.colbench.markers import marked_answer, visible_reply
from sweetrl.domains.backend.suite.agents import read_request
from sweetrl.domains.backend.suite.details import BY_NAME, Kind, kinds_asked
from sweetrl.domains.backend.suite.tasks import read_facts
from sweetrl.types import Message, Task

Verdict = Literal["needed", "plausible", "irrelevant", "repeated", "unclear", "complete", "premature", "mistaken"]


def judge_reply(task: Task, earlier: Sequence[Message], reply: str) -> Verdict | None:
    """Judge an agent's `reply` to the dialogue `earlier`; None for a task that is not of the suite.

    needed      asks for a hidden detail of the task that was not asked for before
    plausible   asks for something new that tasks of this domain may hide, and this one does not
    irrelevant  asks for what no task of this domain can hide
    repeated    asks for nothing but what was asked before
    unclear     asks for no kind of detail
    complete    answers, with every detail in the program as it was told
    premature   answers, true to what was told, with a detail not yet told
    mistaken    answers, and a detail that was told is missing or wrong in the program
    """
    facts = read_facts(task.hidden_information)
    if not facts:
        return None
    try:
        request = read_request(task.problem_description)
    except ValueError:
        return None
    asked: set[str] = set()
    told: set[str] = set()
    for message in earlier:
        if message.role == "assistant":
            kinds = kinds_asked(message.content)
            asked.update(kinds)
            told.update([name for name in kinds if name in facts][:2])  # the user tells two details at a time
    program = marked_answer(visible_reply(reply))
    if program is not None:
        if any(step_in(program, BY_NAME[name], facts[name], request.argument) != "right" for name in told):
            return "mistaken"
        return "complete" if told == facts.keys() else "premature"
    kinds = kinds_asked(reply)
    new = set(kinds) - asked
    if not new:
        return "repeated" if kinds else "unclear"
    if new & facts.keys():
        return "needed"
    return "plausible" if new & set(request.domain.relevant) else "irrelevant"


# What verdicts are worth, in the order of Backend.contrasts.
WORTH: dict[Verdict, float] = {
    "needed": 3.0,
    "complete": 3.0,
    "plausible": 2.0,
    "irrelevant": 1.0,
    "repeated": 0.0,
    "unclear": 0.0,
    "mistaken": -1.0,
    "premature": -2.0,
}
NEW_QUESTIONS = ("needed", "plausible", "irrelevant")
PASSING_OVER = -0.5  # of such a question that leaves a hidden detail behind


def worth_of(verdict: Verdict, task: Task, earlier: Sequence[Message], reply: str) -> float:
    """Return what a reply with that verdict is worth: agents of the suite seldom turn back for what they pass over."""
    if verdict in NEW_QUESTIONS and passes_over(task, earlier, reply):
        return PASSING_OVER
    return WORTH[verdict]


def passes_over(task: Task, earlier: Sequence[Message], reply: str) -> bool:
    """Whether `reply` asks about a kind that stands in a program after a hidden detail that was not asked for.

    The agents of this suite ask in that order and seldom turn back: what is passed over is mostly lost.
    """
    order = list(BY_NAME)
    asked = {name for message in earlier if message.role == "assistant" for name in kinds_asked(message.content)}
    missing = [order.index(name) for name in read_facts(task.hidden_information) if name not in asked]
    places = [order.index(name) for name in kinds_asked(reply)]
    return bool(missing and places) and min(places) > min(missing)


def step_in(program: str, kind: Kind, values: Sequence[str], argument: str) -> str:
    """Whether the step of `kind` is in `program`: "right", with an "other value", or "missing"; blanks are ignored."""
    lines = "\n".join("".join(line.split()) for line in program.splitlines())
    if _step_pattern(kind, argument, [re.escape(value) for value in values]).search(lines):
        return "right"
    anything = [r"-?[\w.]+"] * max(2, len(values))
    return "other value" if _step_pattern(kind, argument, anything).search(lines) else "missing"


def _step_pattern(kind: Kind, argument: str, values: Sequence[str]) -> re.Pattern[str]:
    marks = [f"\0{index}\0" for index in range(max(2, len(values)))]
    text = "\n".join("".join(line.format(*marks, x=argument).split()) for line in kind.code)
    pattern = re.escape(text)
    for mark, value in zip(marks, values, strict=False):
        pattern = pattern.replace(re.escape(mark), f"(?:{value})")
    return re.compile(rf"(?m)^{pattern}$")
