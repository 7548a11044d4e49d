"""Whether training computes the log-probs that the engine recorded while it sampled, seen before anything is learnt.

One invariant stands for many rules: with the right weights, template, tokenizer, attention window, head and precision
the two are equal. A few dialogues show it, at the price of one forward pass over them.
"""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from sweetrl.errors import UserError
from sweetrl.lm.head import compute_dtype
from sweetrl.lm.passes import Layout
from sweetrl.lm.reference import reference_logprobs
from sweetrl.lm.rows import Row
from sweetrl.types import Trajectory

logger = logging.getLogger("sweetrl")

FEWEST, MOST, ONE_IN = 4, 16, 50  # dialogues: a pass over one in fifty is half a percent of an epoch of training
LEAST = -1000.0  # a server may write -9999 for a token that it has sampled nevertheless
# How far apart they may be, in nats. In float32 only rounding lies between them, some 1e-5. In half precision right
# engines are up to a nat apart at single unlikely tokens, and 0.01 to 0.03 in the mean; a wrong text is tenths apart.
WORST_IN_FLOAT32, MEAN_IN_HALF = 1e-3, 0.05


@dataclass(frozen=True)
class Recorded:
    """A dialogue's row, and what was recorded for the tokens of its replies (NaN: nothing); `name` is for messages."""

    name: str
    row: Row
    logprobs: tuple[float, ...]


def recorded_rows(
    dialogues: Iterable[Trajectory], policy: str, lay_out: Callable[[Trajectory], Row], seed: int
) -> list[Recorded]:
    """Lay out some of the dialogues that `policy`, a base without an adapter, has sampled with log-probs.

    They are 4, of many one in fifty, never more than 16; `seed` draws them. Others are passed over: imported ones, and
    those of another policy or of an engine that knows only text.
    """
    source: Any = dialogues if hasattr(dialogues, "__getitem__") else list(dialogues)
    count = min(MOST, max(FEWEST, len(source) // ONE_IN))
    drawn = random.Random(seed).sample(range(len(source)), min(len(source), 4 * count))
    read = map(source.__getitem__, drawn)
    own = (each for each in read if each.policy == policy and any(turn.logprobs for turn in each.turns))
    return [recorded_logprobs(each, lay_out(each)) for each in islice(own, count)]


def recorded_logprobs(dialogue: Trajectory, row: Row) -> Recorded:
    """Return what was recorded of a dialogue's replies, for the tokens in the spans of its `row`."""
    by_message = {turn.message_index: turn.logprobs for turn in dialogue.turns}
    logprobs: list[float] = []
    for turn, (start, end) in enumerate(row.spans):
        values = by_message.get(2 * turn + 1, ())
        logprobs += values if len(values) == end - start else [math.nan] * (end - start)
    return Recorded(f"task {dialogue.task.id}, attempt {dialogue.attempt}", row, tuple(logprobs))


def compare(model: Any, recorded: Sequence[Recorded], layout: Layout) -> dict[str, float]:
    """Compute the log-probs of `recorded` as training does, by the base of `model`; return how far apart they are.

    That is the mean and the worst absolute difference in nats, and over how many tokens; {} where nothing is recorded.
    More than rounding is a UserError. Processes that train together call this together.
    """
    sampled = np.array([value for each in recorded for value in each.logprobs])
    present = sampled > LEAST
    if not present.any():
        logger.info("no dialogue has log-probs that its base recorded while it sampled: none are compared")
        return {}
    logprobs = reference_logprobs(model, [each.row for each in recorded], layout)
    computed = np.concatenate([values.double().numpy() for values in logprobs])
    computed, sampled = computed[present], sampled[present]
    apart = np.abs(computed - sampled)
    worst = int(apart.argmax())
    metrics = {"mean_difference": apart.mean(), "worst_difference": apart[worst], "tokens": len(apart)}
    half = compute_dtype(model).itemsize < 4
    difference, most = (apart.mean(), MEAN_IN_HALF) if half else (apart.max(), WORST_IN_FLOAT32)
    if difference > most:
        turns = [
            f"{each.name}, turn {turn}"
            for each in recorded
            for turn, (start, end) in enumerate(each.row.spans, start=1)
            for _ in range(start, end)
        ]
        cause = "the engine computes in another precision; set `model.dtype` to that"
        if apart.mean() >= MEAN_IN_HALF:
            cause = (
                "the base, its tokenizer, chat template or attention window, or `agent.prompt` is another than then, "
                "or the server keeps log-probs after temperature and top_p; collect again"
            )
        raise UserError(
            f"{turns[np.flatnonzero(present)[worst]]}: the log-prob of a token is {computed[worst]:.3f} in training "
            f"and was {sampled[worst]:.3f} in sampling (over {len(apart)} tokens they are {apart.mean():.2g} apart in "
            f"the mean): {cause}."
        )
    return {f"recorded_{name}": float(value) for name, value in metrics.items()}
