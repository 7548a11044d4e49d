"""Critics with a head, ablations of Eq. 3: the regression head (Eq. 2 on the turns' values) and the value function.

Import this module where they are trained or rate: it loads transformers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import Tensor

from sweetrl.config.settings import CriticSettings
from sweetrl.lm.data import PreferenceData
from sweetrl.lm.head import POOLING, turn_values
from sweetrl.lm.passes import Layout
from sweetrl.lm.reference import in_passes
from sweetrl.protocols import Chat, Replies, Work
from sweetrl.sweet.advantage import segment_mean, segment_sum
from sweetrl.sweet.data import branch_rows, critic_row
from sweetrl.sweet.losses import critic_loss, value_loss
from sweetrl.sweet.trainer import Metrics, PreferenceTrainer, margin_metrics
from sweetrl.types import Trajectory

if TYPE_CHECKING:
    from sweetrl.colbench.domain import Domain


@dataclass(frozen=True)
class HeadCritic:
    """A regression head or a value head (sweetrl.lm.head); `layout` is flat."""

    model: Any
    domain: Domain
    chat: Chat
    system: str
    view: CriticSettings
    layout: Layout

    def rate(self, work: Sequence[Work]) -> list[list[list[float]]]:
        """The head's value; a value function ranks like the advantage, as V(o_t) is the same for all candidates."""
        return [self._values(dialogue, turns) for dialogue, turns in work]

    def _values(self, dialogue: Trajectory, turns: Replies) -> list[list[float]]:
        trunk = critic_row(dialogue, self.domain, self.chat, self.system, self.view)
        rows = branch_rows(trunk, turns)
        rate, values = partial(turn_values, pooling=POOLING[self.view.parameterization]), [0.0] * len(rows)
        for indices, rated in in_passes(self.model, rows, self.layout, self.layout.cut_rows(rows), rate):
            for index, value in zip(indices, rated.tolist(), strict=True):
                values[index] = value
        in_order = iter(values)
        return [[next(in_order) for _ in replies] for replies in turns]


class HeadTrainer(PreferenceTrainer):
    """A critic with a head; in flat batches, because trees keep no states of the replies' last tokens."""

    settings: CriticSettings
    compares = False

    def __init__(self, model: Any, data: PreferenceData, settings: CriticSettings, *more: Any, **options: Any):
        super().__init__(model, data, settings.model_copy(update={"layout": "flat"}), *more, **options)

    def outputs(self, rows: dict[str, Any]) -> Tensor:
        """The head's value of every turn, [T]."""
        model: Any = self.model
        return turn_values(model, rows, POOLING[self.settings.parameterization])


class RegressionTrainer(HeadTrainer):
    """Stage 1 with a regression head: Eq. 2 on the sums of the turns' values."""

    def pair_loss(self, values: Tensor, batch: dict[str, Any]) -> tuple[Tensor, Metrics]:
        """-log sigmoid( beta sum_t A(chosen turn t) - beta sum_t A(rejected turn t) )."""
        rows = batch["rows"]
        scores = segment_sum(values, rows["turn_row"], len(rows["tokens"]))
        chosen, rejected = scores[batch["chosen"]], scores[batch["rejected"]]
        loss = critic_loss(chosen, rejected, self.settings.beta)
        metrics = margin_metrics(chosen, rejected, self.settings.beta) | {"loss/preference": loss.detach()}
        metrics |= self.value_metrics(values.detach(), batch)
        return batch["share"][0] * loss, metrics


class ValueTrainer(HeadTrainer):
    """Stage 1 with a value function: every turn of every attempt tells whether the attempt will succeed."""

    def pair_loss(self, values: Tensor, batch: dict[str, Any]) -> tuple[Tensor, Metrics]:
        """Cross-entropy of the final success: the mean over an attempt's turns, then over attempts."""
        rows = batch["rows"]
        labels = batch["label"].to(values)[rows["turn_row"]]
        each = value_loss(values, labels, rows["turn_row"], len(rows["tokens"]))
        loss = each[batch["chosen"]].mean()
        right = ((values.detach() > 0) == (labels > 0.5)).to(values.dtype)
        metrics = {"accuracy": right.mean(), "success": batch["label"].mean()}
        index = rows["turn_index"]
        by_turn = segment_mean(values.detach(), index, batch["turns"]["all"])
        metrics |= {f"value/turn_{turn + 1:02d}": mean for turn, mean in enumerate(by_turn)}
        return batch["share"][0] * loss, metrics
