"""Rewards that are plain functions, as what rollouts score dialogues with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import fsum, isfinite
from numbers import Real
from typing import Any

from sweetrl.errors import UserError
from sweetrl.protocols import RewardFunction, Scorer
from sweetrl.types import Score, Trajectory

ROUNDING = 1e-9  # so far beyond its bounds a reward is one of their ends


class RewardScorer:
    """Scores each dialogue by `reward`, a function of (task, dialogue) that returns a number or its named parts.

    With `inner`, another scorer (a domain's own) goes first: the function then sees its verdict in the dialogue, and
    success stays what the other scorer says. A reward outside `bounds`, or none at all, is a UserError that names the
    task.
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
            self._one(_judged(dialogue, one), one)
            for dialogue, one in zip(dialogues, self.inner.score(dialogues), strict=True)
        ]

    def _one(self, dialogue: Trajectory, known: Score) -> Score:
        found = self._ask(dialogue)
        values = list(found.values()) if isinstance(found, Mapping) else [found]
        if not values or isinstance(found, bool) or not all(isinstance(one, Real) and isfinite(one) for one in values):
            raise UserError(
                f"task {dialogue.task.id}: the reward {self.name} returned {found!r}; it must return a number or a "
                "dict of named numbers."
            )
        value = fsum(values)
        low, high = self.bounds
        if not low - ROUNDING <= value <= high + ROUNDING:
            raise UserError(
                f"task {dialogue.task.id}: the reward {self.name} returned {value:g}, outside {low:g} to {high:g}; "
                "change the function, or the domain's `reward_range`."
            )
        parts = {str(name): float(one) for name, one in found.items()} if isinstance(found, Mapping) else {}
        solved = known.solved if self.inner is not None else None
        if self.inner is not None and solved is None:
            solved = known.reward >= 1.0
        value = float(min(high, max(low, value)))
        return replace(known, reward=value, parts=parts, semantics=self.name, solved=solved)

    def _ask(self, dialogue: Trajectory) -> Any:
        try:
            return self.reward(dialogue.task, dialogue)
        except UserError:
            raise
        except Exception as error:
            error.add_note(f"The reward {self.name} failed at task {dialogue.task.id}.")
            raise


def _judged(dialogue: Trajectory, score: Score) -> Trajectory:
    return replace(
        dialogue, reward=score.reward, tests=tuple(score.tests), parts=dict(score.parts), solved=score.solved
    )
