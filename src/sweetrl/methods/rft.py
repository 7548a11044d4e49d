"""Rejection Fine-Tuning: the likelihood of every reply of the successful attempts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sweetrl.methods.base import Method, TrainingJob
from sweetrl.settings import RftSettings

if TYPE_CHECKING:
    from sweetrl.learning.batches import PreferenceData


class Rft(Method):
    """Imitation of what went well."""

    name, section, settings_type = "rft", "rft", RftSettings
    needs = frozenset({"trajectories"})

    def data(self, job: TrainingJob) -> PreferenceData:
        """The attempts with a reward of `rft.min_reward` or more."""
        from sweetrl.learning.whole import successes

        return successes(job.inputs.trajectories(), job.chat, job.system, job.settings.rft.min_reward)
