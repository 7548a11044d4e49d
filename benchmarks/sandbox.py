"""Scoring real solutions in the sandbox against its peers, in one run: solutions per second and CPU per solution.

Peers: (a) the official evaluator's scheme, re-created minimally (everything in one process, no isolation: reference and
answer executed for every test); (b) a fresh interpreter for each solution; (c) bubblewrap with a fresh interpreter for
each solution. Every solution is the task's own reference with its ten tests, so that all verdicts must be "passed".

    python benchmarks/sandbox.py --tasks ../shared/colbench/backend_300.jsonl [--solutions 3000] [--slow-solutions 150]
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psutil

from sweetrl.backend import Backend
from sweetrl.backend.rewards import CodeScorer
from sweetrl.colbench.files import read_tasks
from sweetrl.config.settings import RewardSettings
from sweetrl.sandbox import Job
from sweetrl.types import Task

TESTS = Path(__file__).resolve().parents[1] / "tests" / "sandbox"
# What a fresh interpreter runs: the calls of one solution, the values as text.
FRESH = """
import json, sys
job = json.load(sys.stdin)
space = {"__name__": "solution"}
code = compile(job["source"], "solution", "exec")
print(json.dumps([repr(eval(call, exec(code, space) or space)) for call in job["calls"]]))
"""
BUBBLEWRAP = (
    *("bwrap", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp"),
    *("--unshare-all", "--die-with-parent"),
)


def spent() -> float:
    """CPU seconds of this process and of the children that it has waited for."""
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def official(tasks: list[Task]) -> tuple[float, float, int]:
    items = [[t.ground_truth, t.ground_truth, [call for _, call in t.test_cases]] for t in tasks]
    done = subprocess.run(
        [sys.executable, "-c", "import official_evaluator; official_evaluator.main()"],
        input=json.dumps(items),
        capture_output=True,
        text=True,
        check=True,
        cwd=TESTS,
        env={**os.environ, "PYTHONHASHSEED": "0"},
    )
    report = json.loads(done.stdout)
    return report["wall"], report["cpu"], sum(map(all, report["verdicts"]))


def sandbox(tasks: list[Task], workers: int) -> tuple[float, float, int]:
    """References are not cached from one run to the next here: each run has its own texts, and runs them too."""
    with CodeScorer(RewardSettings(semantics="official", workers=workers)) as scorer:
        for text in ("", "import typing", "import numpy"):  # zygotes of every kind are started once, not for each batch
            scorer.sandbox.submit(Job((f"def f(): return 0\n{text}",), ("f()",))).result()
        wall, cpu, inside = time.perf_counter(), time.process_time(), inside_seconds()
        # A comment keeps equal answers from being run once only.
        scores = scorer.score_answers([(task, f"{task.ground_truth}\n# {i}") for i, task in enumerate(tasks)])
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        cpu += inside_seconds() - inside
        print(f"    ({scorer.sandbox.isolation}, {workers} workers)")
    return wall, cpu, sum(score.reward == 1.0 for score in scores)


def inside_seconds() -> float:
    """CPU seconds of the zygotes so far, and of the children that they have reaped."""
    return sum(sum(process.cpu_times()[:4]) for process in psutil.Process().children(recursive=True))


def each(command: list[str]) -> Callable[[list[Task]], tuple[float, float, int]]:
    def run(tasks: list[Task]) -> tuple[float, float, int]:
        wall, cpu, good = time.perf_counter(), spent(), 0
        for task in tasks:
            job = {"source": task.ground_truth, "calls": [call.split(" == ")[0] for _, call in task.test_cases]}
            done = subprocess.run(command, input=json.dumps(job), capture_output=True, text=True)
            good += done.returncode == 0
        return time.perf_counter() - wall, spent() - cpu, good

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=Path, default=Path("../shared/colbench/backend_300.jsonl"))
    parser.add_argument("--solutions", type=int, default=3000)
    parser.add_argument("--slow-solutions", type=int, default=150, help="for the peers that start an interpreter each")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    options = parser.parse_args()
    real = list(read_tasks(options.tasks, Backend()))
    many = [replace(real[i % len(real)], id=str(i)) for i in range(options.solutions)]
    few = many[: options.slow_solutions]
    python = [sys.executable, "-I", "-c", FRESH]
    peers: dict[str, tuple[list[Task], Callable[[list[Task]], tuple[float, float, int]]]] = {
        "official scheme, in process": (many, official),
        "sandbox": (many, lambda tasks: sandbox(tasks, options.workers)),
        "sandbox, one worker": (many, lambda tasks: sandbox(tasks, 1)),
        "fresh interpreter each": (few, each(python)),
    }
    if shutil.which("bwrap"):
        peers["bubblewrap each"] = (few, each([*BUBBLEWRAP, *python]))
    print(f"load average {os.getloadavg()[0]:.1f} on {len(os.sched_getaffinity(0))} cores")
    rows = {}
    for name, (tasks, run) in peers.items():
        wall, cpu, good = run(tasks)
        if good < len(tasks):
            print(f"{name} is left out: {good} of {len(tasks)} solutions pass")
            continue
        rows[name] = {"solutions": len(tasks), "wall": wall, "cpu": cpu, "good": good}
        print(
            f"{name:30} {len(tasks):6} solutions  {len(tasks) / wall:8.1f} /s  {1000 * cpu / len(tasks):7.2f} ms CPU"
            " each"
        )
    base = rows["official scheme, in process"]["cpu"] / options.solutions
    own = rows["sandbox"]["cpu"] / options.solutions
    print(f"CPU: {own / base:.2f} times the official scheme")
    speed = options.solutions / rows["sandbox"]["wall"]
    for name in ("official scheme, in process", "fresh interpreter each", "bubblewrap each"):
        if name in rows:
            print(f"wall: {speed * rows[name]['wall'] / rows[name]['solutions']:.1f} times as fast as {name}")
    print("(bubblewrap spends its CPU in a process namespace of its own, where this process cannot see it)")


if __name__ == "__main__":
    main()
