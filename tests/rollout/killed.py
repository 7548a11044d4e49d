"""A rollout as a process of its own, to be killed: `killed.py tiny MODEL FOLDER...` or `killed.py far URL FOLDER`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sweetrl.backend import Backend
from sweetrl.colbench.store import TrajectoryStore
from sweetrl.config.settings import AgentSettings, ServerSettings
from sweetrl.engines.openai import OpenAIEngine
from sweetrl.engines.transformers import TransformersEngine
from sweetrl.rollout.context import RolloutContext
from sweetrl.rollout.run import rollout_scored
from sweetrl.types import Message, Score, Task, Trajectory


class User:
    name, instant = "quiet", True

    def reply(self, task: Task, messages: Sequence[Message], seed: int) -> str:
        return f"It is {seed % 10}."


class Scorer:
    def score(self, dialogues: Sequence[Trajectory]) -> list[Score]:
        return [Score(0.5, semantics="fixed", isolation="none") for _ in dialogues]


def main(kind: str, place: str, *folders: str) -> None:
    engine: Any
    if kind == "tiny":
        engine = TransformersEngine(place, device="cpu", threads=1, rows=8)
        chat, agent = engine.chat, AgentSettings(max_turns=4, max_new_tokens=24)
        tasks, k, batch, shard = 20, 4, 4, 8
    else:
        engine = OpenAIEngine(ServerSettings(urls=place, model="a-model", concurrency=8))
        chat, agent = None, AgentSettings(max_turns=5, max_new_tokens=64)
        tasks, k, batch, shard = 60, 2, 8, 25
    context = RolloutContext(Backend(), engine, chat, User(), Scorer(), agent)
    numbers = range(tasks)
    attempts = [
        (Task(f"t-{n}", f"I want function {n}.", "def f(): ..."), attempt) for n in numbers for attempt in range(k)
    ]
    for folder in folders:
        print("go", flush=True)
        store = TrajectoryStore(Path(folder))
        rollout_scored(attempts, context, store, seed=3, policy_name=kind, batch=batch, shard=shard)
        print("done", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
