"""The base model and its adapters: load, attach, and write so that equal weights give equal bytes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweetrl.errors import UserError
from sweetrl.io import atomic_path
from sweetrl.settings import LoraSettings, ModelSettings

if TYPE_CHECKING:
    from torch import nn


def resolve_device(device: str) -> str:
    """Turn `auto` into `cuda` where there is one, else `cpu`."""
    import torch

    return ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device


def load_base(settings: ModelSettings) -> tuple[Any, Any]:
    """Load (model, tokenizer) of the frozen base; a missing or broken one is a UserError."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    try:
        tokenizer = AutoTokenizer.from_pretrained(settings.base)
        model: Any = AutoModelForCausalLM.from_pretrained(settings.base, dtype=getattr(torch, settings.dtype))
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(
            f"{settings.base}: no base model can be loaded from there ({reason}); "
            "`make base-model` builds the small one, `model.base` in params.yaml names another."
        ) from error
    model.requires_grad_(False)
    return model.to(resolve_device(settings.device)), tokenizer


def context_limit(model: Any) -> int:
    """Return how many tokens the model can read."""
    return int(getattr(model.config.get_text_config(), "max_position_embeddings", None) or 2**31)


def attach_adapter(model: Any, lora: LoraSettings, seed: int, head: bool = False) -> nn.Module:
    """Put a fresh LoRA adapter on `model`: B = 0, so that it starts as the reference; A from `seed`.

    With `head` a critic's head of zeros comes with it (sweetrl.learning.heads), trained and saved in full.
    """
    import torch
    from peft import LoraConfig, get_peft_model

    from sweetrl.learning.heads import HEAD, add_head

    if head:
        add_head(model)
    targets: Any = lora.targets
    if targets != "all-linear":
        targets = [name.strip() for name in targets.split(",") if name.strip()]
    torch.manual_seed(seed)
    config = LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,  # type: ignore[arg-type]
        lora_dropout=lora.dropout,
        target_modules=targets,
        task_type="CAUSAL_LM",
        modules_to_save=[HEAD] if head else None,
    )
    try:
        return get_peft_model(model, config)
    except ValueError as error:
        raise UserError(f"lora.targets = {lora.targets!r}: {error}") from error


def load_adapter(model: Any, folder: Path) -> nn.Module:
    """Put the adapter in `folder`, and the head that it may have, on `model`, frozen and in evaluation mode."""
    from peft import PeftModel

    from sweetrl.learning.heads import HEAD, add_head

    config = Path(folder) / "adapter_config.json"
    if not config.exists():
        raise UserError(f"{folder}: there is no adapter; run the stage that trains it first.")
    if HEAD in (json.loads(config.read_text(encoding="utf-8")).get("modules_to_save") or []):
        add_head(model)
    return PeftModel.from_pretrained(model, str(folder)).eval()


def save_adapter(model: Any, folder: Path, base: str) -> None:
    """Write adapter_model.safetensors and adapter_config.json into `folder`, whole or not at all, each.

    The bytes depend on the weights and on `base` as params.yaml names it, not on where anything lies.
    """
    from peft import get_peft_model_state_dict
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    weights = {name: value.detach().cpu().contiguous() for name, value in get_peft_model_state_dict(model).items()}
    with atomic_path(folder / "adapter_model.safetensors") as temporary:
        save_file(weights, temporary, metadata={"format": "pt"})
    config = model.peft_config["default"].to_dict()
    config = {key: getattr(value, "value", value) for key, value in config.items()}
    # peft keeps names in sets, whose order changes from process to process
    config = {key: sorted(value) if isinstance(value, set) else value for key, value in config.items()}
    config |= {"base_model_name_or_path": base, "inference_mode": True}
    with atomic_path(folder / "adapter_config.json") as temporary:
        temporary.write_text(json.dumps(config, indent=2, sort_keys=True, default=str) + "\n", encoding="utf-8")
