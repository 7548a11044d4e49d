"""A training and its result: the adapter on disk, metrics of the last steps, and a summary in one sentence.

Loads neither torch nor transformers by itself; the trainers are in sweetrl.sweet.trainer.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from sweetrl.config.settings import (
    AgentSettings,
    CollectSettings,
    CriticSettings,
    EngineSettings,
    ModelSettings,
    RankSettings,
    TrackingSettings,
)
from sweetrl.console.progress import first_process
from sweetrl.errors import UserError
from sweetrl.thoughts import thought_length
from sweetrl.types import Preference, RankedState, Task, TrainingResult, Trajectory

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase, Trainer

    from sweetrl.colbench.domain import Domain
    from sweetrl.console.progress import StepProgress
    from sweetrl.lm.data import PreferenceData, Row
    from sweetrl.lm.recorded import Recorded
    from sweetrl.protocols import Chat
    from sweetrl.sweet.preferences import Ranking, Replay
    from sweetrl.sweet.trainer import PreferenceTrainer
    from sweetrl.types import TrajectoryPair

T = TypeVar("T")
TENSORBOARD = Path("tensorboard")  # where TENSORBOARD_LOGGING_DIR does not say another place
SHOWN = ("loss", "accuracy", "reward/margin", "tokens_per_second", "reference_kl", "grad_norm")


@dataclass(frozen=True)
class Inputs:
    """What a method learns from; a call for what was not given (its `needs` do not name it) is a UserError.

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
    """One training of a policy or a critic: who learns what, and where unfinished work lies.

    `settings` are the method's own (its `settings_type`) or the critic's; `agent`, `engine`, `collect`, `critic` and
    `rank` say how dialogues are made and rated. `inputs` is what there is to learn from, `scratch` the folder of
    unfinished work, `progress` takes every step's metrics, `cache` keeps the reference's log-probs. `learn_thoughts` is
    `policy.learn_thoughts`.
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
    learn_thoughts: bool = True
    progress: StepProgress | None = None
    cache: Path | None = None

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The base model's tokenizer."""
        from sweetrl.models.load import load_tokenizer

        return load_tokenizer(self.model.base)

    @cached_property
    def chat(self) -> Chat:
        """The base model's chat format."""
        from sweetrl.engines.chat import ChatFormat

        return ChatFormat(self.tokenizer, **self.model.chat_options)

    @cached_property
    def system(self) -> str:
        """The agent's system prompt."""
        return self.domain.system_prompt(self.agent.prompt)

    def rows(self, trajectories: Iterable[Trajectory]) -> PreferenceData:
        """Return the replies of whole dialogues, each learnt on its own (by likelihood, or by its return)."""
        from sweetrl.lm.data import encode
        from sweetrl.sweet.data import rows_of

        return rows_of(trajectories, lambda each: encode(each, self.chat, self.system))

    def learnt(self, rows: Iterable[Row]) -> Iterator[Row]:
        """Yield rows with those tokens in their spans that are learnt: where `learn_thoughts` is false, no thoughts."""
        for row in rows:
            spans = []
            for start, end in row.spans:
                thoughts = thought_length(row.token_ids[start:end], self.tokenizer, self.model.marks)
                spans.append((min(start + thoughts, end - 1), end))
            yield replace(row, spans=tuple(spans))

    def learnt_data(self, data: PreferenceData) -> PreferenceData:
        """Return `data` with the rows that `learnt` gives."""
        from sweetrl.lm.rows import RowFile

        if self.learn_thoughts or getattr(self.settings, "loss_tokens", "") == "all":
            return data
        rows, reference_rows = (RowFile(self.learnt(rows)) for rows in (data.rows, data.reference_rows))
        return replace(data, rows=rows, reference_rows=reference_rows)


