"""A stage's parts made by several processes: one process for each share, wherever it runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from sweetrl.stages.scratch import SPREAD, VARIABLE, Share
from tasks.pipeline import failure, policy_of, stage_environment
from tasks.process import run_program


def run_share(
    root: Path,
    stage: str,
    share: Share,
    env: Mapping[str, str] | None = None,
    line: Callable[[str], None] = print,
) -> str:
    """Make one share of the parts of `stage` in the project at `root`; return the stage's last line.

    `root` is the folder that all processes see. Raises StageFailed with one sentence. Nothing is recorded in MLflow:
    the stage that puts the parts together records them.
    """
    if stage not in SPREAD:
        raise ValueError(f"stage {stage} has no parts")
    root = Path(root)
    path = os.pathsep.join(filter(None, [str(root / "src"), os.environ.get("PYTHONPATH", "")]))
    own = {"PYTHONPATH": path, VARIABLE: str(share), "SWEETRL_TRACKING": "off"}
    lines: list[str] = []

    def take(text: str) -> None:
        lines.append(text)
        del lines[:-400]
        if text:
            line(text)

    command = [sys.executable, "-m", f"sweetrl.stages.{stage.replace('-', '_')}"]
    code = run_program(command, root, stage_environment({**(env or {}), **own}), policy_of(stage).limit, take)
    if code:
        raise failure(stage, lines, code)
    return next((text for text in reversed(lines) if text), "")
