"""Adapters that nobody has trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def write_adapter(
    base: Path, folder: Path, scale: float, seed: int = 1, head: bool = False, name: str = "models/base", **lora: Any
) -> Path:
    """Write a random adapter that changes what `base` says, the more the larger its `scale`; return its folder."""
    import torch

    from sweetrl.config.settings import LoraSettings, ModelSettings
    from sweetrl.lm.adapters import attach_adapter, load_base, save_adapter

    loaded, _ = load_base(ModelSettings(base=str(base), device="cpu"))
    model: Any = attach_adapter(loaded, LoraSettings(**{"rank": 4} | lora), seed, head)
    generator = torch.Generator().manual_seed(seed)
    for parameter_name, parameter in model.named_parameters():
        if any(part in parameter_name for part in ("lora_B", "lora_embedding_A", "score.modules_to_save")):
            parameter.data = scale * torch.randn(parameter.shape, generator=generator)
    save_adapter(model, folder, name)
    return folder
