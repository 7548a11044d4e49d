"""Training of all weights (`model.train: full`): what is trained, and the folder that is written of it.

Weights are float32 while they are trained: a step of 2e-7 is lost in half precision. With `model.dtype: bfloat16` the
layers compute in that (torch's autocast), and what is written has that precision.

The reference is the model as it was. Where log-probs of it are computed once, before the first step, no copy is kept;
where they are needed later (GRPO, a critic that ranks) `beside` keeps its weights and has `disable_adapter` put them in
place for a while, as an adapter's model does.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweetrl.errors import UserError
from sweetrl.io import private_folder, read_json, write_json
from sweetrl.lm.distributed import wants_shards
from sweetrl.lm.head import COMPUTES_IN, compute_dtype, transformer_of
from sweetrl.models.check import FULL
from sweetrl.models.licences import base_licence, copy_licence
from sweetrl.models.load import load_tokenizer, load_weights, make_saveable

if TYPE_CHECKING:
    from torch import Tensor, nn


def train_all(model: Any, dtype: str, keep_reference: bool = False) -> nn.Module:
    """Make all weights of a base trainable; `dtype` is what its layers compute in.

    With `keep_reference` its weights of now are kept as the reference's (`beside`).
    """
    import torch
    from transformers.utils import logging

    if wants_shards():
        raise UserError("model.train: full: only a frozen base is sharded; set `model.sharding: none`, or train lora.")
    make_saveable(model.generation_config)
    logging.disable_progress_bar()  # checkpoints have bars of their own
    model.float().requires_grad_(True)
    if keep_reference:
        beside(model, {name: weight.detach().clone() for name, weight in model.named_parameters()})
    if dtype != "float32":
        setattr(model, COMPUTES_IN, getattr(torch, dtype))
        for part in filter(None, (model, transformer_of(model), model.get_output_embeddings())):
            # One for each: they are nested, and an autocast remembers one state to go back to.
            part.forward = torch.autocast(model.device.type, getattr(torch, dtype))(part.forward)
    trained: nn.Module = model
    return trained


def beside(model: Any, weights: Mapping[str, Tensor]) -> None:
    """Let `with model.disable_adapter()` be the model with other `weights`, by their names."""
    pairs = [(weight, weights[name]) for name, weight in model.named_parameters()]

    def exchange() -> None:
        for weight, other in pairs:
            weight.data, other.data = other.data, weight.data

    @contextmanager
    def disable_adapter() -> Iterator[None]:
        exchange()
        try:
            yield
        finally:
            exchange()

    model.disable_adapter = disable_adapter


def load_full(model: Any, folder: Path) -> nn.Module:
    """Put the trained weights in `folder` into their base `model`, frozen; it is `beside` them as the reference."""
    trained = load_weights(folder, str(model.dtype).removeprefix("torch."))
    weights = {name: weight.detach().to(model.device) for name, weight in trained.named_parameters()}
    shapes = {name: weight.shape for name, weight in model.named_parameters()}
    if {name: weight.shape for name, weight in weights.items()} != shapes:
        raise UserError(f"{folder}: its weights have other names or sizes than `model.base`: train it again.")
    for name, weight in model.named_parameters():
        weight.data, weights[name] = weights[name], weight.data
    beside(model, weights)
    loaded: nn.Module = model.eval()
    return loaded


def save_full(model: Any, folder: Path, base: str) -> None:
    """Write a trained model into the new folder `folder`, atomically: weights, tokenizer, the base's licence.

    The bytes depend on the weights and on `base` as params.yaml names it. Weights that are not finite are a UserError.
    """
    dtype, cast = compute_dtype(model), dict[int, Any]()
    for value in model.state_dict().values():  # shared weights stay shared
        cast.setdefault(value.data_ptr(), value.detach().to("cpu", dtype))
    weights = {name: cast[value.data_ptr()] for name, value in model.state_dict().items()}
    refuse_not_finite(weights, folder)
    fresh = private_folder(folder.parent) / f"{folder.name}.new"
    shutil.rmtree(fresh, ignore_errors=True)
    model.save_pretrained(fresh, state_dict=weights)
    config = read_json(fresh / "config.json") | {"dtype": str(dtype).removeprefix("torch.")}
    write_json(fresh / "config.json", config)
    load_tokenizer(base).save_pretrained(fresh)
    copy_licence(Path(base), fresh)
    write_json(fresh / FULL, {"base": base, "license": base_licence(Path(base))})
    shutil.rmtree(folder, ignore_errors=True)
    fresh.rename(folder)


def refuse_not_finite(weights: Mapping[str, Tensor], folder: Path) -> None:
    """Raise UserError for weights that are not finite: a last step may leave them behind although its loss was."""
    if broken := [name for name, value in weights.items() if not bool(value.isfinite().all())]:
        raise UserError(
            f"{folder}: the trained weights are not finite ({broken[0]}), as after a gradient that was not; lower the "
            "learning rate, or take `model.dtype: float32`."
        )
