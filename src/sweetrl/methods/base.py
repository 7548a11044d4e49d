"""A method as an object: its settings, the artifacts that it needs, its data set, its trainer.

A method of your own is a class in plain Python. This one imitates the best attempt at each task:

    class Best(sweetrl.Method):
        needs = frozenset({"trajectories"})

        class Options(TrainerSettings):
            epochs: float = 4.0

        settings_type = Options

        def data(self, job):
            best = {}
            for attempt in job.inputs.trajectories():
                if attempt.reward and attempt.reward > getattr(best.get(attempt.task.id), "reward", 0.0):
                    best[attempt.task.id] = attempt
            return job.rows(best.values())

`params.yaml: method: my_package.best:Best` trains by it, with `method_options` as its settings.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, cast

from sweetrl.config.settings import AgentSettings, CollectSettings, RankSettings, TrainerSettings
from sweetrl.errors import UserError
from sweetrl.plugins import construct, find
from sweetrl.sweet.training import Inputs as Inputs
from sweetrl.sweet.training import TrainingJob, train_adapter
from sweetrl.types import TrainingResult

if TYPE_CHECKING:
    from sweetrl.lm.data import PreferenceData
    from sweetrl.sweet.pairs import DataCounts
    from sweetrl.sweet.trainer import PreferenceTrainer

Artifact = Literal["tasks", "trajectories", "pairs", "critic", "preferences"]


class Method:
    """A method. The default `train` lays out `data`, and lets `trainer` learn from it."""

    name: str = ""
    """The method as params.yaml names it."""
    section: str = ""
    """The key of params.yaml with its settings; empty: `method_options`."""
    settings_type: type[TrainerSettings] = TrainerSettings
    needs: frozenset[Artifact] = frozenset()
    """What must be made before it can learn; stages that make other things are skipped."""
    learns_from: frozenset[Artifact] | None = None
    """What `train` itself reads; None: all that it needs."""
    trains: bool = True
    """Whether anything is trained; without, the policy is the base, to the bit."""
    once: str = ""
    """Why there is nothing to do after the first of several iterations; empty: each one trains anew."""

    def why_skipped(self, artifact: Artifact, rank: RankSettings) -> str | None:
        """Say why the stage that makes `artifact` has nothing to do, or None where it has."""
        if artifact in self.needs:
            return None
        words = {"critic": "has no critic", "preferences": "ranks no replies"}
        return f"the method `{self.name}` {words.get(artifact, f'needs no {artifact}')}"

    def missing_data(self, counts: DataCounts) -> str | None:
        """Say what is missing in collected dialogues for this method to learn from, or None; before any training."""
        return None

    def dialogues(self, settings: Any, collect: CollectSettings, iterations: int) -> int:
        """Return how many dialogues the policy has learnt from at the end; `settings` are the method's own."""
        return iterations * collect.tasks * collect.attempts

    def at_evaluation(self, agent: AgentSettings) -> AgentSettings:
        """Return how the agent talks when it is evaluated, where params.yaml says `agent`."""
        return agent

    def data(self, job: TrainingJob) -> PreferenceData:
        """Return what is learnt from."""
        raise UserError(f"method: {self.name} has no `data` to learn from; give the class the method, or a `train`.")

    def trainer(self, settings: Any) -> type[PreferenceTrainer]:
        """Return the trainer by the method's own settings; by default one that imitates."""
        from sweetrl.sweet.trainer import ImitationTrainer

        return ImitationTrainer

    def train(self, job: TrainingJob) -> TrainingResult:
        """Train an adapter on the base model; a killed run goes on from its last checkpoint in `job.scratch`."""
        replay = getattr(job.settings, "sft_replay", 0.0)  # rows of `data`'s replay beside each pair
        data = job.learnt_data(self.data(job))
        return train_adapter(job, self.trainer(job.settings), data, "train-policy", replay)


def find_method(name: str) -> Method:
    """Return the method called `name`; what is none is a UserError."""
    method = construct(find("methods", name), "methods", name)
    if not callable(getattr(method, "train", None)):
        raise UserError(f"params.yaml: `method: {name}` is no method; it must be a subclass of sweetrl.Method.")
    method.name = name
    return cast(Method, method)
