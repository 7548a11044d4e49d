"""Mixed innocent and hostile load for a while: flat memory, nothing left behind, every innocent verdict right.

python benchmarks/sandbox_soak.py --minutes 30 [--workers 2]
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
import time
from pathlib import Path

import psutil

from sweetrl.domains.backend.rewards import CodeScorer
from sweetrl.settings import RewardSettings
from sweetrl.types import Task

ATTACKS = Path(__file__).resolve().parents[1] / "tests" / "hostile" / "attacks.py"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--innocents", type=int, default=20, help="innocent solutions for each attack")
    options = parser.parse_args()
    spec = importlib.util.spec_from_file_location("attacks", ATTACKS)
    assert spec is not None and spec.loader is not None
    attacks = importlib.util.module_from_spec(spec)
    sys.modules["attacks"] = attacks
    spec.loader.exec_module(attacks)
    calls = tuple((f"test{x}", f"square({x})") for x in range(2, 7))
    task = Task("square", "Square a number.", "def square(x):\n    return x * x", calls)
    me = psutil.Process()
    mounts = Path("/proc/self/mountinfo").read_text()
    innocent = hostile = wrong = fooled = number = 0
    memory: list[tuple[float, float]] = []
    reward = RewardSettings(workers=options.workers, wall_seconds=0.6, call_seconds=0.3, memory_mib=256)
    with CodeScorer(reward) as scorer:
        end = time.monotonic() + 60 * options.minutes
        while time.monotonic() < end:
            items, kinds = [], []
            for attack in attacks.ATTACKS[number % 16 :: 16]:
                items.append((task, attack.source))
                kinds.append(attack.outcome)
                for _ in range(options.innocents):
                    number += 1
                    items.append((task, f"def square(x):\n    return x ** 2  # {number}"))
                    kinds.append("innocent")
            for kind, score in zip(kinds, scorer.stream(items), strict=True):
                if kind == "innocent":
                    innocent += 1
                    wrong += score.reward != 1.0
                else:
                    hostile += 1
                    fooled += score.reward == 1.0 and kind != "full"
            number += 1
            memory.append((me.memory_info().rss / 2**20, scorer.sandbox.usage()["rss_mib"]))
            print(
                f"{innocent} innocent ({wrong} wrong), {hostile} hostile ({fooled} fooled us), "
                f"{len(me.children(recursive=True))} processes, {me.num_fds()} descriptors, "
                f"client {memory[-1][0]:.1f} MiB, zygote {memory[-1][1]:.1f} MiB, load {os.getloadavg()[0]:.1f}",
                flush=True,
            )
    left = me.children(recursive=True)
    same = Path("/proc/self/mountinfo").read_text() == mounts
    print(f"memory first {memory[0]}, last {memory[-1]}; processes left {len(left)}; mounts unchanged: {same}")
    sys.exit(bool(wrong or fooled or left or not same))


if __name__ == "__main__":
    main()
