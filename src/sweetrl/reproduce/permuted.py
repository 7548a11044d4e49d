"""Controls that are made of a seed's data: dialogues whose c is another task's, and rewards that say nothing."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from sweetrl.types import Trajectory


def permuted_references(dialogues: Sequence[Trajectory], seed: int) -> list[Trajectory]:
    """Return the dialogues with another task's reference in each: in a shuffled circle every task has the next one's.

    Rewards, hidden facts and tests stay the task's own, so verdicts on replies and successes are what they were.
    """
    tasks = {each.task.id: each.task for each in dialogues}
    circle = random.Random(f"references {seed}").sample(sorted(tasks), len(tasks))
    following = dict(zip(circle, [*circle[1:], *circle[:1]], strict=True))
    other = {name: replace(task, ground_truth=tasks[following[name]].ground_truth) for name, task in tasks.items()}
    return [replace(each, task=other[each.task.id]) for each in dialogues]


def permuted_rewards(dialogues: Sequence[Trajectory], seed: int) -> list[Trajectory]:
    """Return the dialogues with the rewards of each task dealt out anew among its attempts."""
    places: dict[str, list[int]] = {}
    for place, each in enumerate(dialogues):
        places.setdefault(each.task.id, []).append(place)
    dealt = list(dialogues)
    for task, own in places.items():
        for place, giver in zip(own, random.Random(f"rewards {seed} {task}").sample(own, len(own)), strict=True):
            given = dialogues[giver]
            dealt[place] = replace(dialogues[place], reward=given.reward, solved=given.solved, outcome=given.outcome)
    return dealt
