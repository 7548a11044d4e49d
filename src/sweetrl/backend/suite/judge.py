"""What a reply in a synthetic dialogue is worth, and what went wrong in a dialogue, by the hidden facts of the task."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from sweetrl.backend.suite.agents import Request, read_request
from sweetrl.backend.suite.details import BY_NAME, KINDS, Kind, kinds_asked
from sweetrl.backend.suite.tasks import read_facts
from sweetrl.backend.suite.users import answered_questions, brought_out, complete_details, questions_of
from sweetrl.colbench.markers import marked_answer
from sweetrl.types import Message, Task, Trajectory


def judge_reply(task: Task, earlier: Sequence[Message], reply: str) -> str | None:
    """Judge an agent's visible `reply` to the dialogue `earlier`; None for a task that is not of the suite.

    needed      brings out a hidden detail of the task, or a part of it, that had not been told yet
    hinted      asks for something new that the request hints at, and that this task does not hide
    plausible   asks for something new that tasks of this domain may hide, and at which the request does not hint
    irrelevant  asks for what no task of this domain can hide
    repeated    asks only for what was asked before
    unclear     asks for no kind of detail
    complete    answers, with every detail in the program as it was told
    premature   answers, true to what was told, with a detail not yet told
    mistaken    answers, with a detail that was told missing or wrong, or with a detail that nobody told
    """
    if (hidden := _read(task)) is None:
        return None
    facts, request = hidden
    answered = answered_questions(earlier)
    complete = complete_details(facts, answered)
    program = marked_answer(reply)
    if program is not None:
        if any(step_in(program, BY_NAME[name], facts[name], request.argument) != "right" for name in complete):
            return "mistaken"
        others = [kind for kind in KINDS if kind.name not in facts]
        if any(step_in(program, kind, (), request.argument) != "missing" for kind in others):
            return "mistaken"
        return "complete" if complete == facts.keys() else "premature"
    kinds = kinds_asked(reply)
    if brought_out(facts, answered, kinds):
        return "needed"
    new = set(kinds).difference(*questions_of(earlier))
    if not new:
        return "repeated" if kinds else "unclear"
    if new & set(request.named):
        return "hinted"
    return "plausible" if new & set(request.domain.relevant) else "irrelevant"


def _read(task: Task) -> tuple[dict[str, tuple[str, ...]], Request] | None:
    """The facts and the request of a task of the suite; None for any other."""
    facts = read_facts(task.hidden_information)
    try:
        return (facts, read_request(task.problem_description)) if facts else None
    except ValueError:
        return None


# What verdicts are worth to somebody who knows the task, in the order of Backend.contrasts.
WORTH: dict[str, float] = {
    "needed": 3.0,
    "complete": 3.0,
    "hinted": 2.0,
    "plausible": 1.0,
    "irrelevant": 0.0,
    "repeated": 0.0,
    "unclear": 0.0,
    "mistaken": -1.0,
    "premature": -2.0,
}


def faults(trajectory: Trajectory, questions: Sequence[str], max_turns: int) -> dict[str, Any]:
    """Return the columns of a Result that are about details, and the kind of task; none for a task of another suite.

    premature    the agent answered with turns left, although it had not been told every hidden detail
    repeated     a question about what was asked before only, and that brings out nothing more
    irrelevant   a question about no kind of detail that this kind of task can have
    unhinted     a question about what this kind of task can have, but this task neither has nor hints at
    untold       a hidden detail that no question brought out, or not all of it
    forgotten    a detail that was told, and whose step is not in the program
    mistaken     a detail that was told, and whose step is in the program with another value
    """
    if (hidden := _read(trajectory.task)) is None:
        return {}
    facts, request = hidden
    earlier: list[tuple[str, ...]] = []
    answered = answered_questions(trajectory.messages)
    repeated = irrelevant = unhinted = 0
    for question in questions:
        kinds = kinds_asked(question)
        new = set(kinds).difference(*earlier)
        before = answered_questions(trajectory.messages[: 2 * len(earlier) + 1])
        brings = brought_out(facts, before, kinds)
        repeated += bool(kinds) and not brings and not new
        plausible = set(kinds) & set(request.domain.relevant)
        irrelevant += not plausible
        unhinted += bool(plausible) and not set(kinds) & (set(request.named) | facts.keys())
        earlier.append(kinds)
    complete = complete_details(facts, answered)
    program = trajectory.answer or ""
    verdicts = Counter(step_in(program, BY_NAME[name], facts[name], request.argument) for name in complete)
    untold = len(facts.keys() - complete)
    turns = sum(message.role == "assistant" for message in trajectory.messages)
    return {
        "topic": request.domain.name,
        "held_out": request.domain.held_out,
        "repeated": repeated,
        "irrelevant": irrelevant,
        "unhinted": unhinted,
        "details": len(facts),
        "untold": untold,
        "forgotten": verdicts["missing"],
        "mistaken": verdicts["other value"],
        "premature": untold > 0 and trajectory.outcome == "answered" and turns < max_turns,
    }


def step_in(program: str, kind: Kind, values: Sequence[str], argument: str) -> str:
    """Whether the step of `kind` is in `program`: "right", with an "other value", or "missing"; blanks are ignored.

    Without `values` any step of the kind has an "other value".
    """
    lines = "\n".join("".join(line.split()) for line in program.splitlines())
    if values and _step_pattern(kind, argument, tuple(re.escape(value) for value in values)).search(lines):
        return "right"
    anything = (r"-?[\w.]+",) * max(2, len(values))
    return "other value" if _step_pattern(kind, argument, anything).search(lines) else "missing"


@lru_cache(maxsize=4096)
def _step_pattern(kind: Kind, argument: str, values: tuple[str, ...]) -> re.Pattern[str]:
    marks = [f"\0{index}\0" for index in range(max(2, len(values)))]
    text = "\n".join("".join(line.format(*marks, x=argument).split()) for line in kind.code)
    pattern = re.escape(text)
    for mark, value in zip(marks, values, strict=False):
        pattern = pattern.replace(re.escape(mark), f"(?:{value})")
    return re.compile(rf"(?m)^{pattern}$")
