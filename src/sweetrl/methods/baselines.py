"""What SWEET-RL is compared with: Multi-Turn DPO, Rejection Fine-Tuning, and the base model without any training."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sweetrl.config.settings import AgentSettings, MultiTurnSettings, PolicySettings, RftSettings
from sweetrl.methods.base import Method
from sweetrl.sweet.training import TrainingJob
from sweetrl.types import TrainingResult

if TYPE_CHECKING:
    from sweetrl.lm.data import PreferenceData
    from sweetrl.sweet.pairs import DataCounts
    from sweetrl.sweet.trainer import PreferenceTrainer


class MultiTurnDpo(Method):
    """Eq. 2 of the paper on the actor itself: pairs of whole dialogues, without a critic and without c."""

    name, section, settings_type = "multi-turn-dpo", "multi_turn_dpo", MultiTurnSettings
    needs = frozenset({"trajectories", "pairs"})

    def missing_data(self, counts: DataCounts) -> str | None:
        """It compares dialogues about one task."""
        return counts.missing_pairs()

    def data(self, job: TrainingJob) -> PreferenceData:
        """Pairs of whole dialogues as the actor saw them."""
        from sweetrl.sweet.data import policy_pairs

        inputs = job.inputs
        return policy_pairs(inputs.pairs(), inputs.trajectories(), job.chat, job.system, job.settings, inputs.where)

    def trainer(self, settings: MultiTurnSettings) -> type[PreferenceTrainer]:
        """Preferences, with likelihood terms."""
        from sweetrl.sweet.trainer import PolicyTrainer

        return PolicyTrainer


class Rft(Method):
    """Rejection Fine-Tuning: the likelihood of every reply of the successful attempts."""

    name, section, settings_type = "rft", "rft", RftSettings
    needs = frozenset({"trajectories"})

    def missing_data(self, counts: DataCounts) -> str | None:
        """It imitates dialogues of a high reward."""
        if counts.imitable:
            return None
        least = counts.rft.min_reward
        return (
            f"none of the {counts.dialogues} dialogues has a reward of {least:g} (rft.min_reward), so there is nothing "
            "to imitate; bring more dialogues, or lower rft.min_reward"
        )

    def data(self, job: TrainingJob) -> PreferenceData:
        """The attempts with a reward of `rft.min_reward` or more."""
        from sweetrl.sweet.data import successes

        return successes(job.inputs.trajectories(), job.chat, job.system, job.settings.min_reward)


class ZeroShot(Method):
    """Nothing is trained: the adapter's B is 0, so that the policy is the base, to the bit."""

    name = "zero-shot"
    section, settings_type = "policy", PolicySettings  # whose adapter's shape is taken
    trains = False
    once = "the method trains nothing"

    def train(self, job: TrainingJob) -> TrainingResult:
        """Write an adapter that changes nothing."""
        from sweetrl.lm.adapters import attach_adapter, load_base, save_adapter

        model, _ = load_base(job.model)
        adapted = attach_adapter(model, job.settings.lora, job.seed)
        save_adapter(adapted, job.scratch / "adapter", job.model.base)
        return TrainingResult(
            job.scratch / "adapter",
            f"{self.once}: the adapter leaves the base as it is",
            model=adapted,
        )


class SingleTurn(ZeroShot):
    """As zero-shot, and the first reply is the answer."""

    name = "single-turn"

    def at_evaluation(self, agent: AgentSettings) -> AgentSettings:
        """One turn is left, and the prompt `full` becomes the one that asks for an answer at once."""
        prompt = "single" if agent.prompt == "full" else agent.prompt
        return agent.model_copy(update={"max_turns": 1, "prompt": prompt})
