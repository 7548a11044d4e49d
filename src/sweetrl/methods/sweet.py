"""SWEET-RL: preferences between replies to one state, ranked by a critic that sees the training-time information."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sweetrl.methods.base import Artifact, Method, TrainingJob
from sweetrl.settings import PolicySettings, Settings

if TYPE_CHECKING:
    from sweetrl.learning.batches import PreferenceData
    from sweetrl.learning.trainers import PreferenceTrainer


class Sweet(Method):
    """Eq. 4 of the paper."""

    name, section, settings_type = "sweet", "policy", PolicySettings
    needs = frozenset({"trajectories", "pairs", "critic", "preferences"})
    learns_from = frozenset({"preferences"})

    def why_skipped(self, artifact: Artifact, settings: Settings) -> str | None:
        """No critic is trained where another one ranks."""
        if artifact == "critic" and settings.rank.critic != "trained":
            return f"replies are ranked by `{settings.rank.critic}`"
        return super().why_skipped(artifact, settings)

    def data(self, job: TrainingJob) -> PreferenceData:
        """The preferences, and successful dialogues beside them."""
        from sweetrl.learning.preferences import preference_rows

        preferences, replay = job.inputs.preferences()
        wanted = job.settings.policy
        return preference_rows(preferences, replay if wanted.sft_replay else [], wanted)

    def trainer(self) -> type[PreferenceTrainer]:
        """Preferences, with likelihood terms."""
        from sweetrl.learning.trainers import PolicyTrainer

        return PolicyTrainer

    def replay(self, settings: Settings) -> float:
        """As params.yaml says."""
        return settings.policy.sft_replay
