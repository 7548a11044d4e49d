"""What does a ranking prefer? Each candidate of a ranked state is said to the user of kind `described`.

    python benchmarks/ranked_questions.py reproduce/colbench/seed-data/71 reproduce/colbench/variants/{sweet,other-c}/71

first a seed's data, then rows that were trained on them. A candidate is a question that the user answers with a fact
that it has not told yet (`told`), one that brings out nothing, or the final answer. The table has the share of pairs
of candidates at one state in which the former has the greater advantage (equal ones count half; the mean over states),
and the number of states with such pairs. Before it: how often the dialogues succeeded, by whether the user told a fact.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from itertools import permutations
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from sweetrl.backend import Backend
from sweetrl.colbench.described import REFUSED, UNKNOWN, DescribedUser
from sweetrl.colbench.store import TrajectoryStore
from sweetrl.sweet.preferences import CANDIDATES
from sweetrl.sweet.tables import Table
from sweetrl.types import Message, RankedState, Trajectory

TOLD, NOTHING, ANSWER = "told", "nothing", "answer"


class Rated(NamedTuple):
    """A candidate: what kind of reply it is, its tokens, its advantage."""

    kind: str
    length: int
    advantage: float


COLUMNS: dict[str, Callable[[Rated, Rated], bool]] = {
    "told over nothing": lambda one, other: (one.kind, other.kind) == (TOLD, NOTHING),
    "told over the answer": lambda one, other: (one.kind, other.kind) == (TOLD, ANSWER),
    "shorter over longer": lambda one, other: one.length < other.length,
    "shorter over longer, both questions": lambda one, other: (
        one.length < other.length and ANSWER not in (one.kind, other.kind)
    ),
}


def main() -> None:
    data, *rows = map(Path, sys.argv[1:])
    dialogues = {(each.task.id, each.attempt): each for each in TrajectoryStore(data / "trajectories").read()}
    print_dialogues(list(dialogues.values()))
    print(f"| row | states | {' | '.join(COLUMNS)} |\n|---|---{'|---' * len(COLUMNS)}|")
    for row in rows:
        table = Table(row / "preferences" / CANDIDATES, RankedState)
        states = [rated(state, dialogues[state.task_id, state.attempt]) for state in table]
        print(f"| {row.parent.name} | {len(states)} | {' | '.join(share(states, of) for of in COLUMNS.values())} |")


def print_dialogues(dialogues: Sequence[Trajectory]) -> None:
    """Say how often dialogues succeeded: all, those in which no fact was told, and at least one of a task's."""
    answered = [any(m.content not in UNKNOWN for m in d.messages[2:] if m.role == "user") for d in dialogues]
    without = [dialogue.success for dialogue, any_fact in zip(dialogues, answered, strict=True) if not any_fact]
    tasks = {dialogue.task.id: False for dialogue in dialogues}
    for dialogue in dialogues:
        tasks[dialogue.task.id] |= bool(dialogue.success)
    print(f"{100 * fmean(bool(d.success) for d in dialogues):.1f} % of {len(dialogues)} dialogues succeeded, ", end="")
    print(f"{100 * fmean(map(bool, without)):.1f} % of {len(without)} without a fact; ", end="")
    print(f"{100 * fmean(tasks.values()):.0f} % of {len(tasks)} tasks at least once\n")


def rated(state: RankedState, dialogue: Trajectory) -> list[Rated]:
    """Return the candidates of a state of `dialogue`."""
    domain = Backend()
    user, before = DescribedUser(domain.facts), dialogue.messages[: 2 * state.turn + 1]
    heard = " ".join(message.content for message in before if message.role == "user")
    candidates = []
    for each in state.candidates:
        words = domain.visible(each.text)
        reply = user.reply(dialogue.task, [*before, Message("assistant", words)], 0)
        kind = ANSWER if domain.answers(words) else NOTHING if reply in (*UNKNOWN, REFUSED) or reply in heard else TOLD
        candidates.append(Rated(kind, len(each.token_ids), each.advantage))
    return candidates


def share(states: Sequence[Sequence[Rated]], of: Callable[[Rated, Rated], bool]) -> str:
    """How often the former of a pair has the greater advantage, over the pairs that are meant."""
    gaps = [[a.advantage - b.advantage for a, b in permutations(candidates, 2) if of(a, b)] for candidates in states]
    means = [fmean((gap > 0) + 0.5 * (gap == 0) for gap in own) for own in gaps if own]
    return f"{100 * fmean(means):.0f} % of {len(means)}" if means else "none"


if __name__ == "__main__":
    main()
