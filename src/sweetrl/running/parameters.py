"""Which parameters decide each stage's result: those that dvc.yaml lists, too (a test compares the two).

They are logged to the stage's run, and are part of its scratch folder's name.
"""

from __future__ import annotations

from typing import Any

from sweetrl.settings import Settings

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
        *("collect.lost_share", "best_of_n"),
    ),
}


def stage_parameters(stage: str, settings: Settings) -> dict[str, Any]:
    """Return the settings that decide the result of `stage`, by dotted name; what `trainer` says is in the sections."""
    tree = settings.model_dump(mode="json", by_alias=True)
    found: dict[str, Any] = {}
    for name in PARAMETERS.get(stage, ()):
        if name == "trainer":
            continue
        value: Any = tree
        for part in name.split("."):
            value = value[part]
        found[name] = value
    return found
