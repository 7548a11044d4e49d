"""Dialogues with their rewards: scoring, counting what was lost, and the means that people look at first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache

from sweetrl.config.settings import ModelSettings
from sweetrl.errors import UserError
from sweetrl.models.load import load_tokenizer
from sweetrl.protocols import Scorer
from sweetrl.thoughts import split_thoughts, thought_length
from sweetrl.types import Score, Trajectory

THOUGHTS = "thought_tokens_per_reply"
SPOKEN = ("generated_tokens", "prompt_tokens", "leaks")  # what `extra` has of a dialogue before anybody scores it


class Losses:
    """Counts lost dialogues (or other `things`) by cause, and stops when more than `share` of `total` are lost."""

    def __init__(self, total: int, share: float, things: str = "dialogues") -> None:
        self.total, self.share, self.things = total, share, things
        self.causes: Counter[str] = Counter()

    @property
    def count(self) -> int:
        """How many are lost."""
        return self.causes.total()

    @property
    def too_many(self) -> bool:
        """Whether more are lost than may be."""
        return self.count > self.share * self.total

    def add(self, trajectories: Iterable[Trajectory]) -> None:
        """Count the lost among `trajectories`; UserError with the causes when there are too many."""
        self.lose(*(trajectory.error for trajectory in trajectories if trajectory.outcome == "lost"))

    def lose(self, *causes: str) -> None:
        """Count one lost for each of `causes`; UserError with the causes when there are too many."""
        self.causes.update(causes)
        if self.too_many:
            most = "; ".join(f"{count} x {cause}" for cause, count in self.causes.most_common(3))
            raise UserError(
                f"{self.count} of {self.total} {self.things} are lost, more than the allowed share of {self.share:g} "
                f"({most}); fix the cause and run the same command again: what is finished is kept, lost "
                f"{self.things} get another chance."
            )


def scored(trajectories: Sequence[Trajectory], scorer: Scorer) -> list[Trajectory]:
    """Return `trajectories` with rewards and test results; a lost dialogue keeps reward None (nobody failed there)."""
    finished = [trajectory for trajectory in trajectories if trajectory.outcome != "lost"]
    scores = iter(scorer.score(finished))
    return [each if each.outcome == "lost" else with_score(each, next(scores)) for each in trajectories]


def with_score(trajectory: Trajectory, score: Score) -> Trajectory:
    """Return `trajectory` with what `score` says of it."""
    return replace(
        trajectory,
        reward=score.reward,
        tests=tuple(score.tests),
        parts=dict(score.parts),
        solved=score.solved,
        extra={**trajectory.extra, **score.notes},
    )


def unscored(trajectory: Trajectory) -> Trajectory:
    """Return a dialogue that was played here as it was before it was scored."""
    extra = {name: trajectory.extra[name] for name in SPOKEN if name in trajectory.extra}
    return replace(trajectory, reward=None, tests=(), parts={}, solved=None, extra=extra)


def thought_counter(model: ModelSettings) -> Callable[[Trajectory], int]:
    """Return what counts the tokens of thoughts in a dialogue of `model`; those of replies without ids are not known.

    The tokenizer is loaded at the first thought.
    """
    tokenizer = cache(lambda: load_tokenizer(model.base))

    def count(trajectory: Trajectory) -> int:
        thoughtful = [turn.token_ids for turn in trajectory.turns if split_thoughts(turn.raw, model.marks)[0]]
        return sum(thought_length(ids, tokenizer(), model.marks) for ids in thoughtful if ids)

    return count


def summarize(
    trajectories: Iterable[Trajectory], thought_tokens: Callable[[Trajectory], int] | None = None
) -> dict[str, float]:
    """Return the means people look at first: success, reward, turns, tokens; and shares of how dialogues end.

    Success and reward are means over the scored dialogues, everything else over all. `thought_tokens` counts the tokens
    of thoughts, of which the mean over replies is there where there are any.
    """
    sums: Counter[str] = Counter()
    reward = success = 0.0
    for trajectory in trajectories:
        sampled = sum(len(turn.token_ids) for turn in trajectory.turns)
        sums.update(
            dialogues=1,
            turns=len(trajectory.turns),
            tokens_per_dialogue=sampled or int(trajectory.extra.get("generated_tokens", 0)),
            thought_tokens=thought_tokens(trajectory) if thought_tokens else 0,
            share_answered=trajectory.outcome == "answered",
            share_cut_by_token_limit=any(turn.finish_reason == "length" for turn in trajectory.turns),
            share_lost=trajectory.outcome == "lost",
            share_leaked="leaks" in trajectory.extra,
            rated=trajectory.reward is not None,
        )
        if trajectory.reward is not None:
            reward += trajectory.reward
            success += trajectory.success
    each, rated = max(sums["dialogues"], 1), max(sums["rated"], 1)
    means = ("turns", "tokens_per_dialogue", "share_answered", "share_cut_by_token_limit", "share_lost", "share_leaked")
    return {
        "dialogues": float(sums["dialogues"]),
        "success": success / rated,
        "reward": reward / rated,
        **{name: sums[name] / each for name in means},
        **({THOUGHTS: sums["thought_tokens"] / sums["turns"]} if sums["thought_tokens"] else {}),
    }
