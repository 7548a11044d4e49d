"""What training is compared with: the base model as it is, over all turns or with its first reply as the answer."""

from __future__ import annotations

from sweetrl.methods.base import Method, TrainingJob
from sweetrl.settings import Settings
from sweetrl.types import TrainingResult


class ZeroShot(Method):
    """Nothing is trained: the adapter's B is 0, so that the policy is the base, to the bit."""

    name = "zero-shot"
    section = "policy"  # whose adapter's shape is taken
    trains = False

    @property
    def once(self) -> str:  # type: ignore[override]
        """Further iterations would change nothing."""
        return f"the method `{self.name}` trains nothing"

    def train(self, job: TrainingJob) -> TrainingResult:
        """Write an adapter that changes nothing."""
        from sweetrl.learning.adapters import attach_adapter, load_base, save_adapter

        settings = job.settings
        model, _ = load_base(settings.model)
        adapted = attach_adapter(model, settings.policy.lora, settings.seed)
        save_adapter(adapted, job.scratch / "adapter", settings.model.base)
        return TrainingResult(
            job.scratch / "adapter",
            f"the method `{self.name}` trains nothing: the adapter leaves the base as it is",
            model=adapted,
        )


class SingleTurn(ZeroShot):
    """As zero-shot, and the first reply is the answer."""

    name = "single-turn"

    def at_evaluation(self, settings: Settings) -> Settings:
        """One turn is left, and the prompt `full` becomes the one that asks for an answer at once."""
        settings = super().at_evaluation(settings)
        prompt = "single" if settings.agent.prompt == "full" else settings.agent.prompt
        return settings.model_copy(
            update={"agent": settings.agent.model_copy(update={"max_turns": 1, "prompt": prompt})}
        )