def run_trainer(
    trainer: PreferenceTrainer, scratch: Path, base: str, progress: StepProgress | None = None
) -> TrainingResult:
    """Train (from the last checkpoint in `scratch`, if any) and write what was trained of `base` to `scratch`/adapter.

    Under a launcher all processes train, and the first one writes.
    """
    from sweetrl.lm.adapters import save_trained

    started = time.monotonic()
    try:
        history = trainer.fit()
    finally:
        if progress is not None:
            progress.close()
    seconds = time.monotonic() - started
    folder = scratch / "adapter"
    if not first_process():
        return TrainingResult(folder, "", {}, trainer.model)
    save_trained(trainer.model, folder, base)
    final = last_fifth(history, SHOWN)
    single = all(chosen == rejected for chosen, rejected in trainer.data.pairs)
    accuracy = f"accuracy {final['final/accuracy']:.2f}, " if "final/accuracy" in final else ""
    summary = (
        f"{trainer.steps} steps on {len(trainer.data.pairs)} {'attempts' if single else 'pairs'}, {accuracy}"
        f"loss {final['final/loss']:.4f}"
    )
    gpus = 0 if trainer.args.device.type == "cpu" else trainer.args.world_size  # one for each process
    spent = {"seconds_training": seconds, "gpu_seconds": seconds * gpus}
    return TrainingResult(folder, summary, final | spent, trainer.model)


def train_adapter(
    job: TrainingJob,
    trainer_type: type[PreferenceTrainer],
    data: PreferenceData,
    name: str,
    replay: float = 0.0,
    head: bool = False,
    recorded: Sequence[Recorded] | None = None,
) -> TrainingResult:
    """Train the base, or a fresh adapter on it, by `data`, under `job.settings`.

    `name` is what services call the run (`report_to`); `replay` as for PreferenceTrainer, `head` as for trainable.
    What is too long for the model is left out, and counted in the metrics. `recorded` is compared before.
    """
    from sweetrl.lm.adapters import load_base, trainable

    model, tokenizer = load_base(job.model)
    data, counts = fitting(data, model)
    trained, pad_id = trainable(model, job.model, job.settings.lora, job.seed, head), tokenizer.pad_token_id or 0
    how = (job.settings, job.scratch, job.seed, pad_id, job.progress, replay, job.cache)
    trainer = trainer_type(trained, data, *how, recorded=recorded)
    report_to(trainer, job.tracking, name)
    result = run_trainer(trainer, job.scratch, job.model.base, job.progress)
    return replace(result, metrics=counts | trainer.compared | dict(result.metrics))


def last_fifth(history: Sequence[Mapping[str, float]], names: Sequence[str]) -> dict[str, float]:
    """Return final/NAME: means over the last fifth of the steps, because single steps are noisy."""
    tail = history[-max(1, len(history) // 5) :]
    return {f"final/{name}": sum(entry[name] for entry in tail) / len(tail) for name in names if name in tail[-1]}


def fitting(data: PreferenceData, model: Any) -> tuple[PreferenceData, dict[str, float]]:
    """Leave out what is too long for the model; return the rest and the counts. Nothing left is a UserError."""
    from sweetrl.lm.data import drop_overlong
    from sweetrl.models.load import context_limit

    fits, too_long = drop_overlong(data, limit := context_limit(model))
    if too_long and not fits.pairs:
        raise UserError(
            f"none of the {too_long} dialogues, replies or pairs to learn from fits into the model's context of "
            f"{limit} tokens; take a base with a longer one, or shorter dialogues."
        )
    return fits, {"pairs": len(fits.pairs), "replay": len(fits.replay), "pairs_too_long": too_long}


def report_to(trainer: Trainer, tracking: TrackingSettings, name: str) -> None:
    """Let `trainer` report to what `tracking.report_to` lists besides MLflow, as the run `name`.

    That is by transformers' own callbacks. A package that is not installed is a UserError.
    """
    from transformers.integrations import get_reporting_integration_callbacks

    for service in tracking.report_to:
        if find_spec(service) is None:
            raise UserError(
                f"params.yaml: `tracking.report_to` lists {service}, which is not installed: pip install {service}, or "
                "take it off the list."
            )
    arguments: Any = trainer.args
    arguments.run_name, arguments.project = name, tracking.experiment
    if "wandb" in tracking.report_to:
        os.environ.setdefault("WANDB_PROJECT", tracking.experiment)  # its callback knows no other way
    for callback in get_reporting_integration_callbacks(list(tracking.report_to)):
        reporter = callback()
        if vars(reporter).get("logging_dir", "") is None:  # TensorBoard's; the default is removed at the end
            reporter.logging_dir = str(TENSORBOARD / name)
        trainer.add_callback(reporter)
