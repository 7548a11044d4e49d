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

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

from sweetrl.config.settings import (
    AgentSettings,
    CollectSettings,
    CriticSettings,
    EngineSettings,
    ModelSettings,
    RankSettings,
    TrackingSettings,
    TrainerSettings,
)
from sweetrl.errors import UserError
from sweetrl.plugins import construct, find
from sweetrl.sweet.training import train_adapter
from sweetrl.types import Preference, RankedState, Task, TrainingResult, Trajectory

if TYPE_CHECKING:
    from sweetrl.colbench.domain import Domain
    from sweetrl.console.progress import StepProgress
    from sweetrl.lm.data import PreferenceData
    from sweetrl.protocols import Chat
    from sweetrl.sweet.pairs import DataCounts
    from sweetrl.sweet.preferences import Ranking, Replay
    from sweetrl.sweet.trainer import PreferenceTrainer
    from sweetrl.types import TrajectoryPair

T = TypeVar("T")
Artifact = Literal["tasks", "trajectories", "pairs", "critic", "preferences"]


@dataclass(frozen=True)
class Inputs:
    """What methods learn from; what was not given (a method's `needs` do not name it) is a UserError at its call.

    `where` is what a message names: a file, or what a function was given.
    """

    dialogues: Iterable[Trajectory] | None = None
    trajectory_pairs: Sequence[TrajectoryPair] | None = None
    ranking: Ranking | None = None
    training_tasks: Sequence[Task] | None = None
    where: str = "pairs"

    def tasks(self) -> list[Task]:
        """The training tasks."""
        return list(_given(self.training_tasks, "tasks"))

    def trajectories(self) -> Iterable[Trajectory]:
        """The collected dialogues; may be read several times."""
        return _given(self.dialogues, "dialogues")

    def pairs(self) -> list[TrajectoryPair]:
        """Pairs of whole dialogues."""
        return list(_given(self.trajectory_pairs, "pairs"))

    def preferences(self) -> tuple[Sequence[Preference], Sequence[Replay]]:
        """Pairs of replies at one state, and the successful dialogues beside them."""
        ranking = _given(self.ranking, "ranking")
        return ranking.preferences, ranking.replay

    def candidates(self) -> Sequence[RankedState]:
        """All candidate replies of the ranked states, with their advantages."""
        return _given(self.ranking, "ranking").states


def _given(value: T | None, name: str) -> T:
    if value is None:
        raise UserError(f"train: the method needs `{name}`; give them to sweetrl.train, or name them in its `needs`.")
    return value


@dataclass(frozen=True)
class TrainingJob:
    """One training of a policy: who learns what, and where unfinished work lies.

    `settings` are the method's own (its `settings_type`), `agent`, `engine`, `collect`, `critic` and `rank` the
    sections that say how dialogues are made and rated. `inputs` is what there is to learn from, `scratch` the folder of
    unfinished work, `progress` takes every step's metrics, `cache` keeps the reference's log-probs.
    """

    settings: Any
    model: ModelSettings
    agent: AgentSettings
    engine: EngineSettings
    collect: CollectSettings
    critic: CriticSettings
    rank: RankSettings
    tracking: TrackingSettings
    seed: int
    domain: Domain
    inputs: Inputs
    scratch: Path
    progress: StepProgress | None = None
    cache: Path | None = None

    @cached_property
    def chat(self) -> Chat:
        """The base model's chat format."""
        from sweetrl.engines.chat import ChatFormat
        from sweetrl.models.load import load_tokenizer

        return ChatFormat(load_tokenizer(self.model.base))

    @cached_property
    def system(self) -> str:
        """The agent's system prompt."""
        return self.domain.system_prompt(self.agent.prompt)

    def rows(self, trajectories: Iterable[Trajectory]) -> PreferenceData:
        """Return the replies of whole dialogues, each learnt on its own (by likelihood, or by its return)."""
        from sweetrl.lm.data import encode
        from sweetrl.sweet.data import rows_of

        return rows_of(trajectories, lambda one: encode(one, self.chat, self.system))


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

    def replay(self, settings: Any) -> float:
        """Return how many rows of `data`'s replay are learnt beside each pair: `sft_replay`, where it is a setting."""
        return getattr(settings, "sft_replay", 0.0)

    def train(self, job: TrainingJob) -> TrainingResult:
        """Train an adapter on the base model; a killed run goes on from its last checkpoint in `job.scratch`."""
        from sweetrl.lm.adapters import load_base

        data = self.data(job)
        return train_adapter(
            self.trainer(job.settings),
            load_base(job.model),
            data,
            job.settings,
            job.scratch,
            job.model.base,
            job.seed,
            job.tracking,
            "train-policy",
            job.progress,
            self.replay(job.settings),
            job.cache,
        )


def find_method(name: str) -> Method:
    """Return the method called `name`; what is none is a UserError."""
    method = construct(find("methods", name), "methods", name)
    if not callable(getattr(method, "train", None)):
        raise UserError(f"params.yaml: `method: {name}` is no method; it must be a subclass of sweetrl.Method.")
    method.name = name
    return cast(Method, method)
