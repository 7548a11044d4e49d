"""The base model and its adapters: load, attach, and write so that equal weights give equal bytes."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweetrl.errors import UserError
from sweetrl.io import atomic_path
from sweetrl.model_files import check_adapter
from sweetrl.models import load_lora, load_tokenizer, load_weights, resolve_device, shared_targets
from sweetrl.settings import LoraSettings, ModelSettings

if TYPE_CHECKING:
    from torch import nn


def load_base(settings: ModelSettings) -> tuple[Any, Any]:
    """Load (model, tokenizer) of the frozen base; a missing or broken one is a UserError."""
    from sweetrl.learning.distributed import wants_shards

    tokenizer, model = load_tokenizer(settings.base), load_weights(settings.base, settings.dtype)
    model.requires_grad_(False)
    # What is to be sharded may not fit on one device: it goes there layer by layer.
    return model.to("cpu" if wants_shards() else resolve_device(settings.device)), tokenizer


def attach_adapter(model: Any, lora: LoraSettings, seed: int, head: bool = False) -> nn.Module:
    """Put a fresh LoRA adapter on `model`: B = 0, so that it starts as the reference; A from `seed`.

    With `head` a critic's head of zeros comes with it (sweetrl.learning.heads), trained and saved in full.
    """
    import torch
    from peft import LoraConfig, get_peft_model

    from sweetrl.learning.heads import HEAD, add_head

    if head:
        add_head(model)
    targets: Any = lora.target_modules
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
        with warnings.catch_warnings():  # peft asks transformers in an old way
            warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)
            warnings.filterwarnings("ignore", ".*tie_word_embeddings", UserWarning)  # refused below, in a sentence
            adapted = get_peft_model(model, config)
    except ValueError as error:
        raise UserError(f"lora.target_modules = {lora.target_modules!r}: {error}") from error
    if shared := shared_targets(adapted):
        raise UserError(
            f"lora.target_modules = {lora.target_modules!r}: this base uses the weights of `{shared[0]}` as embeddings "
            "and as head, and an adapter on one of the two cannot be merged; leave it out."
        )
    return adapted


def load_adapter(model: Any, folder: Path) -> nn.Module:
    """Put the adapter in `folder`, and the head that it may have, on `model`, frozen and in evaluation mode."""
    from sweetrl.learning.heads import HEAD, add_head

    if HEAD in (check_adapter(folder).get("modules_to_save") or []):
        add_head(model)
    adapted: nn.Module = load_lora(model, folder).eval()
    return adapted


def save_adapter(model: Any, folder: Path, base: str) -> None:
    """Write adapter_model.safetensors and adapter_config.json into `folder`, whole or not at all, each.

    The bytes depend on the weights and on `base` as params.yaml names it, not on where anything lies. Weights that are
    not finite are a UserError: a last step may leave them behind although its loss was.
    """
    from peft import get_peft_model_state_dict
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    tensors = get_peft_model_state_dict(model, save_embedding_layers=False)  # those are the base's
    weights = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    if broken := [name for name, value in weights.items() if not bool(value.isfinite().all())]:
        raise UserError(
            f"{folder}: the trained weights are not finite ({broken[0]}), as after a gradient that was not; lower the "
            "learning rate, or take `model.dtype: float32`."
        )
    with atomic_path(folder / "adapter_model.safetensors") as temporary:
        save_file(weights, temporary, metadata={"format": "pt"})
    config = model.peft_config["default"].to_dict()
    config = {key: getattr(value, "value", value) for key, value in config.items()}
    # peft keeps names in sets, whose order changes from process to process
    config = {key: sorted(value) if isinstance(value, set) else value for key, value in config.items()}
    config |= {"base_model_name_or_path": base, "inference_mode": True}
    with atomic_path(folder / "adapter_config.json") as temporary:
        temporary.write_text(json.dumps(config, indent=2, sort_keys=True, default=str) + "\n", encoding="utf-8")
