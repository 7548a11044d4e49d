"""Hidden tests run once more for people: what the reference gives, what the answer gave, and how long each took.

The verdicts are the scorer's. Every test has a child process of its own, so that its time is its own: that of executing
the program and the call.
"""

from __future__ import annotations

from typing import Literal

from sweetrl.domains.backend.checks import Check, function_name, parse_check
from sweetrl.domains.backend.extraction import fixed_sources, official_source
from sweetrl.domains.backend.rewards import CodeScorer
from sweetrl.sandbox.compare import Rules, render
from sweetrl.sandbox.limits import CallResult, Job
from sweetrl.settings import RewardSettings
from sweetrl.types import Task, TestRun

_RULES = Rules()


def run_tests(reward: RewardSettings, task: Task, answer: str) -> list[TestRun]:
    """Return the tests of `task` in their order; UserError for a task without tests, or where there is no sandbox.

    Nothing of the answer is run where the scorer would run nothing: one that is empty, or banned by the semantics.
    """
    official = reward.semantics != "fixed"
    namespace: Literal["one", "split"] = "split" if official else "one"
    checks = [parse_check(name, call, official) for name, call in task.test_cases]
    name = function_name([call for _, call in task.test_cases])
    sources = (official_source(answer),) if official else fixed_sources(answer, name)
    with CodeScorer(reward) as scorer:
        (score,) = scorer.score_answers([(task, answer)])
        refused = all(test.reason in ("no_answer", "refused") for test in score.tests)
        answers = [None if refused else scorer.sandbox.submit(Job(sources, one.calls, namespace)) for one in checks]
        # As the scorer has it: a reference that draws random numbers draws others than the answer.
        wanted = [scorer.sandbox.submit(Job((task.ground_truth,), one.calls, namespace, seed=1)) for one in checks]
        found = []
        for (title, call), check, test, mine, theirs in zip(
            task.test_cases, checks, score.tests, answers, wanted, strict=True
        ):
            outcome = None if mine is None else mine.result()
            got = "" if outcome is None else _value(check, outcome.calls)
            seconds = 0.0 if outcome is None else outcome.seconds
            expected = _value(check, theirs.result().calls)
            found.append(TestRun(title, call, expected, got, test.passed, test.reason, test.detail, seconds))
    return found


def _value(check: Check, results: tuple[CallResult, ...]) -> str:
    one = check.value(results, _RULES)
    return render(one.tree) if one.kind == "value" else f"{one.kind}: {one.detail}".rstrip(": ")
