"""The arguments of transformers.Trainer, and its checkpoints. Loads transformers."""

from __future__ import annotations

import logging
import math
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback, TrainingArguments

from sweetrl.config.settings import TrainerSettings
from sweetrl.errors import UserError

if TYPE_CHECKING:
    import torch

# Checkpoints are numbered, so it does not matter which of them a file system calls the newest.
logging.getLogger("transformers.trainer_utils").addFilter(lambda record: "mtime" not in record.getMessage())

MOST_LOGGED = 2000  # entries of a training's metrics: about 2 KB each in memory, in every checkpoint and in MLflow
COMPLETE = "complete"  # a file in a checkpoint folder that was written to the end


class _ShardedArguments(TrainingArguments):
    """For a model whose layers are where they belong already."""

    @property
    def place_model_on_device(self) -> bool:
        return False


def training_arguments(
    settings: TrainerSettings, scratch: Path, seed: int, steps: int, device: torch.device, sharded: bool = False
) -> TrainingArguments:
    """The arguments of transformers.Trainer, for `steps` ready-made steps with checkpoints in `scratch`.

    Metrics are those of every step, of longer trainings means over a few steps, and checkpoints lie between them.
    """
    from torch.cuda import is_available

    every = math.ceil(steps / MOST_LOGGED)
    arguments = (_ShardedArguments if sharded else TrainingArguments)(
        output_dir=str(scratch),
        per_device_train_batch_size=1,  # an item is a whole step already
        num_train_epochs=1,  # the plan holds all epochs
        learning_rate=settings.learning_rate,
        lr_scheduler_type="cosine_with_min_lr",
        lr_scheduler_kwargs={"min_lr_rate": settings.min_lr_ratio},
        warmup_steps=min(math.ceil(settings.warmup_ratio * steps), steps - 1),  # its first step has learning rate 0
        optim="adamw_torch_fused" if device.type == "cuda" else "adamw_torch",
        adam_beta1=0.9,
        adam_beta2=0.95,
        weight_decay=0.0,
        max_grad_norm=settings.max_grad_norm,
        logging_steps=every,
        logging_nan_inf_filter=False,
        save_strategy="steps",
        save_steps=every * max(1, math.ceil(steps / settings.checkpoints / every)),
        save_total_limit=2,
        seed=seed % 2**32,  # NumPy takes no other
        data_seed=seed % 2**32,
        use_cpu=device.type == "cpu" and not (sharded and is_available()),
        report_to=[],
        disable_tqdm=True,
        remove_unused_columns=False,
        label_names=[],
        dataloader_num_workers=0,
        dataloader_pin_memory=False,
    )
    if arguments.n_gpu > 1:
        arguments._n_gpu = 1  # one process, one device: DataParallel would split the batch
    if settings.batch_size < arguments.world_size:
        raise UserError(
            f"params: batch_size {settings.batch_size} is less than the {arguments.world_size} processes; start fewer."
        )
    return arguments


class Checkpoints(TrainerCallback):
    """Marks a checkpoint as complete once all of it is on the disk: a killed run never continues from half of one."""

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Mark the checkpoint that has just been written."""
        folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        if state.is_world_process_zero:
            (folder / COMPLETE).touch()


def last_checkpoint(scratch: Path) -> Path | None:
    """The newest checkpoint in `scratch` that was written to the end; unfinished ones are removed."""
    complete: list[tuple[int, Path]] = []
    for folder in scratch.glob("checkpoint-*"):
        if (folder / COMPLETE).exists():
            complete.append((int(folder.name.rsplit("-", 1)[1]), folder))
        else:
            shutil.rmtree(folder)
    return max(complete)[1] if complete else None
