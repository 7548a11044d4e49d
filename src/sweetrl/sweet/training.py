"""From a trainer to a result: the adapter on disk, the last steps in numbers, and a sentence about them.

Loads neither torch nor transformers by itself; the trainers are in sweetrl.sweet.trainer.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweetrl.console.progress import first_process
from sweetrl.errors import UserError
from sweetrl.sweet.reporting import report_to
from sweetrl.types import TrainingResult

if TYPE_CHECKING:
    from sweetrl.config.settings import TrackingSettings, TrainerSettings
    from sweetrl.console.progress import StepProgress
    from sweetrl.lm.data import PreferenceData
    from sweetrl.sweet.trainer import PreferenceTrainer

SHOWN = ("loss", "accuracy", "reward/margin", "tokens_per_second", "reference_kl", "grad_norm")


def run_trainer(
    trainer: PreferenceTrainer, scratch: Path, base: str, progress: StepProgress | None = None
) -> TrainingResult:
    """Train (from the last checkpoint in `scratch`, if any) and write the adapter on `base` to `scratch`/adapter.

    Under a launcher all processes train, and the first one writes.
    """
    from sweetrl.lm.adapters import save_adapter

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
    save_adapter(trainer.model, folder, base)
    final = last_fifth(history, SHOWN)
    single = all(chosen == rejected for chosen, rejected in trainer.data.pairs)
    accuracy = f"accuracy {final['final/accuracy']:.2f}, " if "final/accuracy" in final else ""
    summary = (
        f"{trainer.steps} steps on {len(trainer.data.pairs)} {'attempts' if single else 'pairs'}, {accuracy}"
        f"loss {final['final/loss']:.4f}, {final['final/tokens_per_second']:.0f} tokens/s"
    )
    spent = {"seconds_training": seconds, "gpu_seconds": seconds * devices_of(trainer)}
    return TrainingResult(folder, summary, final | spent, trainer.model)


def train_adapter(
    trainer_type: type[PreferenceTrainer],
    base: tuple[Any, Any],
    data: PreferenceData,
    settings: TrainerSettings,
    scratch: Path,
    base_name: str,
    seed: int,
    tracking: TrackingSettings,
    name: str,
    progress: StepProgress | None = None,
    replay: float = 0.0,
    cache: Path | None = None,
    head: bool = False,
) -> TrainingResult:
    """Train a fresh adapter on `base` (model, tokenizer) by `data`, under the trainer's `settings`.

    `base_name` is what the adapter's files call the base, `name` what services call the run (`report_to`); `replay`,
    `cache` as for PreferenceTrainer, `head` as for attach_adapter. What is too long for the model is left out, and
    counted in the metrics.
    """
    from sweetrl.lm.adapters import attach_adapter

    model, tokenizer = base
    data, counts = fitting(data, model)
    adapted = attach_adapter(model, settings.lora, seed, head)
    pad_id = tokenizer.pad_token_id or 0
    trainer = trainer_type(adapted, data, settings, scratch, seed, pad_id, progress, replay, cache)
    report_to(trainer, tracking, name)
    result = run_trainer(trainer, scratch, base_name, progress)
    return replace(result, metrics=counts | dict(result.metrics))


def last_fifth(history: Sequence[Mapping[str, float]], names: Sequence[str]) -> dict[str, float]:
    """Return final/NAME: means over the last fifth of the steps, because single steps are noisy."""
    tail = history[-max(1, len(history) // 5) :]
    return {f"final/{name}": sum(entry[name] for entry in tail) / len(tail) for name in names if name in tail[-1]}


def devices_of(trainer: PreferenceTrainer) -> int:
    """Return how many GPUs train: one for each process, 0 on CPUs."""
    return 0 if trainer.args.device.type == "cpu" else trainer.args.world_size


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
