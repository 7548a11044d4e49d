"""The base model and what is trained of it: load, attach adapters, write so that equal weights give equal bytes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweetrl.config.settings import LoraSettings, ModelSettings
from sweetrl.errors import UserError
from sweetrl.io import atomic_path, read_json, write_json
from sweetrl.lm.distributed import wants_shards
from sweetrl.lm.full import load_full, refuse_not_finite, save_full, train_all
from sweetrl.lm.head import HEAD, add_head, compute_dtype
from sweetrl.models.check import ADAPTER_WEIGHTS, FULL, check_adapter, is_full
from sweetrl.models.load import load_lora, load_tokenizer, load_weights, quiet_peft, resolve_device, shared_targets

if TYPE_CHECKING:
    from torch import Tensor, nn


def load_base(settings: ModelSettings) -> tuple[Any, Any]:
    """Load (model, tokenizer) of the frozen base; a missing or broken one is a UserError."""
    how = settings.dtype, settings.quantization, settings.device
    tokenizer, model = load_tokenizer(settings.base), load_weights(settings.base, *how)
    model.requires_grad_(False)
    # What is to be sharded may not fit on one device: it goes there layer by layer.
    return model.to("cpu" if wants_shards() else resolve_device(settings.device)), tokenizer


def trainable(
    model: Any, settings: ModelSettings, lora: LoraSettings, seed: int, head: bool = False, keep_reference: bool = False
) -> nn.Module:
    """Return what is trained of a base: a fresh adapter, or all its weights (`model.train`; a `head` has an adapter).

    `keep_reference` as for train_all: the reference is needed again after training has begun.
    """
    if settings.misplaced:
        raise UserError(f"{settings.misplaced}.")
    if settings.dtype == "float16":
        raise UserError(
            "model.dtype: float16 is for sampling alone: in training nothing scales the loss, so small gradients would "
            "become 0; take bfloat16."
        )
    if settings.train == "lora" or head:
        return attach_adapter(model, lora, seed, head)
    return train_all(model, settings.dtype, keep_reference)


def attach_adapter(model: Any, lora: LoraSettings, seed: int, head: bool = False) -> nn.Module:
    """Put a fresh LoRA adapter on `model`: B = 0, so that it starts as the reference; A from `seed`.

    Its weights are float32, and it computes in the model's precision. With `head` a critic's head of zeros comes with
    it (sweetrl.lm.head), trained and saved in full.
    """
    import torch
    from peft import LoraConfig, get_peft_model

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
        with quiet_peft():
            adapted = get_peft_model(model, config)
    except ValueError as error:
        raise UserError(f"lora.target_modules = {lora.target_modules!r}: {error}") from error
    if shared := shared_targets(adapted):
        raise UserError(
            f"lora.target_modules = {lora.target_modules!r}: this base uses the weights of `{shared[0]}` as embeddings "
            "and as head, and an adapter on one of the two cannot be merged; leave it out."
        )
    if compute_dtype(model).itemsize < 4:
        _compute_in_half(adapted)
    return adapted


def _compute_in_half(adapted: nn.Module) -> None:
    """Have the products of an adapter with float32 weights computed, and kept, in the precision of what comes in.

    peft converts what comes in to float32 instead, for every layer that reads it; so it does still for convolutions.
    """
    import torch
    from peft.tuners.lora import LoraLayer

    layers: list[Any] = [module for module in adapted.modules() if isinstance(module, LoraLayer)]
    for layer in layers:
        products = [*layer.lora_A.values(), *layer.lora_B.values()]
        if all(type(product) is torch.nn.Linear for product in products):
            layer.cast_input_dtype_enabled = False
            for product in products:
                product.__class__ = _half_product()


@cache
def _half_product() -> Any:
    """The class of A and of B (made when first used: its base class is torch's)."""
    import torch

    class HalfProduct(torch.nn.Linear):
        def forward(self, states: Tensor) -> Tensor:
            return torch.nn.functional.linear(states, self.weight.to(states.dtype))

    return HalfProduct


def load_trained(model: Any, folder: Path) -> nn.Module:
    """Put the trained adapter, or all trained weights, in `folder` on their base `model`."""
    return load_full(model, folder) if is_full(folder) else load_adapter(model, folder)


def load_adapter(model: Any, folder: Path) -> nn.Module:
    """Put the adapter in `folder`, and the head that it may have, on `model`, frozen and in evaluation mode."""
    if HEAD in (check_adapter(folder).get("modules_to_save") or []):
        add_head(model)
    adapted: nn.Module = load_lora(model, folder).eval()
    return adapted


def save_trained(model: Any, folder: Path, base: str) -> None:
    """Write the trained adapter, or all trained weights; `base` is what params.yaml calls their base."""
    from transformers import PreTrainedModel

    (save_full if isinstance(model, PreTrainedModel) else save_adapter)(model, folder, base)


def save_adapter(model: Any, folder: Path, base: str) -> None:
    """Write adapter_model.safetensors and adapter_config.json into `folder`, each atomically.

    The bytes depend on the weights and on `base` as params.yaml names it, not on where anything lies. Weights that are
    not finite are a UserError.
    """
    from peft import get_peft_model_state_dict

    tensors = get_peft_model_state_dict(model, save_embedding_layers=False)  # those are the base's
    weights = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    refuse_not_finite(weights, folder)
    config = model.peft_config["default"].to_dict()
    config = {key: getattr(value, "value", value) for key, value in config.items()}
    # peft keeps names in sets, whose order changes from process to process
    config = {key: sorted(value) if isinstance(value, set) else value for key, value in config.items()}
    _write_adapter(folder, weights, config | {"base_model_name_or_path": base, "inference_mode": True})


def _write_adapter(folder: Path, weights: dict[str, Tensor], config: dict[str, Any]) -> None:
    """Write the two files of an adapter, each atomically."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    with atomic_path(folder / ADAPTER_WEIGHTS) as temporary:
        save_file(weights, temporary, metadata={"format": "pt"})
    with atomic_path(folder / "adapter_config.json") as temporary:
        temporary.write_text(json.dumps(config, indent=2, sort_keys=True, default=str) + "\n", encoding="utf-8")


def stack_adapters(folders: Sequence[Path], out: Path, base: str) -> None:
    """Write to `out` one LoRA adapter on `base` that does what those in `folders`, of one iteration each, do together.

    sum_i s_i B_i A_i = s [B_1 .. B_n diag(s_i / s)] [A_1; ..; A_n], s_i = alpha_i / r_i, s = s_1          (exact)

    Its rank is the sum of their ranks, so nothing is lost; each was trained on the base with those before it merged.
    Of full weights only the last are needed, and copied.
    """
    from safetensors.torch import load_file

    folders = [Path(folder) for folder in folders]
    if is_full(folders[-1]):
        shutil.copytree(folders[-1], out, dirs_exist_ok=True)
        write_json(out / FULL, read_json(out / FULL) | {"base": base})
        return
    configs = [check_adapter(folder) for folder in folders]
    more = ("modules_to_save", "rank_pattern", "alpha_pattern", "use_rslora", "use_dora")
    for folder, config in zip(folders, configs, strict=True):
        if config.get("bias", "none") != "none" or any(config.get(name) for name in more):
            raise UserError(f"{folder}: only plain LoRA adapters can be put on top of each other; this one has more.")
    scales = [config["lora_alpha"] / config["r"] for config in configs]
    tensors = [load_file(folder / ADAPTER_WEIGHTS) for folder in folders]
    weights = _stacked(tensors, [scale / scales[0] for scale in scales])
    lora_rank = sum(int(config["r"]) for config in configs)
    config = configs[0] | {"r": lora_rank, "lora_alpha": scales[0] * lora_rank, "base_model_name_or_path": base}
    _write_adapter(out, weights, config)


def _stacked(parts: Sequence[dict[str, Tensor]], factors: Sequence[float]) -> dict[str, Tensor]:
    """Every A below those before it, every B, with its factor, beside them."""
    import torch

    stacked = {}
    for name in dict.fromkeys(name for part in parts for name in part):
        inner = "lora_A" in name or "lora_embedding_A" in name
        if any(name not in part for part in parts):
            raise UserError(
                f"adapters: not all of them have `{name}`; train every iteration with the same lora.target_modules."
            )
        pieces = [part[name] if inner else factor * part[name] for part, factor in zip(parts, factors, strict=True)]
        stacked[name] = torch.cat(pieces, 0 if inner else 1).contiguous()
    return stacked
