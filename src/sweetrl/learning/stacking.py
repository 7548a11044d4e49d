"""Several adapters on one base as one: what iterations of training, each on top of the one before, come to."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweetrl.errors import UserError
from sweetrl.io import atomic_path
from sweetrl.model_files import ADAPTER_WEIGHTS, check_adapter

if TYPE_CHECKING:
    from torch import Tensor


def stack_adapters(folders: Sequence[Path], out: Path, base: str) -> None:
    """Write to `out` the LoRA adapter on `base` that does what those in `folders` do one on top of the other.

    sum_i s_i B_i A_i = s [B_1 .. B_n diag(s_i / s)] [A_1; ..; A_n], s_i = alpha_i / r_i, s = s_1          (exact)

    Its rank is the sum of their ranks, so nothing is lost; each was trained on the base with those before it merged.
    """
    from safetensors.torch import save_file

    read = [_read(Path(folder)) for folder in folders]
    configs = [config for config, _ in read]
    scales = [config["lora_alpha"] / config["r"] for config in configs]
    weights = _stacked([tensors for _, tensors in read], [scale / scales[0] for scale in scales])
    rank = sum(int(config["r"]) for config in configs)
    config = configs[0] | {"r": rank, "lora_alpha": scales[0] * rank, "base_model_name_or_path": base}
    out.mkdir(parents=True, exist_ok=True)
    with atomic_path(out / "adapter_model.safetensors") as temporary:
        save_file(weights, temporary, metadata={"format": "pt"})
    with atomic_path(out / "adapter_config.json") as temporary:
        temporary.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _read(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    from safetensors.torch import load_file

    config = check_adapter(folder)
    plain = config.get("bias", "none") == "none"
    more = ("modules_to_save", "rank_pattern", "alpha_pattern", "use_rslora", "use_dora")
    if not plain or any(config.get(name) for name in more):
        raise UserError(f"{folder}: only plain LoRA adapters can be put on top of each other; this one has more.")
    return config, load_file(folder / ADAPTER_WEIGHTS)


def _stacked(parts: Sequence[dict[str, Tensor]], factors: Sequence[float]) -> dict[str, Tensor]:
    """Every A below those before it, every B, with its factor, beside them."""
    import torch

    names = list(dict.fromkeys(name for part in parts for name in part))
    found = {}
    for name in names:
        inner = "lora_A" in name or "lora_embedding_A" in name
        if any(name not in part for part in parts):
            raise UserError(
                f"adapters: not all of them have `{name}`; train every iteration with the same lora.target_modules."
            )
        pieces = [part[name] if inner else factor * part[name] for part, factor in zip(parts, factors, strict=True)]
        found[name] = torch.cat(pieces, 0 if inner else 1).contiguous()
    return found
