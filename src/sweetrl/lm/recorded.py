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
from sweetrl.lm.head import base_of, compute_dtype
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
    own = (each for each in map(source.__getitem__, drawn) if each.policy == policy)
    return [recorded_logprobs(each, lay_out(each)) for each in islice(filter(_has_logprobs, own), count)]


def _has_logprobs(dialogue: Trajectory) -> bool:
    return any(turn.logprobs for turn in dialogue.turns)


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
    More than rounding is a UserError with its likely cause. Processes that train together call this together.
    """
    sampled = np.array([value for each in recorded for value in each.logprobs])
    present = sampled > LEAST
    if not present.any():
        logger.info("no dialogue has log-probs that its base recorded while it sampled: none are compared")
        return {}
    rows = [each.row for each in recorded]
    places = [
        (number, turn, len(row.prompt(turn)) + token)
        for number, row in enumerate(rows)
        for turn, (start, end) in enumerate(row.spans)
        for token in range(end - start)
    ]
    computed = np.concatenate([values.double().numpy() for values in reference_logprobs(model, rows, layout)])
    computed, sampled, (number, turn, place) = computed[present], sampled[present], np.array(places)[present].T
    apart = np.abs(computed - sampled)
    worst = int(apart.argmax())
    metrics = {"mean_difference": apart.mean(), "worst_difference": apart[worst], "tokens": len(apart)}
    if _differ(model, apart):
        raise UserError(
            f"{recorded[number[worst]].name}, turn {turn[worst] + 1}: the log-prob of a token is "
            f"{computed[worst]:.3f} in training and was {sampled[worst]:.3f} in sampling (over {len(apart)} tokens "
            f"they are {apart.mean():.2g} apart in the mean), {_cause(model, apart, turn, place)}."
        )
    return {f"recorded_{name}": float(value) for name, value in metrics.items()}


def _differ(model: Any, apart: Any) -> bool:
    """Whether differences [N] are more than rounding in the precision of `model`; None at all are not."""
    if compute_dtype(model).itemsize < 4:
        return bool(len(apart) and apart.mean() > MEAN_IN_HALF)
    return bool(len(apart) and apart.max() > WORST_IN_FLOAT32)


def _cause(model: Any, apart: Any, turn: Any, place: Any) -> str:
    """What was different while dialogues were sampled, by where differences [N] begin: turn, place in the row."""
    window = getattr(base_of(model).config.get_text_config(), "sliding_window", None) or math.inf
    for alike, cause in (
        (place <= window, f"but not up to token {window}: the engine has another attention window than the base"),
        (turn == 0, "but not in first replies: the chat template lays out earlier turns in another way than then"),
    ):
        if alike.any() and not alike.all() and not _differ(model, apart[alike]):
            return f"{cause}; collect again"
    if apart.mean() < MEAN_IN_HALF:
        return "a little everywhere: the engine computes in another precision; set `model.dtype` to that"
    return (
        "in first replies already: the base, its tokenizer or template, or `agent.prompt` is another than then, or the "
        "server keeps log-probs after temperature and top_p; collect again"
    )
