"""Rewards that are plain functions, as what rollouts score dialogues with; and the price of questions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import fsum, isclose, isfinite
from numbers import Real

from sweetrl.errors import UserError
from sweetrl.protocols import RewardFunction, Scorer
from sweetrl.types import Score, Trajectory

ROUNDING = 1e-9  # a reward that is outside its bounds by no more than this is set to the bound
PRICE = "reward.turn_cost"  # the part of a reward that the questions have cost
TASK = "task"  # the other part, of a reward that has no parts of its own


@dataclass(frozen=True)
class RewardScorer:
    """Scores each dialogue by `reward`, a function of (task, dialogue) that returns a number or its named parts.

    With `inner`, another scorer (a domain's own) goes first: the function then sees its verdict in the dialogue, and
    success stays what the other scorer says. A reward outside `bounds`, or none at all, is a UserError that names the
    task.
    """

    reward: RewardFunction
    name: str
    bounds: tuple[float, float] = (0.0, 1.0)
    inner: Scorer | None = None

    def score(self, dialogues: Sequence[Trajectory]) -> list[Score]:
        """Return one score for each dialogue, in order."""
        if self.inner is None:
            return [self._score(dialogue, Score(0.0)) for dialogue in dialogues]
        scores = []
        for dialogue, score in zip(dialogues, self.inner.score(dialogues), strict=True):
            tests, parts = tuple(score.tests), dict(score.parts)
            judged = replace(dialogue, reward=score.reward, tests=tests, parts=parts, solved=score.solved)
            scores.append(replace(self._score(judged, score), solved=_solved(score)))
        return scores

    def _score(self, dialogue: Trajectory, score: Score) -> Score:
        where = f"task {dialogue.task.id}: the reward {self.name}"
        try:
            reward = self.reward(dialogue.task, dialogue)
        except UserError:
            raise
        except Exception as error:
            error.add_note(f"The reward {self.name} failed at task {dialogue.task.id}.")
            raise
        values = list(reward.values()) if isinstance(reward, Mapping) else [reward]
        if not values or isinstance(reward, bool) or not all(isinstance(v, Real) and isfinite(v) for v in values):
            raise UserError(f"{where} returned {reward!r}; it must return a number or a dict of named numbers.")
        value, (low, high) = fsum(values), self.bounds
        if not low - ROUNDING <= value <= high + ROUNDING:
            raise UserError(
                f"{where} returned {value:g}, outside {low:g} to {high:g}; change the function, or the domain's "
                "`reward_range`."
            )
        parts = {str(name): float(part) for name, part in reward.items()} if isinstance(reward, Mapping) else {}
        return replace(score, reward=float(min(high, max(low, value))), parts=parts, semantics=self.name)


@dataclass(frozen=True)
class PricedScorer:
    """Takes `turn_cost` off another scorer's reward for every question of a dialogue (`reward.turn_cost`).

    Whether the task is solved stays what the other scorer says. The price is a part of the reward.
    """

    inner: Scorer
    turn_cost: float

    @property
    def thread_safe(self) -> bool:
        """Whether several threads may score at the same time: as the other scorer says."""
        return bool(getattr(self.inner, "thread_safe", False))

    def score(self, dialogues: Sequence[Trajectory]) -> list[Score]:
        """Return one score for each dialogue, in order."""
        scores = zip(dialogues, self.inner.score(dialogues), strict=True)
        return [priced(dialogue, score, self.turn_cost) for dialogue, score in scores]


def priced(dialogue: Trajectory, score: Score, turn_cost: float) -> Score:
    """Return a score less the price of the dialogue's questions, which is a part of it."""
    cost = price(dialogue, turn_cost)
    parts = {**(score.parts or {TASK: score.reward}), PRICE: 0.0 - cost}
    return replace(score, reward=score.reward - cost, parts=parts, solved=_solved(score))


def price(dialogue: Trajectory, turn_cost: float) -> float:
    """Return what a dialogue's questions cost: those of the agent's turns that the user replied to."""
    return turn_cost * sum(message.role == "user" for message in dialogue.messages[1:])


def price_fault(trajectory: Trajectory, turn_cost: float) -> str | None:
    """Say what is wrong with what a scored trajectory's questions have cost, or None."""
    if trajectory.reward is None:
        return None
    paid, due = 0.0 - trajectory.parts.get(PRICE, 0.0), price(trajectory, turn_cost)
    if abs(paid - due) > ROUNDING:
        return f"its questions have cost {paid:g}, with this reward.turn_cost it is {due:g}"
    total = fsum(trajectory.parts.values())
    if PRICE in trajectory.parts and not isclose(total, trajectory.reward, abs_tol=1e-6):
        return f"the reward is {trajectory.reward:g}, but its parts add up to {total:g}"
    return None


def unpriced(trajectory: Trajectory) -> Trajectory:
    """Return a scored trajectory with the reward that it has without the price of its questions."""
    if PRICE not in trajectory.parts or trajectory.reward is None:
        return trajectory
    return replace(trajectory, reward=fsum(value for name, value in trajectory.parts.items() if name != PRICE))


def _solved(score: Score) -> bool:
    return score.reward >= 1.0 if score.solved is None else score.solved
