"""Model folders: the one place where weights, tokenizers and adapters are loaded, and where a device is chosen.

Folders are checked first (sweetrl.models.check): code that they bring is never run, and a pickle is never read.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from sweetrl.errors import UserError, extras
from sweetrl.models.check import ADAPTER_WEIGHTS, check_adapter, check_pictures, check_tokenizer, check_weights
from sweetrl.models.patterns import try_patterns

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# No code from a folder, no pickles.
SAFE: dict[str, Any] = {"trust_remote_code": False, "use_safetensors": True, "weights_only": True}
SLACK = 2**25  # numbers of a model beyond those in its files: tables of positions, layers that share weights
PACKED = 2  # numbers in a byte


def load_tokenizer(model: Path | str) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a model folder or hub name; a missing one is a UserError. Code in a folder is never run."""
    from transformers import AutoTokenizer

    _check_folder(model)
    check_tokenizer(model)
    with _as_user_error(model, "tokenizer"):
        return AutoTokenizer.from_pretrained(str(model), trust_remote_code=False)


def load_weights(model: Path | str, dtype: str, quantization: str = "none", device: str = "auto") -> Any:
    """Load a causal language model into CPU memory; a missing or incomplete one is a UserError. Its code is not run.

    With `quantization: nf4` its linear layers but the head have 4 bits, and it is on `device`.
    """
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    without_plans()
    _check_folder(model)
    check_weights(model)
    options = {"dtype": getattr(torch, dtype), **(_four_bits(dtype, device) if quantization == "nf4" else {})}
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        with _as_user_error(model, "causal language model"):
            return _complete(AutoModelForCausalLM, model, **options)
    finally:
        if shown:
            logging.enable_progress_bar()


def without_plans() -> None:
    """Keep attention from cuDNN, which torch prefers on a Hopper: it makes a plan for every new shape, which has taken
    others half a second (modelscope/FunASR issue 3704). Passes of training have many shapes, and in a growing batch
    every token has a new one.
    """
    import torch

    torch.backends.cuda.enable_cudnn_sdp(False)


