"""From answers to rewards: semantics, reasons, extraction, references."""

from __future__ import annotations

from typing import Any

import pytest

from sweetrl.backend import Backend
from sweetrl.backend.rewards import CodeScorer, unsettled_tests
from sweetrl.config.settings import RewardSettings, Settings
from sweetrl.types import Message, Task, Trajectory

REFERENCE = "def f(x):\n    return {'half': x / 2}"
TASK = Task("t", "halve", REFERENCE, (("test1", "f(1)"), ("test2", "f(2)")))
EQUALITY = Task("e", "double", "def f(x):\n    return 2 * x", (("a", "f(2) == 4"), ("b", "f(3) == 7"), ("c", "f(4)")))
NONE = Task("n", "nothing", "def f(x):\n    return None if x else 1 / x", (("a", "f(1)"), ("b", "f(0)")))


def rewards(semantics: str, *items: tuple[Task, str | None], **options: Any) -> list[tuple[float, list[str]]]:
    with CodeScorer(RewardSettings(semantics=semantics, workers=1, **options)) as scorer:  # type: ignore[arg-type]
        return [(score.reward, [test.reason for test in score.tests]) for score in scorer.score_answers(items)]


def test_semantics_differ_where_they_should() -> None:
    helper = "def h(x): return x / 2\ndef f(x):\n    return {'half': h(x)}"
    fenced = f"Sure:\n~~~py\n{REFERENCE}\n~~~"
    banned = REFERENCE + "\n# sudo"
    items = [(TASK, helper), (TASK, fenced), (TASK, banned), (TASK, REFERENCE)]
    assert [r for r, _ in rewards("fixed", *items)] == [1.0, 1.0, 1.0, 1.0]
    assert [r for r, _ in rewards("official", *items)] == [0.0, 0.0, 0.0, 1.0]
    assert [r for r, _ in rewards("official-noblacklist", *items)] == [0.0, 0.0, 1.0, 1.0]


def test_references_that_change_from_run_to_run_are_named() -> None:
    draw = {
        "random": "random.random()",
        "choice": "random.choice(range(10**6))",
        "shuffle": "random.sample(range(99), 99)",
        "system": "random.SystemRandom().random()",
        "numpy": "float(numpy.random.rand())",
        "generator": "float(numpy.random.default_rng().random())",
        "time": "time.time()",
        "clock": "[time.perf_counter_ns()]",
        "now": "str(datetime.datetime.now())",
        "id": "{'id': id([x])}",
        "repr": "repr(object())",
        "uuid": "str(uuid.uuid4())",
        "urandom": "os.urandom(8)",
        "secrets": "secrets.token_hex(8)",
        "error": "1 if x else random.random()",  # in the second test
    }
    order = {"hash": "hash('a')", "set": "list({'apple', 'pear', 'plum', 'fig', 'kiwi'})"}
    same = {
        "seeded": "random.Random(3).random()",
        "sorted": "sorted({'apple', 'pear', 'plum', 'fig', 'kiwi'})",
        "a set": "{'apple', 'pear', 'plum', 'fig', 'kiwi'}",
        "nan": "float('nan')",
        "object": "object()",
        "function": "lambda: random.random()",
        "raises": "1 / 0",
        "nothing": "None",
    }
    start = "def f(x):\n    import datetime, os, random, secrets, time, uuid, numpy\n    return"
    tests = (("a", "f(1)"), ("b", "f(0)"))
    tasks = [Task(n, "", f"{start} {text}", tests) for n, text in (draw | order | same).items()]
    tasks += [Task("form", "", tasks[0].ground_truth, (("a", "0 <= f(1) <= 1"), ("b", "isinstance(f(0), float)")))]
    for semantics in ("fixed", "official"):
        reward = RewardSettings(semantics=semantics, workers=1)  # type: ignore[arg-type]
        for hash_seed, named in ((0, draw), (1, draw | order)):
            unsettled = dict(zip([task.id for task in tasks], unsettled_tests(reward, tasks, hash_seed), strict=True))
            assert {name for name, test in unsettled.items() if test} == named.keys(), (semantics, hash_seed)
            assert unsettled["random"] == "f(1)" and unsettled["error"] == "f(0)"
    assert unsettled_tests(reward, []) == [] and unsettled_tests(reward, [Task("chat", "", "")]) == [""]


def test_the_semantics_are_a_setting() -> None:
    backend = Backend()
    official = backend.configured(Settings.model_validate({"reward": {"semantics": "official"}}))
    banned = f"{TASK.ground_truth}\n# sudo"
    assert (backend.scoring(), backend.evaluation_rules()) == ("fixed", ["fixed"])
    assert (official.scoring(), official.evaluation_rules()) == ("official", ["official"])
    assert (backend.score(TASK, banned).reward, official.score(TASK, banned).reward) == (1.0, 0.0)


