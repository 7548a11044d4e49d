"""What an answer may cost the trusted side: memory and time; and that its messages can be stored."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sweetrl.sandbox.claims import parse_frame
from sweetrl.sandbox.compare import Rules, equal, render

LARGE = """
import json, resource, sys
from sweetrl.backend.rewards import CodeScorer
from sweetrl.config.settings import RewardSettings
from sweetrl.types import Task

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

calls = tuple((f"test{x}", f"wide({x})") for x in range(5))
task = Task("wide", "Count.", "def wide(x):\\n    return x", calls)
with CodeScorer(RewardSettings(workers=1)) as scorer:
    answer = "def wide(x):\\n    return list(range(90000))  # %d"
    scorer.score_answers([(task, answer % 0)])
    before = peak()
    scores = scorer.score_answers([(task, answer % number) for number in range(1, 17)])
    print(json.dumps({"mib": peak() - before, "wrong": sum(t.reason == "wrong" for s in scores for t in s.tests)}))
"""


def test_large_values_of_many_answers_are_not_kept() -> None:
    """Sixteen answers of five lists of 90,000 numbers: 3 MiB a list, 240 MiB if they were kept."""
    done = subprocess.run([sys.executable, "-c", LARGE], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["wrong"] == 80
    assert report["mib"] < 64, report


def test_what_an_answer_says_can_be_stored(tmp_path: Path) -> None:
    task = {"task_id": "half", "problem_description": "?", "ground_truth": "def f():\n    return 1"}
    sources = ["def f(): raise ValueError(chr(0xd800))", "def f(): return chr(0xdc00)", "def f(): return 1"]
    answers = "".join(json.dumps({"index": 0, "answer": source}) + "\n" for source in sources)
    (tmp_path / "tasks.jsonl").write_text(json.dumps({**task, "test_cases": {"t": "f()"}}) + "\n")
    (tmp_path / "answers.jsonl").write_text(answers)
    words = ["score", "--tasks", "tasks.jsonl", "--answers", "answers.jsonl", "--json", "report.json"]
    done = subprocess.run([sys.executable, "-m", "sweetrl.cli", *words], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    report = (tmp_path / "report.json").read_bytes().decode("utf-8")
    assert "d800" in report and "dc00" in report


def seconds(work: Callable[[], object], enough: float = 0.0) -> float:
    """The least processor time of three runs, or of the first that takes less than `enough`.

    Without the garbage collector, which would walk through what all other tests have left behind.
    """
    took = []
    gc.collect()
    gc.disable()
    try:
        for _ in range(3):
            began = time.thread_time()
            work()
            took.append(time.thread_time() - began)
            if took[-1] < enough:
                break
    finally:
        gc.enable()
    return min(took)


ACCEPTED: dict[str, Any] = {
    "a list of numbers": ["l", *range(95_000)],
    "a list of texts": ["l", *(str(i) * 4 for i in range(45_000))],
    "a dictionary": ["d", *(part for i in range(40_000) for part in (f"k{i}", i))],
    "a dictionary with pairs as keys": ["d", *(part for i in range(20_000) for part in (["t", i, 1], i))],
    "a set of sets": ["s", *(["s", i, i + 1] for i in range(20_000))],
    "a deep list": ["l", *range(1000)],
    "an array": ["nd", [300, 300], *range(90_000)],
    "a text": "x" * 1_000_000,
    "a whole number": ["i", "0x" + "f" * 1_000_000],
    "a decimal": ["dec", "9" * 1_000_000],
    "numbers in pairs": ["l", *(["c", 1.5, i] for i in range(30_000))],
}
for _ in range(140):
    ACCEPTED["a deep list"] = ["l", ACCEPTED["a deep list"], 1]


@pytest.mark.parametrize("name", ACCEPTED)
def test_a_value_of_full_size_is_judged_within_a_second_and_64_mib(name: str) -> None:
    """From the bytes of a frame to the verdict and its reason, against a value that is as large and one that is not."""
    payload = json.dumps({"v": ACCEPTED[name]}, separators=(",", ":")).encode()
    expected, rules = parse_frame(payload, 100_000).tree, Rules(tolerance=1e-6, nan=True, arrays=True)

    def judge() -> None:
        result = parse_frame(payload, 100_000)
        assert result.kind == "value"
        for other in (expected, 7):
            equal(other, result.tree)
            equal(other, result.tree, rules)
        assert len(render(result.tree).encode("utf-8")) < 1000

    assert seconds(judge, enough=1.0) < 1.0
    tracemalloc.start()
    judge()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 64 * 2**20
