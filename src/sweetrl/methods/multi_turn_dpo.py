"""Multi-Turn DPO: preferences between whole trajectories, without a critic and without training-time information."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sweetrl.methods.base import Method, TrainingJob
from sweetrl.settings import MultiTurnSettings, Settings

if TYPE_CHECKING:
    from sweetrl.learning.batches import PreferenceData
    from sweetrl.learning.supply import Supply
    from sweetrl.learning.trainers import PreferenceTrainer


class MultiTurnDpo(Method):
    """Eq. 2 of the paper on the actor itself."""

    name, section, settings_type = "multi-turn-dpo", "multi_turn_dpo", MultiTurnSettings
    needs = frozenset({"trajectories", "pairs"})

    def lacks(self, supply: Supply) -> str | None:
        """It compares dialogues about one task."""
        return supply.lacks_pairs()

    def data(self, job: TrainingJob) -> PreferenceData:
        """Pairs of whole dialogues as the actor saw them."""
        from sweetrl.learning.whole import policy_pairs

        wanted, inputs = job.settings.multi_turn_dpo, job.inputs
        return policy_pairs(inputs.pairs(), inputs.trajectories(), job.chat, job.system, wanted, inputs.where)

    def trainer(self, settings: Settings) -> type[PreferenceTrainer]:
        """Preferences, with likelihood terms."""
        from sweetrl.learning.trainers import PolicyTrainer

        return PolicyTrainer

    def replay(self, settings: Settings) -> float:
        """As params.yaml says."""
        return settings.multi_turn_dpo.sft_replay
