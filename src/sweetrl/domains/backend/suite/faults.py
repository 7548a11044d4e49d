"""What went wrong in a dialogue about a task of the synthetic suite, whose hidden facts and program steps are known.

premature    the agent answered with turns left, although it had not been told every hidden detail
repeated     a question about nothing but what was asked before
irrelevant   a question about no kind of detail that this kind of task can have
untold       a hidden detail that no question brought out
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
    asked: set[str] = set()
    told: set[str] = set()
    repeated = irrelevant = 0
    for question in questions:
        kinds = kinds_asked(question)
        repeated += bool(kinds) and asked.issuperset(kinds)
        irrelevant += not set(kinds) & set(request.domain.relevant)
        asked.update(kinds)
        told.update([name for name in kinds if name in facts][:2])  # the user tells two details at a time
    program = trajectory.answer or ""
    verdicts = Counter(step_in(program, BY_NAME[name], facts[name], request.argument) for name in told)
    untold = len(facts.keys() - told)
    turns = sum(message.role == "assistant" for message in trajectory.messages)
    return {
        "topic": request.domain.name,
        "repeated": repeated,
        "irrelevant": irrelevant,
        "details": len(facts),
        "untold": untold,
        "forgotten": verdicts["missing"],
        "mistaken": verdicts["other value"],
        "premature": untold > 0 and trajectory.outcome == "answered" and turns < max_turns,
    }