def _four_bits(dtype: str, device: str) -> dict[str, Any]:
    """The configuration to quantise a model as QLoRA does: by bitsandbytes, to normal floats of 4 bits."""
    if not (place := resolve_device(device)).startswith("cuda"):
        raise UserError("model.quantization: nf4 needs a CUDA device; set it to `none` here.")
    with extras():
        import bitsandbytes  # noqa: F401
    from transformers import BitsAndBytesConfig

    how = {"bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True, "bnb_4bit_compute_dtype": dtype}
    return {"quantization_config": BitsAndBytesConfig(load_in_4bit=True, **how), "device_map": {"": place}}


def load_class(kind: Any, model: Path | str, **options: Any) -> Any:
    """Load a model of the transformers class `kind`, under the same rules; OSError or ValueError where it cannot be."""
    check_weights(model, causal=False)
    return _complete(kind, model, **options)


def load_pictures(kind: Any, model: Path | str) -> Any:
    """Load a picture processor of the transformers class `kind`, under the same rules."""
    check_pictures(model)
    return kind.from_pretrained(str(model), trust_remote_code=False)


def load_lora(model: Any, adapter: Path | str) -> Any:
    """Put the LoRA adapter in a folder on `model`, whatever base it names; UserError for a missing or unfit one.

    It is frozen, and has the model's precision.
    """
    from peft import LoraConfig, get_peft_model

    stated = check_adapter(adapter)
    with _as_user_error(adapter, "LoRA adapter for this base"), quiet_peft():
        try_patterns(adapter, stated, [name for name, _ in model.named_modules()])
        config = LoraConfig.from_pretrained(str(adapter))
        _check_rank(Path(adapter), max(config.r, *config.rank_pattern.values()) if config.rank_pattern else config.r)
        config.base_model_name_or_path = str(getattr(model, "name_or_path", "") or "")
        config.inference_mode = True
        adapted = get_peft_model(model, config)
        report = adapted.load_adapter(str(adapter), "default")
    if shared := shared_targets(adapted):
        raise UserError(
            f"{adapter}: the adapter changes `{shared[0]}`, whose weights this base uses as embeddings and as head: "
            "merged into them it would be another model. Train one on other layers."
        )
    # A tensor that is not in the file stays 0 in peft: the base would be taken for the trained agent.
    if missing := sorted(report.missing_keys):
        raise UserError(
            f"{adapter}: the adapter lacks {len(missing)} of the tensors that its configuration asks for on this base "
            f"({missing[0]}); it was trained on another base, or is not whole: fetch it again."
        )
    for name, weight in adapted.named_parameters():
        if "lora_" in name:
            weight.data = weight.data.to(model.dtype)
    return adapted


def _check_rank(adapter: Path, lora_rank: int) -> None:
    """Refuse an adapter whose configuration asks for a higher rank than its weights have: all would be made first."""
    from safetensors import safe_open

    with safe_open(adapter / ADAPTER_WEIGHTS, framework="pt") as file:
        inner = [name for name in file.keys() if "lora_A" in name or "lora_embedding_A" in name]  # noqa: SIM118
        stored = max((file.get_slice(name).get_shape()[0] for name in inner), default=0)
    if lora_rank > stored:
        raise UserError(
            f"{adapter}: adapter_config.json asks for rank {lora_rank} (`r`, `rank_pattern`), and the weights have "
            f"{stored}; fetch the adapter again."
        )


def make_saveable(config: Any) -> None:
    """Let a generation config pass the checks of saving, which are stricter than those of loading.

    Many fine-tunes set a temperature or top_p and leave `do_sample` out. Who sets them wants them used.
    """
    try:
        config.validate(strict=True)
    except ValueError:
        config.do_sample = True


@contextmanager
def quiet_peft() -> Iterator[None]:
    """No warnings while peft adapts a model: it asks transformers in an old way, and shared weights are refused."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)
        warnings.filterwarnings("ignore", ".*tie_word_embeddings", UserWarning)
        yield


def shared_targets(adapted: Any) -> list[str]:
    """Return which layers a model's adapter changes whose weights its base uses twice, as embeddings and as head.

    Beside the weights such an adapter changes one of the two, merged into them it changes both: another model.
    """
    base = adapted.get_base_model()
    ends = base.get_input_embeddings(), base.get_output_embeddings()
    weights = [getattr(end, "weight", None) for end in ends]
    if weights[0] is None or weights[0] is not weights[1]:
        return []
    names = {id(module): name for name, module in base.named_modules()}
    return [names[id(end)] for end in ends if names.get(id(end)) in adapted.targeted_module_names]


def resolve_device(device: str) -> str:
    """Turn `auto` into `cuda` where there is one, else `cpu`; a launcher's processes have a CUDA device each."""
    import torch

    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    return f"cuda:{os.environ['LOCAL_RANK']}" if device == "cuda" and "LOCAL_RANK" in os.environ else device


def context_limit(model: Any) -> int:
    """Return how many tokens the model can read."""
    return int(getattr(model.config.get_text_config(), "max_position_embeddings", None) or 2**31)


def context_of(model: Path | str) -> int:
    """As `context_limit`, of a model folder or hub name whose weights are not loaded; a missing one is a UserError."""
    return context_limit(SimpleNamespace(config=_configuration(model)))


def vocabulary_of(model: Path | str) -> int:
    """Return how many token ids a model folder or hub name has, padding and all; a missing one is a UserError."""
    return int(_configuration(model).get_text_config().vocab_size)


def without_weights(model: Path | str) -> Any:
    """Make the model of a folder or hub name, but for the values of its weights: they take no memory."""
    import torch
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(_configuration(model))


def stored_dtype(model: Path | str) -> str:
    """Return the precision of a model folder's (or hub name's) weights as its configuration says; else `float32`."""
    return str(_configuration(model).dtype or "float32").removeprefix("torch.")


def _configuration(model: Path | str) -> Any:
    from transformers import AutoConfig

    _check_folder(model)
    check_weights(model)
    with _as_user_error(model, "configuration"):
        return AutoConfig.from_pretrained(str(model), trust_remote_code=False)


def _complete(kind: Any, model: Path | str, **options: Any) -> Any:
    """Load a model whose files hold all of its weights: transformers would draw the others at random."""
    _check_size(kind, model)
    loaded, report = kind.from_pretrained(str(model), output_loading_info=True, **options, **SAFE)
    if missing := sorted(report["missing_keys"]):
        raise UserError(
            f"{model}: the safetensors lack {len(missing)} of the model's tensors ({missing[0]}); fetch the folder "
            "again, or write the names that the model's type has."
        )
    return loaded


def _check_size(kind: Any, model: Path | str) -> None:
    """Refuse a folder whose config asks for far more numbers than its safetensors hold: all would be made first."""
    import torch
    from transformers import AutoConfig

    stored = sum(path.stat().st_size for path in Path(model).glob("*.safetensors"))
    if not stored:  # a name on the hub, or nothing there, which the loading reports
        return
    auto = hasattr(kind, "from_config")
    config = (AutoConfig if auto else kind.config_class).from_pretrained(str(model), trust_remote_code=False)
    with torch.device("meta"):
        empty = (kind.from_config if auto else kind._from_config)(config)
    numbers = sum(tensor.numel() for tensor in (*empty.parameters(), *empty.buffers()))
    if numbers > SLACK + PACKED * stored:
        raise UserError(
            f"{model}: config.json asks for {numbers:,} numbers, and the safetensors have {stored:,} bytes; a size in "
            "it (`vocab_size`, perhaps) is not that of the weights: fetch the folder again."
        )


@contextmanager
def _as_user_error(model: Path | str, what: str) -> Iterator[None]:
    """Whatever a library raises about somebody else's folder (anything at all) is a UserError."""
    try:
        yield
    except (UserError, MemoryError):
        raise
    except Exception as error:
        raise UserError(_missing(model, what, error)) from error


def _check_folder(model: Path | str) -> None:
    # A name like models/base, or one whose parent is a folder here, is meant as a folder, not as a name on the hub.
    path = Path(model)
    if path.is_dir() and not (path / "config.json").exists():
        raise UserError(_missing(model, "config.json"))
    if not path.exists() and (path.is_absolute() or path.parent.is_dir() or path.parts[0] == "models"):
        raise UserError(_missing(model, "folder"))


def _missing(model: Path | str, what: str, error: BaseException | None = None) -> str:
    cause = "" if error is None else str(error).strip() or type(error).__name__
    reason = f" that can be loaded ({' '.join(cause.split())[:300]})" if cause else ""
    return (
        f"{model}: there is no {what} here{reason}; fetch the model (`git pull`, `dvc pull dvc.yaml` or "
        "`make base-model`), run from the project's root, or set `model.base` in params.yaml."
    )
