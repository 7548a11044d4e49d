"""Run all attacks, each followed by an innocent solution, in this process's circumstances: a script for subprocesses.

argv: a JSON object {"without": [...layers], "call_seconds": s}; stdout: {"isolation", "rows": [[family, name, outcome,
[passed, ...], [reason, ...], innocent reward], ...], "leftovers": [...]}.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

HERE = Path(__file__).parent


def main() -> None:
    options = json.loads(sys.argv[1])
    sys.path.insert(0, str(HERE.parents[1] / "src"))
    from attacks import ATTACKS

    from sweetrl.backend.rewards import CodeScorer, limits_of
    from sweetrl.config.settings import RewardSettings
    from sweetrl.sandbox import Sandbox
    from sweetrl.types import Task

    seconds = options.get("call_seconds", 0.3)
    reward = RewardSettings(workers=2, wall_seconds=2 * seconds, call_seconds=seconds, memory_mib=256)
    calls = tuple((f"test{x}", f"square({x})") for x in range(2, 7))
    task = Task("square", "Square a number.", "def square(x):\n    # REFERENCE-MARK\n    return x * x", calls)
    os.environ["SWEETRL_TEST_SECRET"] = "secret"
    chosen = [a for a in ATTACKS if not options.get("families") or a.family in options["families"]]
    items = []
    for number, attack in enumerate(chosen):
        source = attack.source.replace("{here}", str(HERE / "attacks.py")).replace("{data}", options.get("data", "/x"))
        items += [(task, source), (task, f"def square(x):\n    return x ** 2  # {number}")]
    sandbox = Sandbox(limits_of(reward), reward.workers, without=options["without"])
    with CodeScorer(reward, sandbox=sandbox) as scorer:
        scores = scorer.score_answers(items)
        isolation = sandbox.isolation
    rows = [
        [
            attack.family,
            attack.name,
            attack.outcome,
            [test.passed for test in scores[2 * i].tests],
            [f"{test.reason}: {test.detail}"[:100] for test in scores[2 * i].tests],
            scores[2 * i + 1].reward,
        ]
        for i, attack in enumerate(chosen)
    ]
    json.dump({"isolation": isolation, "rows": rows}, sys.stdout)


if __name__ == "__main__":
    main()
