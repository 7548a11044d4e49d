"""Forms of hidden tests: whatever form a test has, only an answer with the right values passes it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sweetrl.backend.checks import parse_check
from sweetrl.backend.domain import Backend
from sweetrl.backend.rewards import CodeScorer
from sweetrl.config.settings import RewardSettings
from sweetrl.errors import UserError
from sweetrl.types import Task

REFERENCE = "import math\ndef f(x):\n    return 2 * x\ndef near(a, b):\n    return abs(a - b) < 1e-9"
LIAR = """
class Liar:
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __bool__(self): return True
    def __hash__(self): return 1
    def __float__(self): return 1.0
    __lt__ = __le__ = __gt__ = __ge__ = __contains__ = __eq__
    __add__ = __radd__ = __sub__ = __rsub__ = __abs__ = __round__ = lambda self, *more: self
    __class__ = int
def f(x):
    return Liar()
"""
REPLACED = """
class math:
    isclose = staticmethod(lambda *more: True)
int = len = sum = max = abs = float = round = lambda *more, **named: 0
any = all = bool = isinstance = near = lambda *more: True
def f(x):
    return 0
"""
WRONG = [
    "pass",
    "def f(x): return 'wrong'",
    "def f(x): return None",
    "def f(x): return True",
    "def f(x): return float('nan')",
    "def f(x): return 2 * x + 1",
    "def f(x): return [2 * x]",
    LIAR,
    REPLACED,
    LIAR + REPLACED.rpartition("def f")[0],
]
# The number v in other words, and what a test may say of f(n) = v, here `CALL` and `VALUE`.
NUMBERS = ["{}", "int('{}')", "sum([{}, 0])", "{} * 1", "max(0, {})", "len('x' * {})", "abs(-{})", "+{}"]
FORMS = [
    "CALL == VALUE",
    "VALUE == CALL",
    "VALUE == CALL == VALUE",
    "CALL in (VALUE,)",
    "CALL in [VALUE, VALUE]",
    "VALUE - 1 < CALL < VALUE + 1",
    "not CALL != VALUE",
    "CALL <= VALUE and CALL >= VALUE",
    "isinstance(CALL, int) and CALL == VALUE",
    "any(r == VALUE for r in [CALL])",
    "all([CALL == VALUE, VALUE == CALL])",
    "bool(CALL == VALUE)",
    "(True if CALL == VALUE else False)",
    "(lambda r: r == VALUE)(CALL)",
    "math.isclose(CALL, VALUE)",
    "near(CALL, VALUE)",
    "abs(CALL - VALUE) < 1e-9",
    "str(CALL == VALUE)",
    "[CALL == VALUE]",
    "(CALL == VALUE) + 0 == 1",
    "round(CALL) == VALUE",
    "print(CALL) == VALUE",
    "CALL - VALUE == 0",
]


@st.composite
def forms_of_tests(draw: st.DrawFn) -> str:
    number = draw(st.integers(1, 40))
    call = draw(st.sampled_from(["f({})", "f(x={})", "f(*[{}])", "f(int('{}'))", "f((lambda q: q)({}))"]))
    value = draw(st.sampled_from(NUMBERS)).format(2 * number)
    return draw(st.sampled_from(FORMS)).replace("VALUE", value).replace("CALL", call.format(number))


@pytest.fixture(scope="module")
def scorer() -> Iterator[CodeScorer]:
    with CodeScorer(RewardSettings(workers=2)) as opened:
        yield opened


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(forms_of_tests(), min_size=3, max_size=6).map(lambda forms: ["f(3) == 6", *forms]))
def test_only_right_values_pass(scorer: CodeScorer, forms: list[str]) -> None:
    task = Task("t", "double", REFERENCE, tuple((f"t{number}", form) for number, form in enumerate(forms)))
    first, *others = scorer.score_answers([(task, REFERENCE), *((task, wrong) for wrong in WRONG)])
    assert first.reward == 1.0, [(forms[place], test) for place, test in enumerate(first.tests) if not test.passed]
    for answer, score in zip(WRONG, others, strict=True):
        assert score.reward == 0.0, (answer, [(forms[n], test) for n, test in enumerate(score.tests) if test.passed])


@pytest.mark.parametrize(
    ("form", "operands", "condition"),
    [
        ("f(2)[0] > 1", ["f(2)[0]"], "_0 > 1"),
        ("f(f(2)) > f(3)", ["f(f(2))", "f(3)"], "_0 > _1"),
        ("sum(1 for r in f(3) if r)", ["f(3)"], "sum((1 for r in _0 if r))"),
        ("f(g(2)) is None", ["f(g(2))"], "_0 is None"),
        ("[f(n) for n in range(3)]", ["[f(n) for n in range(3)]"], ""),
        ("Stack(2).size() == 3", ["Stack(2).size()"], ""),
        ("Stack(2).size() > 3", ["Stack(2).size()"], "_0 > 3"),
        ("f(2) == f(3)", ["f(2)", "f(3)"], ""),
        ("sorted(f(3)) == [1]", ["f(3)"], "sorted(_0)"),
        ("f(lambda q: q > 1) == 2", ["f(lambda q: q > 1)"], ""),
    ],
)
def test_the_calls_and_the_condition_of_a_test(form: str, operands: list[str], condition: str) -> None:
    check = parse_check("a", form, official=False, function="f")
    assert ([text for _, text in check.operands], check.condition) == (operands, condition)


@pytest.mark.parametrize(
    "form",
    [
        "all(f(n) > 0 for n in (1, 2))",
        "(y := f(2)) > 3",
        "[n for n in (1, 2) if f(n)]",
        "(f(1) > 2) == (f(2) > 3)",
        "1 == 1",
        "3 > 2",
    ],
)
def test_what_cannot_be_taken_apart_is_refused_with_its_row(form: str) -> None:
    row: dict[str, Any] = {
        "problem_description": "p",
        "ground_truth": REFERENCE,
        "test_cases": {"a": "f(1)", "b": form},
    }
    with pytest.raises(UserError, match=r"tasks\.jsonl:3: `test_cases\.b`: .* cannot be put to an answer"):
        Backend().parse_task(row, "tasks.jsonl:3", "t")


@pytest.mark.parametrize(
    ("answer", "reward"),
    [("def f(x): return 2 * x", 1.0), ("def f(x): return 100", 1.0), ("def f(x): return -1", 0.0), (LIAR, 0.0)],
)
def test_a_condition_holds_for_every_value_that_fulfils_it(scorer: CodeScorer, answer: str, reward: float) -> None:
    task = Task("t", "more", REFERENCE, (("a", "f(2) > 3"), ("b", "isinstance(f(5), int) and f(5) >= 10")))
    (score,) = scorer.score_answers([(task, answer)])
    assert score.reward == reward


def test_values_of_every_plain_kind_reach_a_condition(scorer: CodeScorer) -> None:
    values = "None, True, 2**70, -1.5, 'a', b'b', [1, (2,)], {3: {4}}, 1j, float('inf'), float('-inf'), ()"
    reference = f"def f(n):\n    return ({values})[n]"
    forms = [f"type(f({n})) is type(({values})[{n}]) and f({n}) == ({values})[{n}]" for n in range(12)]
    task = Task("t", "values", reference, tuple((str(n), form) for n, form in enumerate(forms)))
    (score,) = scorer.score_answers([(task, reference)])
    assert score.reward == 1.0, score.tests


def test_objects_of_the_programs_own_are_looked_at_where_they_are(scorer: CodeScorer) -> None:
    """Their last value is compared; where that would be a mere yes or no, no answer passes."""
    reference = (
        "class P:\n    def __init__(self, x): self.x = x\n"
        "    def __add__(self, o): return P(self.x + o.x)\n    def __gt__(self, o): return self.x > o.x"
    )
    tests = (("sum", "(P(1) + P(2)).x"), ("list", "list(map(abs, [P(-1).x]))"), ("more", "P(2) > P(1)"))
    other = reference.replace("P(self.x + o.x)", "P(self.x)")
    lies = reference.replace("self.x > o.x", "True")
    task = Task("t", "points", reference, tests)
    scores = scorer.score_answers([(task, reference), (task, other), (task, lies)])
    assert [[test.reason for test in score.tests] for score in scores] == [
        ["passed", "passed", "no_reference"],
        ["wrong", "passed", "no_reference"],
        ["passed", "passed", "no_reference"],
    ]
