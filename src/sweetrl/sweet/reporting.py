"""Curves in TensorBoard, Trackio and Weights & Biases, beside MLflow (`tracking.report_to`)."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweetrl.errors import UserError

if TYPE_CHECKING:
    from transformers import Trainer

    from sweetrl.config.settings import TrackingSettings

TENSORBOARD = Path("tensorboard")  # where TENSORBOARD_LOGGING_DIR does not say another place


def report_to(trainer: Trainer, tracking: TrackingSettings, name: str) -> None:
    """Let `trainer` report to what `tracking.report_to` lists, as the run `name`, by transformers' own callbacks.

    A package that is not installed is a UserError.
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
