"""What collected dialogues offer to learn from, counted once: methods say by it what they lack before anything runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sweetrl.colbench.scoring import unpriced
from sweetrl.learning.pairs import trajectory_pairs, usable
from sweetrl.types import Trajectory

if TYPE_CHECKING:
    from sweetrl.colbench.domain import Domain


@dataclass
class Supply:
    """Counts of usable dialogues; `watch` fills them.

    `imitable` have a reward of `rft.min_reward` or more, `unreferenced` no training-time information c (a reference or
    hidden information). `pairs` are those of attempts at one task (`critic.pairs`); whoever makes them writes it.
    """

    domain: Domain
    dialogues: int = 0
    imitable: int = 0
    unreferenced: int = 0
    pairs: int = 0

    def watch(self, trajectories: Iterable[Trajectory]) -> Iterator[Trajectory]:
        """Pass trajectories on and count them."""
        least = self.domain.settings.rft.min_reward
        for one in trajectories:
            if usable(one):
                self.dialogues += 1
                self.imitable += (unpriced(one).reward or 0.0) >= least
                self.unreferenced += not self.domain.reference(one.task)
            yield one

    def lacks_pairs(self) -> str | None:
        """Say that there are no two attempts to compare, or None."""
        if self.pairs:
            return None
        wanted = self.domain.settings.critic
        what = {
            "official": "one that succeeds and one with a lower reward",
            "all": f"two whose rewards differ by {wanted.gap:g} (critic.gap)",
        }[wanted.pairs]
        return (
            f"of the {self.dialogues} dialogues no task has {what} (critic.pairs: {wanted.pairs}), so nothing can be "
            "compared; bring more attempts at each task, or change critic.pairs"
        )

    @classmethod
    def of(cls, trajectories: Iterable[Trajectory], domain: Domain) -> Supply:
        """Count `trajectories` and their pairs."""
        supply, wanted = cls(domain), domain.settings.critic
        supply.pairs = len(trajectory_pairs(supply.watch(trajectories), wanted.pairs, wanted.gap)[0])
        return supply
