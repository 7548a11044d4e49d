"""Rewards that are plain functions, as what rollouts score dialogues with."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from sweetrl.errors import UserError
from sweetrl.protocols import RewardFunction, Scorer
from sweetrl.types import Score, Trajectory


class RewardScorer:
    """Scores each dialogue by `reward`, a function of (task, dialogue) that returns a number or its named parts.

    With `inner`, another scorer (a domain's own) goes first: the function then sees its reward and tests in the
    dialogue, and success stays what the other scorer says. A reward outside `bounds`, or none at all, is a UserError
    that names the task.
    """

    def __init__(
        self,
        reward: RewardFunction,
        name: str,
        bounds: tuple[float, float] = (0.0, 1.0),
        inner: Scorer | None = None,
    ) -> None:
        self.reward, self.name, self.bounds, self.inner = reward, name, bounds, inner

    def score(self, dialogues: Sequence[Trajectory]) -> list[Score]:
        """Return one score for each dialogue, in order."""
        if self.inner is None:
            return [self._one(dialogue, Score(0.0, semantics=self.name)) for dialogue in dialogues]
        return [
            self._one(replace(dialogue, reward=known.reward, tests=tuple(known.tests)), known)
            for dialogue, known in zip(dialogues, self.inner.score(dialogues), strict=True)
        ]

    def _one(self, dialogue: Trajectory, known: Score) -> Score:
        found = self.reward(dialogue.task, dialogue)
        parts = {str(name): float(value) for name, value in found.items()} if isinstance(found, Mapping) else {}
        value = sum(parts.values()) if parts else found
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise UserError(
                f"task {dialogue.task.id}: the reward {self.name} returned {found!r}; it must return a number or a "
                "dict of named numbers."
            )
        low, high = self.bounds
        if not low - 1e-9 <= value <= high + 1e-9:
            raise UserError(
                f"task {dialogue.task.id}: the reward {self.name} returned {value:g}, outside {low:g} to {high:g}; "
                "change the function, or the domain's `reward_range`."
            )
        solved = known.solved if self.inner is not None else None
        if self.inner is not None and solved is None:
            solved = known.reward >= 1.0
        return replace(known, reward=float(value), parts=parts, semantics=self.name, solved=solved)
