"""Dialogues with a slow user: the asynchronous loop against a lock-step loop, in one run.

    python benchmarks/rollout.py [--dialogues 256] [--concurrent 64] [--repeats 3]

The user answers after a log-normal wait (median 0.3 s, 95th percentile 3 s), the agent's server after 0.05 to
0.15 s. Both are waits and no work, so the schemes differ in nothing but what waits for what. Every wait follows from
the dialogue and the turn, so both schemes meet the same ones. `lock-step` is the scheme of the official code: of
`--concurrent` dialogues all take a turn, all users are asked side by side, and the slowest one is waited for; a new
set begins when the last dialogue of the old one has ended.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import math
import random
import resource
import statistics
import time
from collections.abc import Callable, Iterator, Sequence

from sweetrl.backend import Backend
from sweetrl.config.settings import AgentSettings
from sweetrl.engines.background import wait
from sweetrl.rollout.dialogue import Dialogue, open_dialogue
from sweetrl.rollout.driver import advance_each
from sweetrl.seeds import dialogue_seed
from sweetrl.types import Completion, Message, Prompt, Sampling, Task, Trajectory, Usage

MEDIAN, HIGH = 0.3, 3.0
# The 95th percentile of a log-normal is its median times exp(1.645 sigma).
SIGMA = math.log(HIGH / MEDIAN) / statistics.NormalDist().inv_cdf(0.95)
AGENT = AgentSettings(max_turns=10, max_new_tokens=64)
DOMAIN = Backend()
Attempt = tuple[int, Task, int]


def chance(*what: object) -> random.Random:
    """A generator that belongs to `what`, whoever asks and when."""
    return random.Random(hashlib.sha256(repr(what).encode()).digest())


class WaitingEngine:
    """An agent's server: two to nine questions, then an answer; each after a short wait."""

    name, speaks_tokens = "waiting", False

    async def ask(self, prompt: Prompt, sampling: Sampling) -> list[Completion]:
        draw = chance(prompt.seed)
        await asyncio.sleep(draw.uniform(0.05, 0.15))
        turns = sum(role == "assistant" for role, _ in prompt.messages)
        last = chance("turns", prompt.messages[1]).randint(2, 9)
        text = "I WANT TO ANSWER: x" if turns >= last else f"Question {turns}: what about {draw.randrange(100)}?"
        return [Completion((), (), text, "stop")]

    def usage(self) -> Usage:
        return Usage()

    def close(self) -> None: ...


class WaitingUser:
    """Answers every question after a heavy-tailed wait; `waits` are those that there were."""

    name = "waiting"

    def __init__(self) -> None:
        self.waits: list[float] = []

    def reply(self, task: Task, messages: Sequence[Message], seed: int) -> str:
        raise NotImplementedError

    async def answer(self, task: Task, messages: Sequence[Message], seed: int) -> str:
        seconds = chance(seed).lognormvariate(math.log(MEDIAN), SIGMA)
        self.waits.append(seconds)
        await asyncio.sleep(seconds)
        return f"It is {seed % 100}."


def asynchronous(attempts: Sequence[Attempt], user: WaitingUser, concurrent: int) -> dict[int, Trajectory]:
    closed: dict[int, Trajectory] = {}
    places: dict[int, int] = {}

    def begun() -> Iterator[Dialogue]:
        for attempt in attempts:
            ((at, dialogue),) = begin([attempt], user)
            places[id(dialogue)] = at
            yield dialogue

    def ended(dialogue: Dialogue) -> None:
        closed[places[id(dialogue)]] = dialogue.close("")

    advance_each(begun(), WaitingEngine(), user, Sampling(64), ended, concurrent)
    return closed


def lock_step(attempts: Sequence[Attempt], user: WaitingUser, concurrent: int) -> dict[int, Trajectory]:
    closed: dict[int, Trajectory] = {}
    for start in range(0, len(attempts), concurrent):
        active = begin(attempts[start : start + concurrent], user)
        while active:
            active = wait(one_turn(active, user, closed))
    return closed


def begin(attempts: Sequence[Attempt], user: WaitingUser) -> list[tuple[int, Dialogue]]:
    def seed_of(task: Task, attempt: int) -> Callable[[int], int]:
        return lambda turn: dialogue_seed(0, task.id, attempt, turn)

    return [(at, open_dialogue(DOMAIN, user, task, k, seed_of(task, k), AGENT)) for at, task, k in attempts]


async def one_turn(
    active: list[tuple[int, Dialogue]], user: WaitingUser, closed: dict[int, Trajectory]
) -> list[tuple[int, Dialogue]]:
    """All agents, then all users; return the dialogues that go on."""
    engine = WaitingEngine()
    replies = await asyncio.gather(*(engine.ask(dialogue.prompt(), Sampling(64)) for _, dialogue in active))
    for (_, dialogue), (completion,) in zip(active, replies, strict=True):
        dialogue.take(completion)
    await asyncio.gather(*(dialogue.ask_async(user) for _, dialogue in active if not dialogue.done))
    closed.update({at: dialogue.close("") for at, dialogue in active if dialogue.done})
    return [(at, dialogue) for at, dialogue in active if not dialogue.done]


def measure(
    scheme: Callable[[Sequence[Attempt], WaitingUser, int], dict[int, Trajectory]],
    count: int,
    concurrent: int,
    run: int,
) -> tuple[dict[str, float], dict[int, Trajectory], list[float]]:
    attempts = [(n, Task(f"t-{run}-{n}", f"I want function {run} {n}.", "def f(): ..."), 0) for n in range(count)]
    user = WaitingUser()
    started, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF)
    dialogues = scheme(attempts, user, concurrent)
    seconds, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_SELF)
    processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    numbers = {
        "dialogues_per_second": count / seconds,
        "seconds": seconds,
        "processor_ms_per_dialogue": 1000 * processor / count,
        "turns": statistics.mean(len(dialogue.turns) for dialogue in dialogues.values()),
    }
    return numbers, dialogues, user.waits


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dialogues", type=int, default=256)
    parser.add_argument("--concurrent", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    schemes = {"asynchronous": asynchronous, "lock-step": lock_step}
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in schemes}
    waits: list[float] = []
    for repeat in range(options.repeats):
        results = []
        for name, scheme in schemes.items():
            numbers, dialogues, waited = measure(scheme, options.dialogues, options.concurrent, repeat)
            runs[name].append(numbers)
            results.append(dialogues)
            print(f"run {repeat + 1}, {name}: {numbers['seconds']:.1f} s", flush=True)
            waits += waited
        assert all(result == results[0] for result in results), "the schemes must have the same dialogues"
    result = {
        name: {key: statistics.median(run[key] for run in some) for key in some[0]} for name, some in runs.items()
    }
    first = result["asynchronous"]["dialogues_per_second"]
    cuts = statistics.quantiles(waits, n=20)
    print(f"the user's waits: median {statistics.median(waits):.2f} s, 95th percentile {cuts[-1]:.2f} s")
    for name, numbers in result.items():
        print(
            f"{name:20s} {numbers['dialogues_per_second']:7.2f} dialogues/s {numbers['seconds']:7.1f} s"
            f" {numbers['processor_ms_per_dialogue']:7.1f} ms of processor a dialogue {numbers['turns']:5.1f} turns"
            f"   asynchronous is {first / numbers['dialogues_per_second']:.2f} times as fast"
        )


if __name__ == "__main__":
    main()