def test_reasons() -> None:
    items: list[tuple[Task, str | None]] = [
        (TASK, None),
        (TASK, "No answer"),
        (TASK, "def g(x): return 1"),
        (TASK, "def f(x): return 1 / 0"),
        (TASK, "def f(x): return {'half': 0.5}"),
        (TASK, "import os\ndef f(x): os._exit(1)"),
        (TASK, "def f(x): return [0] * 10**9"),
        (TASK, "def f(x): return 'x' * 10**7"),
        (NONE, "def f(x): return None"),
    ]
    scores = rewards("fixed", *items)
    assert [reasons for _, reasons in scores] == [
        ["no_answer"] * 2,
        ["no_answer"] * 2,
        ["not_defined"] * 2,
        ["exception"] * 2,
        ["passed", "wrong"],
        ["killed"] * 2,
        ["memory"] * 2,
        ["refused"] * 2,
        ["no_reference"] * 2,
    ]
    assert [reward for reward, _ in scores] == [0, 0, 0, 0, 0.5, 0, 0, 0, 0]
    assert rewards("official", (TASK, REFERENCE + "\n# import os"))[0] == (0.0, ["refused"] * 2)


def test_the_right_hand_side_of_an_equality_stays_here() -> None:
    peek = (
        "import sys\ndef f(x):\n    frame = sys._getframe()\n    while frame:\n"
        "        if any(chr(61) * 2 + chr(32) in v for v in frame.f_locals.values() if isinstance(v, str)): return 4\n"
        "        frame = frame.f_back\n    return 0\n"
    )
    assert rewards("fixed", (EQUALITY, peek))[0][0] == 0.0
    # The reference says False to `f(3) == 7`: officially anything that is not 7 agrees with it; `fixed` wants 6.
    six = "def f(x):\n    return 2 * x if x != 3 else 6"
    other = "def f(x):\n    return 2 * x if x != 3 else 'six'"
    assert [r for r, _ in rewards("official", (EQUALITY, six), (EQUALITY, other))] == [1.0, 1.0]
    assert [r for r, _ in rewards("fixed", (EQUALITY, six), (EQUALITY, other))] == [1.0, pytest.approx(2 / 3)]


@pytest.mark.parametrize(
    "answer",
    [
        REFERENCE,
        f"```python\n{REFERENCE}\n```",
        f"```py\n{REFERENCE}\n```",
        f"```Python\n{REFERENCE}\n```",
        f"~~~\n{REFERENCE}\n~~~",
        f"````python\n{REFERENCE}\n````",
        f"```python\n{REFERENCE}",
        "1. Here:\n   ```python\n   def f(x):\n       return {'half': x / 2}\n   ```",
        f"I think this works.\n{REFERENCE}\nThis halves it.",
        f"```bash\npip install x\n```\n```python\n{REFERENCE}\n```\n```\n{{'half': 0.5}}\n```",
        f"```python\ndef f(x): return 0\n```\nNo, better:\n```python\n{REFERENCE}\n```\n"
        "Use:\n```python\nprint(f(2))\n```",
        "```python\nimport math\ndef h(x): return x / 2\n```\n```python\ndef f(x): return {'half': h(x)}\n```",
        "f = lambda x: {'half': x / 2}",
        f"Use ```python\n{REFERENCE}\n``` please",
        f"\ufeff{REFERENCE}",
        f"Here:\n```python\n\ufeff{REFERENCE}\n```",
    ],
)  # fmt: skip
def test_fixed_semantics_read_every_form(answer: str) -> None:
    assert rewards("fixed", (TASK, answer))[0][0] == 1.0


def test_tolerance_is_a_setting() -> None:
    close = "def f(x):\n    return {'half': x / 2 + 1e-9}"
    assert rewards("fixed", (TASK, close))[0][0] == 0.0
    assert rewards("fixed", (TASK, close), tolerance=1e-6)[0][0] == 1.0


def test_a_dialogue_is_scored_by_its_answer() -> None:
    answers = ["def f(x): return {'half': 0.5}", None, REFERENCE]
    dialogues = [Trajectory(TASK, 0, (Message("user", "halve"),), answer=answer) for answer in answers]
    with CodeScorer(RewardSettings(workers=1)) as scorer:
        scores = scorer.score(dialogues)
        assert scores == scorer.score_answers([(TASK, answer) for answer in answers])
    assert [score.reward for score in scores] == [0.5, 0.0, 1.0]
    assert {score.semantics for score in scores} == {"fixed"} and scores[0].isolation == scores[2].isolation != ""
    assert all(score.solved is None and score.parts == {} for score in scores)


def test_equal_answers_to_a_task_are_run_once(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs: list[Any] = []
    with CodeScorer(RewardSettings(workers=1)) as scorer:
        submit = scorer.sandbox.submit
        monkeypatch.setattr(scorer.sandbox, "submit", lambda job: [jobs.append(job), submit(job)][1])
        scores = scorer.score_answers([(TASK, REFERENCE), (TASK, "def f(x): return 1"), (TASK, REFERENCE)] * 5)
    assert [score.reward for score in scores] == [1.0, 0.0, 1.0] * 5
    assert len(jobs) == 3, "two answers and the reference"
