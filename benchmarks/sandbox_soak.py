"""Mixed innocent and hostile load for a while: flat memory, nothing left behind, every innocent verdict right.

    python benchmarks/sandbox_soak.py --minutes 30 [--workers 2] [--seed 0] [--pages]

Answers come in an order that the seed decides: innocent ones, the attacks of tests/hostile (frames forged, too long
or deep, errors that no file can hold, results cut short), texts hard to read, large honest values. With --pages
hostile pages are rendered among honest ones.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "hostile"))  # tests are no package

from attacks import ATTACKS

from sweetrl.backend.rewards import CodeScorer
from sweetrl.browser import Renderer
from sweetrl.config.settings import BrowserSettings, RewardSettings
from sweetrl.types import Score, Task

# Answers that are hard to read, or honest and large; none of them is right.
TEXTS = (
    "```python\n" + "\n" * 32_000 + "```",
    "~" * 32_000,
    "```\ndef square(x):\n```\n```\nimport x\n```\n" * 800,
    "def square(x): return list(range(95000))  # {}",
    "def square(x): return {{i: str(i) for i in range(20000)}}  # {}",
    "def square(x): raise ValueError(chr(0xd800) * 200)  # {}",
)
HONEST_PAGE = "<!doctype html><p style='font:20px sans-serif'>Page {}</p>"
PAGES = (
    "<style>@import" + " " * 1000 + "</style>",
    "<meta " * 20_000,
    '<p class="' + "a:" * 20_000 + '[[[[">x',
    "<link rel=stylesheet href=tailwindcss@" + "5" * 5000 + ">",
    "<div>" * 20_000,
    "<p style='color:transparent'>unseen</p>",
)


class Soak:
    """What has been tried so far, and what of it went wrong."""

    def __init__(self, scorer: CodeScorer, renderer: Renderer | None, seed: int, innocents: int) -> None:
        self.scorer, self.renderer, self.innocents = scorer, renderer, innocents
        self.random = random.Random(seed)
        calls = tuple((f"test{x}", f"square({x})") for x in range(2, 7))
        self.task = Task("square", "Square a number.", "def square(x):\n    return x * x", calls)
        self.number = 0
        self.seen: Counter[str] = Counter()

    def round(self) -> None:
        """Some attacks and texts, each with its innocents, in an order of the seed's; then some pages."""
        items: list[tuple[str, str]] = []
        for attack in self.random.sample(ATTACKS, 16):
            items.append((attack.outcome, attack.source))
        items += [("zero", text.format(self.number)) for text in self.random.sample(TEXTS, 2)]
        for _ in range(self.innocents * len(items)):
            self.number += 1
            items.append(("innocent", f"def square(x):\n    return x ** 2  # {self.number}"))
        self.random.shuffle(items)
        scores = list(self.scorer.stream((self.task, source) for _, source in items))
        self.seen["lost"] += len(items) - len(scores)
        for (kind, _), score in zip(items, scores, strict=False):
            self.judge(kind, score)
        if self.renderer is not None:
            self.render(self.renderer)

    def judge(self, kind: str, score: Score) -> None:
        """Count a verdict; each must be one that can be written down."""
        json.dumps([test.detail for test in score.tests], ensure_ascii=False).encode("utf-8")
        self.seen["innocent" if kind == "innocent" else "hostile"] += 1
        self.seen["wrong"] += kind == "innocent" and score.reward != 1.0
        self.seen["fooled"] += kind not in ("innocent", "full") and score.reward == 1.0

    def render(self, renderer: Renderer) -> None:
        """A hostile page, then an honest one, which must come out whole."""
        hostile = renderer.render(self.random.choice(PAGES))
        page = renderer.render(HONEST_PAGE.format(self.number))
        self.seen["pages"] += 2
        leaked = any("unseen" in element.text for element in hostile.elements)
        whole = page.status == "ok" and [element.text for element in page.elements] == [f"Page {self.number}"]
        self.seen["wrong pages"] += leaked or not whole


def mount_points() -> list[str]:
    return [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--innocents", type=int, default=20, help="innocent solutions for each hostile one")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--pages", action="store_true", help="render pages, too")
    options = parser.parse_args()
    me = psutil.Process()
    mounts = mount_points()
    memory: list[tuple[float, float]] = []
    reward = RewardSettings(workers=options.workers, wall_seconds=0.6, call_seconds=0.3, memory_mib=256)
    with ExitStack() as stack:
        scorer = stack.enter_context(CodeScorer(reward))
        browser = Renderer(BrowserSettings(cache="", tabs=1)) if options.pages else None
        soak = Soak(scorer, stack.enter_context(browser) if browser else None, options.seed, options.innocents)
        end = time.monotonic() + 60 * options.minutes
        while time.monotonic() < end:
            soak.round()
            largest = max(process.memory_info().rss for process in me.children(recursive=True))
            memory.append((me.memory_info().rss / 2**20, largest / 2**20))
            print(
                f"{soak.seen['innocent']} innocent ({soak.seen['wrong']} wrong), {soak.seen['hostile']} hostile "
                f"({soak.seen['fooled']} fooled us), {soak.seen['lost']} lost, {soak.seen['pages']} pages "
                f"({soak.seen['wrong pages']} wrong), {len(me.children(recursive=True))} processes, "
                f"{me.num_fds()} descriptors, client {memory[-1][0]:.1f} MiB, zygote {memory[-1][1]:.1f} MiB, "
                f"load {os.getloadavg()[0]:.1f}",
                flush=True,
            )
    left = me.children(recursive=True)
    # The sandbox mounts on /tmp, in a namespace of its own; what others mount meanwhile is theirs.
    leaked = mount_points().count("/tmp") > mounts.count("/tmp")
    print(f"memory first {memory[0]}, last {memory[-1]}; processes left {len(left)}; mounts left: {leaked}")
    bad = sum(soak.seen[name] for name in ("wrong", "fooled", "lost", "wrong pages"))
    sys.exit(bool(bad or left or leaked))


if __name__ == "__main__":
    main()
