"""What an adapter is: an agent's or a critic's. Both are LoRA adapters of one base, and only one of them talks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sweetrl.errors import UserError
from sweetrl.file_hashes import dvc_hash
from sweetrl.paths import CRITIC, POLICY
from sweetrl.tracking.registry import data_hashes


def refuse_critic(adapter: Path, config: Mapping[str, Any]) -> None:
    """Raise UserError for a critic's folder where an agent's is wanted; `config` is its adapter_config.json."""
    if _is_critic(adapter, config):
        raise UserError(
            f"{adapter}: this is a critic, which rates what an agent says and does not talk; name an agent: {POLICY}, "
            "or a registered MODEL@ALIAS."
        )


def _is_critic(adapter: Path, config: Mapping[str, Any]) -> bool:
    """Whether an adapter has a head, lies where critics do, or is the one that dvc.lock knows as the critic."""
    if config.get("modules_to_save") or adapter.resolve().parts[-len(CRITIC.parts) :] == CRITIC.parts:
        return True
    critic = data_hashes(Path.cwd()).get(CRITIC.as_posix())
    return critic is not None and critic == dvc_hash(adapter)


__all__ = ["refuse_critic"]
