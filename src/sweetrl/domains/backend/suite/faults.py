"""What went wrong in a dialogue about a task of the synthetic suite, whose hidden facts and program steps are known.

premature    the agent answered with turns left, although it had not been told every hidden detail
repeated     a question about nothing but what was asked before, and that brings out nothing more
irrelevant   a question about no kind of detail that this kind of task can have
unhinted     a question about what this kind of task can have, that is no detail of it, nor does the request hint at it
untold       a hidden detail that no question brought out, or not all of it
forgotten    a detail that was told, and whose step is not in the program
mistaken     a detail that was told, and whose step is in the program with another value
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from sweetrl.domains.backend.suite.agents import read_request
from sweetrl.domains.backend.suite.details import BY_NAME, kinds_asked
from sweetrl.domains.backend.suite.judge import step_in
from sweetrl.domains.backend.suite.tasks import read_facts
from sweetrl.domains.backend.suite.users import answered_questions, brought_out, known
from sweetrl.types import Trajectory


def faults(trajectory: Trajectory, questions: Sequence[str], max_turns: int) -> dict[str, Any]:
    """Return the columns of a Result that are about details, and the kind of task; nothing for any other task."""
    facts = read_facts(trajectory.task.hidden_information)
    if not facts:
        return {}
    try:
        request = read_request(trajectory.task.problem_description)
    except ValueError:
        return {}
    asked: list[tuple[str, ...]] = []
    answered = answered_questions(trajectory.messages)
    repeated = irrelevant = unhinted = 0
    for question in questions:
        kinds = kinds_asked(question)
        before = {name for earlier in asked for name in earlier}
        brings = brought_out(facts, answered[: len(asked)], kinds)
        repeated += bool(kinds) and not brings and before.issuperset(kinds)
        plausible = set(kinds) & set(request.domain.relevant)
        irrelevant += not plausible
        unhinted += bool(plausible) and not set(kinds) & (set(request.named) | facts.keys())
        asked.append(kinds)
    told = known(facts, answered)
    program = trajectory.answer or ""
    verdicts = Counter(step_in(program, BY_NAME[name], facts[name], request.argument) for name in told)
    untold = len(facts.keys() - told)
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
