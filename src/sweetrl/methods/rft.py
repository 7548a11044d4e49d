"""Rejection Fine-Tuning: the likelihood of every reply of the successful attempts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sweetrl.methods.base import Method, TrainingJob
from sweetrl.settings import RftSettings

if TYPE_CHECKING:
    from sweetrl.learning.batches import PreferenceData
    from sweetrl.learning.supply import Supply


class Rft(Method):
    """Imitation of what went well."""

    name, section, settings_type = "rft", "rft", RftSettings
    needs = frozenset({"trajectories"})

    def lacks(self, supply: Supply) -> str | None:
        """It imitates dialogues of a high reward."""
        if supply.imitable:
            return None
        least = supply.domain.settings.rft.min_reward
        return (
            f"none of the {supply.dialogues} dialogues has a reward of {least:g} (rft.min_reward), so there is nothing "
            "to imitate; bring more dialogues, or lower rft.min_reward"
        )

    def data(self, job: TrainingJob) -> PreferenceData:
        """The attempts with a reward of `rft.min_reward` or more."""
        from sweetrl.learning.whole import successes

        return successes(job.inputs.trajectories(), job.chat, job.system, job.settings.rft.min_reward)
