"""What the two training stages share: progress on the screen and curves in the stage's run."""

from __future__ import annotations

import logging
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from sweetrl.stages.common import StageRun

if TYPE_CHECKING:
    from sweetrl.learning.trainers import Metrics, PreferenceTrainer
    from sweetrl.settings import Settings

logger = logging.getLogger("sweetrl")

SECONDS_BETWEEN_LINES = 15.0

TRAJECTORIES = Path("data/trajectories")
PAIRS = Path("data/pairs.parquet")
LEFT_OUT = "left_out.json"  # stands alone in the output of a stage that the method does without
PREFERENCES = Path("data/preferences")
CRITIC = Path("models/critic")
POLICY = Path("models/policy")
REFERENCES = Path(".cache/reference")  # log-probs of the reference, by weights and tokens: never stale, free to remove


class Progress:
    """Takes every step's metrics: curves go to the run, a bar to a terminal, now and then a plain line elsewhere."""

    def __init__(self, run: StageRun):
        self.run = run
        self._bar = None
        self._task = None
        self._line = time.monotonic()
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            self._bar = Progress(*columns, TextColumn("{task.fields[note]}"), console=Console(stderr=True))
            self._bar.start()
            self._task = self._bar.add_task(run.stage, total=None, note="")

    def __call__(self, step: int, steps: int, metrics: Metrics) -> None:
        """Report one step."""
        if "loss" not in metrics:
            return
        self.run.log_metrics(metrics, step)
        shown = (("loss", "loss"), ("accuracy", "accuracy"), ("reward/margin", "margin"))
        note = "  ".join(f"{short} {metrics[name]:.4f}" for name, short in shown if name in metrics)
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=step, total=steps, note=note)
        elif step == steps or time.monotonic() - self._line > SECONDS_BETWEEN_LINES:
            self._line = time.monotonic()
            logger.info("%s: step %d of %d  %s", self.run.stage, step, steps, note)

    def close(self) -> None:
        """Take the bar off the screen."""
        if self._bar is not None:
            self._bar.stop()


def devices_of(trainer: PreferenceTrainer) -> int:
    """Return how many GPUs train: one for each process, 0 on CPUs."""
    return 0 if trainer.args.device.type == "cpu" else trainer.args.world_size


def train_and_publish(run: StageRun, trainer: PreferenceTrainer, progress: Progress, scratch: Path, out: Path) -> None:
    """Train (from the last checkpoint, if any), write the adapter to `out`, and sum up."""
    from sweetrl.learning.adapters import save_adapter
    from sweetrl.stages.common import publish

    started = time.monotonic()
    try:
        history = trainer.fit()
    finally:
        progress.close()
    seconds = time.monotonic() - started
    save_adapter(trainer.model, scratch / "adapter", run.settings.model.base)
    publish(scratch / "adapter", out)
    tail = history[-max(1, len(history) // 5) :]  # the last fifth: single steps are noisy
    final = {
        f"final/{name}": sum(entry[name] for entry in tail) / len(tail)
        for name in ("loss", "accuracy", "reward/margin", "tokens_per_second", "reference_kl", "grad_norm")
        if name in tail[-1]
    }
    run.log_metrics(final | {"seconds_training": seconds, "gpu_seconds": seconds * devices_of(trainer)})
    alone = all(chosen == rejected for chosen, rejected in trainer.data.pairs)
    accuracy = f"accuracy {final['final/accuracy']:.2f}, " if "final/accuracy" in final else ""
    run.summary = (
        f"{len(history)} steps on {len(trainer.data.pairs)} {'attempts' if alone else 'pairs'}, {accuracy}"
        f"loss {final['final/loss']:.4f}, {final['final/tokens_per_second']:.0f} tokens/s, adapter in {out}"
    )


def leave_out(run: StageRun, out: Path, why: str) -> None:
    """Write, in the place of a stage's result, that the method does without it."""
    from sweetrl.io import write_json
    from sweetrl.stages.common import publish

    folder = run.scratch() / "left-out"
    write_json(folder / LEFT_OUT, {"method": run.settings.method, "stage": run.stage, "why": why})
    publish(folder, out)
    run.log.set_tags({"sweetrl.left_out": why})
    run.summary = f"left out: {why}"


def why_no_critic(settings: Settings) -> str | None:
    """Why no critic is trained with these settings, or None if one is."""
    if settings.method != "sweet":
        return f"the method `{settings.method}` has no critic"
    if settings.rank.critic != "trained":
        return f"replies are ranked by `{settings.rank.critic}`"
    return None
