"""SWEET-RL: preferences between replies to one state, ranked by a critic that sees the training-time information."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sweetrl.config.settings import PolicySettings, RankSettings
from sweetrl.methods.base import Artifact, Method
from sweetrl.sweet.training import TrainingJob

if TYPE_CHECKING:
    from sweetrl.lm.data import PreferenceData
    from sweetrl.sweet.pairs import DataCounts
    from sweetrl.sweet.trainer import PreferenceTrainer

LEAST_WEIGHT = 0.03  # listwise: candidates with less weight are left out


class Sweet(Method):
    """Eq. 4 of the paper, or weighted likelihood of the same candidates (`policy.objective`)."""

    name, section, settings_type = "sweet", "policy", PolicySettings
    needs = frozenset({"trajectories", "pairs", "critic", "preferences"})
    learns_from = frozenset({"preferences"})

    def why_skipped(self, artifact: Artifact, rank: RankSettings) -> str | None:
        """No critic is trained where another one ranks."""
        if artifact == "critic" and rank.critic != "trained":
            return f"replies are ranked by `{rank.critic}`"
        return super().why_skipped(artifact, rank)

    def missing_data(self, counts: DataCounts) -> str | None:
        """A trained critic compares dialogues about one task; what c says cannot be seen where there is no c."""
        kind, critic = counts.rank.critic, counts.critic
        if kind == "trained" and critic.parameterization != "value-head" and (why := counts.missing_pairs()):
            return why
        if counts.without_reference and critic.privileged and kind in ("trained", "privileged-ratio", "judge"):
            return (
                f"{counts.without_reference} of {counts.dialogues} dialogues have no reference, which the critic is to "
                "see (critic.privileged); set critic.privileged to false, or give each of them a `reference`"
            )
        return None

    def data(self, job: TrainingJob) -> PreferenceData:
        """The preferences, and successful dialogues beside them; or all candidates with their weights."""
        from sweetrl.sweet.preferences import listwise_rows, preference_rows
        from sweetrl.sweet.rank import centered

        policy, inputs = job.settings, job.inputs
        if policy.objective == "dpo":
            preferences, replay = inputs.preferences()
            return preference_rows(preferences, replay if policy.sft_replay else [], policy)
        states = centered(inputs.candidates(), job.domain, job.rank.reply_types)
        temperature = policy.advantage_temperature or None
        equal, final = policy.states == "equal", policy.sft_replay_turns == "final"
        replay = inputs.preferences()[1] if policy.sft_replay else ()
        return listwise_rows(states, policy.count_power, temperature, LEAST_WEIGHT, equal, replay, final)

    def trainer(self, settings: PolicySettings) -> type[PreferenceTrainer]:
        """Preferences with likelihood terms, or weighted likelihood."""
        from sweetrl.sweet.trainer import ListwiseTrainer, PolicyTrainer

        return ListwiseTrainer if settings.objective == "listwise" else PolicyTrainer
