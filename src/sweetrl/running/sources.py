"""Data that params.yaml names, and that DVC must look at: the base model's folder, files of tasks, prompts."""

from __future__ import annotations

import os
from pathlib import Path

from sweetrl.colbench.prompts import prompt_files
from sweetrl.errors import UserError
from sweetrl.paths import ROOT_VARIABLE
from sweetrl.settings import Settings

PROMPTS = "src/sweetrl/prompts"  # a dependency of every stage that reads a prompt


def check_declared(settings: Settings) -> None:
    """Raise UserError where a folder or file that is read is not the one in `sources`, which DVC depends on.

    Says nothing outside a project with a dvc.yaml, of what is not there (a hub name, or missing, which is said where it
    is read), and where `sources` has no such key.
    """
    root = Path.cwd()
    if os.environ.get(ROOT_VARIABLE) or not (root / "dvc.yaml").exists():
        return
    read = [("base", "model.base", settings.model.base)]
    if settings.tasks.source == "files":
        read += [("tasks", "tasks.train_file", settings.tasks.train_file)]
        read += [("tasks", "tasks.test_file", settings.tasks.test_file)]
    for place, key, name in read:
        declared = getattr(settings.sources, place)
        if not name or not declared or not (root / name).exists():
            continue
        if not (root / name).resolve().is_relative_to((root / declared).resolve()):
            raise UserError(
                f"params.yaml: `{key}: {name}` is read, but `sources.{place}` is {declared}; set it to {name} or a "
                "folder around it, so that DVC sees its changes."
            )
    seen = (PROMPTS, settings.sources.suite)
    for key, path in prompt_files(settings).items():
        if not any(place and (root / path).resolve().is_relative_to((root / place).resolve()) for place in seen):
            raise UserError(
                f"params.yaml: `{key}: {path}` is read, but DVC does not look there; put the file into {PROMPTS} or "
                "into the folder of `sources.suite`, so that DVC sees its changes."
            )
