"""Parameters and options that had another name before: what an old params.yaml or command line is answered with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_TRAINER = {
    "micro_batch": "micro_batch_size",
    "together": "max_pairs_per_group",
    "recompute": "gradient_checkpointing",
    "warmup": "warmup_ratio",
    "minimum_rate": "min_lr_ratio",
    "clip": "max_grad_norm",
    "lora.targets": "lora.target_modules",
}
_POLICY = {
    "anchors": "sft_replay",
    "nll_anchor": "sft_replay_nll",
    "anchor_turns": "sft_replay_turns",
}
KEYS = {
    "rounds": "iterations",
    "agent.rounds": "agent.max_turns",
    "best_of_n.most": "best_of_n.max_n",
    "critic.place": "critic.privileged_position",
    "grpo.group": "grpo.group_size",
    "grpo.kl": "grpo.kl_coef",
    "grpo.ratio_clip": "grpo.clip_ratio",
    "pretrain.person_weight": "pretrain.user_weight",
    "rank.kinds": "rank.reply_types",
    "rft.least": "rft.min_reward",
    "simulator.page_characters": "simulator.reply_characters",
    "simulator.vision_prompt": "simulator.prompt",
    **{
        f"{section}.{old}": f"{section}.{new}"
        for section in ("critic", "policy", "multi_turn_dpo", "rft", "grpo")
        for old, new in (_TRAINER | (_POLICY if section in ("policy", "multi_turn_dpo") else {})).items()
    },
}
VALUES = {
    ("rank.reply_types", "centred"): "mean_centered",
    ("rank.reply_types", "pages"): "no_questions",
    ("simulator.kind", "person"): "human",
}
# (command, option) -> what the option is called now
OPTIONS = {
    ("evaluate", "--save"): "--out",
    ("export", "--to"): "--out",
    ("play", "--policy"): "--model",
    ("show", "--from"): "--dialogues",
    ("show", "--policy"): "--model",
}


def old_key(key: str) -> str | None:
    """Return what the parameter `key` is called now, or None where it never had that name."""
    return KEYS.get(key)


def old_value(tree: Mapping[str, Any]) -> tuple[str, str, str] | None:
    """Return (key, value, its name now) of the first value in `tree` that is called otherwise now, or None."""
    for (key, value), new in VALUES.items():
        found: Any = tree
        for part in key.split("."):
            found = found.get(part) if isinstance(found, Mapping) else None
        if found == value:
            return key, value, new
    return None
