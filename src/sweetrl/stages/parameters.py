"""What decides each stage's result: its parameters, those that dvc.yaml lists, too (a test compares the two), and data.

The parameters are logged to the stage's run, and are part of its scratch folder's name.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any, cast

from pydantic import BaseModel

from sweetrl.api.calls import chosen
from sweetrl.api.learning import own_settings
from sweetrl.colbench.find import load_domain
from sweetrl.colbench.prompts import prompt_files
from sweetrl.config.settings import Settings
from sweetrl.errors import UserError
from sweetrl.methods.base import find_method
from sweetrl.paths import ROOT_VARIABLE
from sweetrl.plugins import check_sources

PROMPTS = "src/sweetrl/prompts"  # a dependency of every stage that reads a prompt

SUITE = ("suite", "suite_options")
METHOD = ("method", "method_options")
DIALOGUES = ("model", "agent", "engine", "simulator", "reward", "browser", "similarity")
LEARNING = ("trainer", "policy", "multi_turn_dpo", "rft")

PARAMETERS: dict[str, tuple[str, ...]] = {
    "tasks": ("seed", *SUITE, "tasks"),
    "pretrain": ("pretrain", "tasks.difficulty"),
    "warm-start": (
        *(*SUITE, "model", "agent.prompt", "agent.max_turns"),
        *("pretrain", "tasks.difficulty", "trainer", "warm_start"),
    ),
    "collect": ("seed", *SUITE, *DIALOGUES, "collect"),
    "validate": (
        *(*SUITE, *METHOD, "model", "agent.prompt", "agent.max_turns", "collect.attempts", "collect.source"),
        *("critic.pairs", "critic.gap", "critic.parameterization", "critic.privileged", "rank.critic"),
        *("rft.min_reward", "validate"),
    ),
    "train-critic": (
        *("seed", *SUITE, "model", "agent.prompt", "agent.max_turns", "browser", *METHOD, "preset"),
        *("trainer", "critic", "rank.critic"),
    ),
    "rank": (
        *("seed", *SUITE, "model", "agent", "engine", "browser", *METHOD, "preset"),
        *("critic.normalization", "critic.privileged", "critic.parameterization", "critic.vision"),
        *("critic.privileged_position", "critic.token_set", "rank", "judge", "collect.lost_share"),
    ),
    "train-policy": (
        *("seed", *SUITE, "model", "agent.prompt", "agent.max_turns", *METHOD, "preset", *LEARNING, "grpo"),
        *("critic.privileged", "critic.privileged_position", "rank.reply_types"),
    ),
    "evaluate": ("seed", *SUITE, *DIALOGUES, *METHOD, "evaluate"),
    "summary": ("method",),
    "iterate": (
        *("seed", "iterations", *SUITE, *METHOD, "preset", *DIALOGUES),
        *("collect", "validate", "critic", "rank", "judge", *LEARNING),
    ),
    "evaluate-iterations": ("seed", "iterations", *SUITE, *DIALOGUES, *METHOD, "evaluate"),
    "best-of-n": (
        *("seed", *SUITE, "preset", *DIALOGUES),
        *("critic", "rank.critic", "rank.rollouts", "rank.reference", "rank.layout", "rank.tokens", "judge"),
        *("collect.lost_share", "best_of_n", "policy.advantage_temperature"),
    ),
}


def with_values(settings: Settings, values: Mapping[str, Any]) -> Settings:
    """Return `settings` with other values for dotted keys, as they are; a key whose value is None keeps its own."""

    def changed(section: BaseModel, key: str, value: Any) -> BaseModel:
        name, _, rest = key.partition(".")
        return section.model_copy(update={name: changed(getattr(section, name), rest, value) if rest else value})

    for key, value in values.items():
        if value is not None:
            settings = cast(Settings, changed(settings, key, value))
    return settings


def stage_parameters(stage: str, settings: Settings) -> dict[str, Any]:
    """Return the settings that decide the result of `stage`, by dotted name; what `trainer` says is in the sections."""
    tree = settings.model_dump(mode="json", by_alias=True)
    names = [name for name in PARAMETERS.get(stage, ()) if name != "trainer"]
    return {name: reduce(getitem, name.split("."), tree) for name in names}


def own_sources(settings: Settings, root: Path | None = None) -> dict[str, Path]:
    """Return key of `sources` -> the file or folder in `root` (default: the project) with your own code.

    A UserError where a domain, method, reward or user that `settings` choose is not there, has not the options that
    they give it, or lies where DVC does not look.
    """
    load_domain(settings)
    own_settings(find_method(settings.method), settings)
    return check_sources(chosen(settings), settings.sources, root)


def check_declared(settings: Settings) -> None:
    """Refuse data that a stage reads and DVC does not look at: a change of it would be seen by nobody.

    These are the base model's folder, files of tasks and prompts; each lies where `sources` says. What is not there (a
    hub's name, or missing, which is said where it is read) is passed over, and so is a stage in a folder of its own.
    """
    root, sources = Path.cwd(), settings.sources
    if os.environ.get(ROOT_VARIABLE) or not (root / "dvc.yaml").exists():
        return

    def lies_in(path: str | Path, *places: str) -> bool:
        return any(place and (root / path).resolve().is_relative_to((root / place).resolve()) for place in places)

    files = settings.tasks if settings.tasks.source == "files" else None
    for place, key, name in (
        ("base", "model.base", settings.model.base),
        ("tasks", "tasks.train_file", files and files.train_file),
        ("tasks", "tasks.test_file", files and files.test_file),
    ):
        declared = getattr(sources, place)
        if name and declared and (root / name).exists() and not lies_in(name, declared):
            raise UserError(f"params.yaml: `{key}: {name}` is not in `sources.{place}` ({declared}), where DVC looks.")
    for key, path in prompt_files(settings.agent, settings.judge, settings.simulator).items():
        if not lies_in(path, PROMPTS, sources.suite):
            raise UserError(f"params.yaml: `{key}: {path}`: DVC looks into {PROMPTS} and `sources.suite`; put it in.")
