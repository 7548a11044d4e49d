"""Training critics with a head: the regression head (Eq. 2 on the turns' values) and the value function."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from sweetrl.learning.advantage import segment_mean, segment_sum
from sweetrl.learning.batches import PreferenceData
from sweetrl.learning.heads import POOLING, turn_values
from sweetrl.learning.objectives import critic_loss, value_loss
from sweetrl.learning.trainers import Metrics, PreferenceTrainer, margin_metrics
from sweetrl.settings import CriticSettings


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
        metrics = margin_metrics(chosen, rejected, self.settings.beta) | {"loss/preference": loss.item()}
        metrics |= self.value_metrics(values.detach(), batch, "chosen", "rejected")
        return batch.get("share", (1.0,))[0] * loss, metrics


class ValueTrainer(HeadTrainer):
    """Stage 1 with a value function: every turn of every attempt tells whether the attempt will succeed."""

    def pair_loss(self, values: Tensor, batch: dict[str, Any]) -> tuple[Tensor, Metrics]:
        """Cross-entropy of the final success: the mean over an attempt's turns, then over attempts."""
        rows = batch["rows"]
        labels = batch["label"].to(values)[rows["turn_row"]]
        each = value_loss(values, labels, rows["turn_row"], len(rows["tokens"]))
        loss = each[batch["chosen"]].mean()
        right = ((values.detach() > 0) == (labels > 0.5)).to(values.dtype)
        metrics = {"accuracy": right.mean().item(), "success": batch["label"].mean().item()}
        index = rows["turn_index"]
        by_turn = segment_mean(values.detach(), index, int(index.max()) + 1).tolist()
        metrics |= {f"value/turn_{turn + 1:02d}": mean for turn, mean in enumerate(by_turn)}
        return batch.get("share", (1.0,))[0] * loss, metrics
