"""What SWEET-RL is compared with: Multi-Turn DPO, imitation of successes or of answered questions, and no training."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sweetrl.colbench.personas import refuses
from sweetrl.colbench.scoring import unpriced
from sweetrl.config.settings import AgentSettings, MultiTurnSettings, PolicySettings, RftSettings
from sweetrl.errors import UserError
from sweetrl.methods.base import Method
from sweetrl.sweet.pairs import usable
from sweetrl.sweet.training import TrainingJob
from sweetrl.types import TrainingResult, Trajectory

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


class AnsweredTurns(Rft):
    """Imitation of every question that the user answered with more than a refusal, and of successes' final replies.

    A control: no critic, no c, and no reward but for final replies (`rft.min_reward`). Where a user's words alone tell
    good questions from poor ones, credit assignment has to beat it.
    """

    name = "answered-turns"  # the settings are those of `rft`

    def refuses(self, words: str) -> bool:
        """Whether the user's words say no more than that there is nothing."""
        return refuses(words)

    def missing_data(self, counts: DataCounts) -> str | None:
        """Questions are imitated whatever the dialogue's reward."""
        return None

    def data(self, job: TrainingJob) -> PreferenceData:
        """The turns that are imitated, each dialogue one row; what stands before a turn is read, as in the dialogue."""
        from sweetrl.lm.data import Row, encode
        from sweetrl.sweet.data import rows_of

        least = job.settings.min_reward

        def row(trajectory: Trajectory) -> Row:
            encoded, kept = encode(trajectory, job.chat, job.system), self.imitated(trajectory, least)
            return Row.of_turns((encoded.prompt(turn), encoded.token_ids[slice(*encoded.spans[turn])]) for turn in kept)

        imitated = (each for each in job.inputs.trajectories() if usable(each) and self.imitated(each, least))
        data = rows_of(imitated, row)
        if not data.rows:
            raise UserError("the user answered no question of these dialogues; collect more, or take another method.")
        return data

    def imitated(self, trajectory: Trajectory, least: float = 1.0) -> list[int]:
        """Return the agent's turns (from 0) that the user answered without a refusal, and the last one of a success.

        A success has a reward of `least` or more, without the price of questions.
        """
        last = sum(message.role == "assistant" for message in trajectory.messages) - 1
        answers = [message.content for message in trajectory.messages[2 : 2 * last + 1 : 2]]
        answered = [turn for turn, answer in enumerate(answers) if not self.refuses(answer)]
        return [*answered, last] if (unpriced(trajectory).reward or 0.0) >= least else answered


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
        summary = f"{self.once}: the adapter leaves the base as it is"
        return TrainingResult(job.scratch / "adapter", summary, model=adapted)


class SingleTurn(ZeroShot):
    """As zero-shot, and the first reply is the answer."""

    name = "single-turn"

    def at_evaluation(self, agent: AgentSettings) -> AgentSettings:
        """One turn is left, and the prompt `full` becomes the one that asks for an answer at once."""
        prompt = "single" if agent.prompt == "full" else agent.prompt
        return agent.model_copy(update={"max_turns": 1, "prompt": prompt})
