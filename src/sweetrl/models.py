"""Model folders: the one place where weights and tokenizers are loaded, and where a device is chosen."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweetrl.errors import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def load_tokenizer(model: Path | str) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a model folder or hub name; a missing one is a UserError. Code in a folder is never run."""
    from transformers import AutoTokenizer

    _check_folder(model)
    try:
        return AutoTokenizer.from_pretrained(str(model), trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise UserError(_missing(model, "tokenizer", error)) from error


def load_weights(model: Path | str, dtype: str) -> Any:
    """Load a causal language model into CPU memory; a missing one is a UserError. Code in a folder is never run."""
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    _check_folder(model)
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        return AutoModelForCausalLM.from_pretrained(str(model), dtype=getattr(torch, dtype), trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise UserError(_missing(model, "causal language model", error)) from error
    finally:
        if shown:
            logging.enable_progress_bar()


def resolve_device(device: str) -> str:
    """Turn `auto` into `cuda` where there is one, else `cpu`; a launcher's processes have a CUDA device each."""
    import torch

    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    return f"cuda:{os.environ['LOCAL_RANK']}" if device == "cuda" and "LOCAL_RANK" in os.environ else device


def context_limit(model: Any) -> int:
    """Return how many tokens the model can read."""
    return int(getattr(model.config.get_text_config(), "max_position_embeddings", None) or 2**31)


def check_adapter(adapter: Path | str) -> Path:
    """Return the file adapter_config.json of a peft adapter's folder; a UserError where there is none."""
    config = Path(adapter) / "adapter_config.json"
    if not config.exists():
        raise UserError(
            f"{adapter}: there is no peft adapter here (adapter_config.json); run the stage that trains it."
        )
    return config


def _check_folder(model: Path | str) -> None:
    # A name like models/base whose parent is a folder here is meant as a folder, not as a name on the hub.
    path = Path(model)
    if path.is_dir() and not (path / "config.json").exists():
        raise UserError(_missing(model, "config.json"))
    if not path.exists() and (path.is_absolute() or path.parent.is_dir()):
        raise UserError(_missing(model, "folder"))


def _missing(model: Path | str, what: str, error: BaseException | None = None) -> str:
    reason = f" ({str(error).strip().splitlines()[0]})" if error is not None and str(error).strip() else ""
    return (
        f"{model}: there is no {what} here{reason}; fetch the model (`git pull`, `dvc pull` or `make base-model`) or "
        "set `model.base` in params.yaml."
    )
