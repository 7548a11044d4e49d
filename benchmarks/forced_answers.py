"""How good are a policy's questions, if it has to answer after so many? Then it gains nothing by stopping in time.

    cd reproduce/colbench
    python ../../benchmarks/forced_answers.py 71 2 variants/{sweet,rft}/71/policy

plays the profile's base and each policy on the test tasks of seed 71, greedily, with the profile's settings, but the
reply after 2 questions begins as an answer (`forced-answer` of docs/reproduce.md). A policy may still answer before.
The table has success, tests passed and questions, and the difference from the base in tests passed, task by task.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from statistics import fmean

from sweetrl.api.rollouts import opened
from sweetrl.colbench.find import load_domain
from sweetrl.colbench.store import TrajectoryStore, read_task_table
from sweetrl.config.settings import Settings, parse_settings
from sweetrl.engines.policy import Policy
from sweetrl.evaluation.statistics import paired_difference
from sweetrl.reproduce.run import Profile
from sweetrl.reproduce.variants import ANSWER
from sweetrl.rollout.context import OpenEnvironment
from sweetrl.rollout.run import rollout_scored
from sweetrl.types import Task, Trajectory


def main() -> None:
    seed, questions, *adapters = sys.argv[1:]
    changes = {"agent.max_turns": int(questions) + 1, "agent.temperature": 0.0}
    settings = parse_settings(Profile().tree(int(seed), changes), "forced answers")
    tasks = read_task_table(Path("seed-data") / seed / "tasks" / "test.parquet")[: settings.evaluate.tasks]
    print("| policy | success | tests passed | questions | minus the base |\n|---|---|---|---|---|", flush=True)
    base: list[float] = []
    with opened(load_domain(settings)) as world:
        for adapter in (None, *map(Path, adapters)):
            dialogues = play(world, Policy(settings.model, settings.engine, adapter), tasks, settings)
            rewards = [dialogue.reward or 0.0 for dialogue in dialogues]
            base = base or rewards
            gap = paired_difference(base, rewards)
            success = fmean(bool(dialogue.success) for dialogue in dialogues)
            mean_questions = fmean(len(dialogue.turns) - 1 for dialogue in dialogues)
            print(
                f"| {adapter or 'base'} | {success:.1%} | {fmean(rewards):.1%} | {mean_questions:.1f} "
                f"| {100 * gap.value:+.1f} [{100 * gap.low:+.1f}, {100 * gap.high:+.1f}] |",
                flush=True,
            )


def play(world: OpenEnvironment, policy: Policy, tasks: Sequence[Task], settings: Settings) -> list[Trajectory]:
    agent, batch = policy.open(settings.evaluate.batch), settings.evaluate.batch
    with tempfile.TemporaryDirectory() as folder, closing(agent.engine):
        store = rollout_scored(
            [(task, 0) for task in tasks],
            replace(world.context(agent), opening=ANSWER),
            TrajectoryStore(Path(folder)),
            seed=settings.seed,
            policy_name="forced",
            batch=batch,
            shard=batch,
        )
        return list(store)


if __name__ == "__main__":
    main()
