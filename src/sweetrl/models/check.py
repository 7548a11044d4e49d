"""What a model's or an adapter's folder may hold: checked before any library that could act on it reads it.

Folders of weights come from strangers. Nothing in one is ever run: no code that it brings, no pickle, no kernel that it
names on the hub, no other model that it points to. Its JSON files are bounded in size and depth.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sweetrl.bounded import MIB, read_object
from sweetrl.errors import UserError
from sweetrl.models.tokenizer_files import BIG_FILES, try_tokenizer

logger = logging.getLogger("sweetrl")

# The files that are read, with the most bytes that each may have.
CONFIGS = {"config.json": 4 * MIB, "generation_config.json": 4 * MIB}
TOKENIZERS = {
    "tokenizer_config.json": 16 * MIB,
    "special_tokens_map.json": 4 * MIB,
    "added_tokens.json": 16 * MIB,
    "chat_template.json": 4 * MIB,
}
PICTURES = {"preprocessor_config.json": 4 * MIB, "processor_config.json": 4 * MIB}
INDEX = "model.safetensors.index.json"
INDEX_BYTES = 64 * MIB
ADAPTER = "adapter_config.json"
ADAPTER_BYTES = 4 * MIB
ADAPTER_WEIGHTS = "adapter_model.safetensors"
FULL = "full_weights.json"  # beside the weights of a model that was trained in all of its weights: what it began as
TEMPLATE_BYTES = MIB // 4
LAYERS, EXPERTS = 512, 4096  # several times what the largest models have
COUNTED = ("layers", "n_layer", "depth", "blocks", "attention_types", "experts", "labels")
# A layer for each item or letter.
LISTED = ("layer_types", "layers_block_type", "hybrid_override_pattern")
NUMBERED, NUMBERS = ("extra_ids", "offset"), 2**16  # keys of tokenizers that make so many tokens by themselves
KERNELS = ("attn_implementation", "attn_implementation_internal", "experts_implementation")
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")


def check_tokenizer(model: Path | str) -> None:
    """Refuse a tokenizer that would need code of its own, or whose files are out of all proportion."""
    _check_regular(Path(model))
    sizes = TOKENIZERS | CONFIGS
    contents = {name: read_object(path, sizes[name]) for name, path in _files(model, sizes)}
    _check_counts(model, contents.get("config.json", {}))  # whoever loads a tokenizer reads the configuration, too
    try_tokenizer([path for _, path in _files(model, BIG_FILES)])
    folder = Path(model)
    for template in [folder / "chat_template.jinja", *folder.glob("additional_chat_templates/*.jinja")]:
        if template.is_file() and template.stat().st_size > TEMPLATE_BYTES:
            raise UserError(
                f"{template}: the chat template has more than {TEMPLATE_BYTES // 1024} KiB; give the model another."
            )
    own = contents.get("tokenizer_config.json", {})
    for key, kinds in (("chat_template", (str, dict, list)), ("model_max_length", (int, float))):
        if not isinstance(own.get(key), (*kinds, type(None))):
            raise UserError(f"{model}: tokenizer_config.json: `{key}` is {own[key]!r}; fetch the folder again.")
    for key in NUMBERED:
        if isinstance(own.get(key), int) and own[key] > NUMBERS:
            raise UserError(
                f"{model}: tokenizer_config.json: `{key}` is {own[key]}; no tokenizer has more than {NUMBERS}."
            )
    if not own.get("auto_map"):
        return
    from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING_NAMES, tokenizer_class_from_name

    name = str(own.get("tokenizer_class") or "").removesuffix("Fast")
    built_in = name and (tokenizer_class_from_name(name) or tokenizer_class_from_name(f"{name}Fast"))
    kind = contents.get("config.json", {}).get("model_type")
    _own_code(model, "tokenizer_config.json", bool(built_in) or kind in TOKENIZER_MAPPING_NAMES)


def check_weights(model: Path | str, causal: bool = True) -> None:
    """Refuse a model that would need code of its own or a pickle, or that points to another; a UserError says which.

    `causal` says that it is to be a causal language model, not just any model that transformers knows.
    """
    _check_regular(Path(model))
    contents = {name: read_object(path, CONFIGS[name]) for name, path in _files(model, CONFIGS)}
    config = contents.get("config.json", {})
    _check_counts(model, config)
    for place, value in _values(config):  # an attention with a slash in its name is code of the hub
        if isinstance(value, str) and "/" in value and any(key.endswith(KERNELS) for key in place.split(".")):
            raise UserError(
                f"{model}: config.json: `{place}` names the kernel {value!r} of the hub, which is code; remove the key."
            )
    if any(content.get("auto_map") for content in contents.values()):
        from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES
        from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

        kinds = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES if causal else CONFIG_MAPPING_NAMES
        _own_code(model, "config.json", str(config.get("model_type")) in kinds)
    for name, path in _files(model, {ADAPTER: ADAPTER_BYTES}):
        raise UserError(
            f"{path}: a base model's folder has an adapter in it ({name}), which may name another base; set "
            "`model.base` to the base itself, and give the adapter's folder as the adapter."
        )
    weights = config.get("transformers_weights")
    if weights is not None and not (isinstance(weights, str) and weights.endswith(".safetensors")):
        raise UserError(
            f"{model}: config.json: `transformers_weights` names {weights!r}, no safetensors file; remove it."
        )
    for _, path in _files(model, {INDEX: INDEX_BYTES}):
        parts = read_object(path, INDEX_BYTES).get("weight_map")
        for part in set(map(str, parts.values())) if isinstance(parts, dict) else [""]:
            if not part.endswith(".safetensors") or Path(part).name != part:
                raise UserError(f"{path}: it names {part!r}, no safetensors file beside it; fetch the folder again.")
    folder = Path(model)
    if folder.is_dir() and not any(folder.glob("*.safetensors")):
        _refuse_pickles(folder)


def check_adapter(adapter: Path | str) -> dict[str, Any]:
    """Return the configuration of a LoRA adapter's folder; a UserError where there is none, or more than weights.

    The base that it names (`base_model_name_or_path`) is what it was trained on, and never looked for.
    """
    folder = Path(adapter)
    _check_regular(folder)
    path = folder / ADAPTER
    if not path.exists():
        raise UserError(f"{adapter}: there is no peft adapter here ({ADAPTER}); run the stage that trains it.")
    config = read_object(path, ADAPTER_BYTES)
    if config.get("peft_type") != "LORA":
        raise UserError(
            f"{path}: `peft_type` is {config.get('peft_type')!r}; only LoRA adapters are loaded, others may bring "
            "models of their own."
        )
    for key in ("megatron_config", "layer_replication"):
        if config.get(key):
            raise UserError(f"{path}: `{key}` asks for more than LoRA's weights; train the adapter without it.")
    rank = config.get("r")
    if not isinstance(rank, int) or isinstance(rank, bool) or rank < 1:
        raise UserError(f"{path}: `r` is {rank!r}, no rank of a LoRA adapter; run the stage that trains it.")
    if not (folder / ADAPTER_WEIGHTS).is_file():
        _refuse_pickles(folder)
        raise UserError(f"{folder}: there is no {ADAPTER_WEIGHTS} here; run the stage that trains the adapter.")
    return config


def is_full(folder: Path | str) -> bool:
    """Whether a folder holds all weights of a model that was trained (`model.train: full`)."""
    return (Path(folder) / FULL).is_file()


def is_trained(folder: Path | str) -> bool:
    """Whether a folder holds what was trained of a base: an adapter, or all its weights."""
    return (Path(folder) / ADAPTER).is_file() or is_full(folder)


def check_trained(folder: Path | str) -> dict[str, Any]:
    """As check_adapter, of full weights, too: of those the base is known, as `base_model_name_or_path`."""
    if not is_full(folder):
        return check_adapter(folder)
    check_weights(folder)
    return {"base_model_name_or_path": read_object(Path(folder) / FULL, ADAPTER_BYTES).get("base")}


def check_pictures(model: Path | str) -> None:
    """Refuse a picture processor whose files are out of all proportion, or that would need code of its own."""
    for name, path in _files(model, PICTURES):
        if read_object(path, PICTURES[name]).get("auto_map"):
            _own_code(model, name, built_in=True)  # its class is chosen by us


def _files(model: Path | str, names: dict[str, int]) -> Iterator[tuple[str, Path]]:
    """Yield those of `names` that a folder has; for a name on the hub, as the hub's client finds or fetches them."""
    if Path(model).is_dir():
        yield from ((name, Path(model) / name) for name in names if (Path(model) / name).exists())
        return
    from transformers.utils.hub import cached_file

    quiet = {f"_raise_exceptions_for_{what}": False for what in ("gated_repo", "missing_entries", "connection_errors")}
    for name in names:
        try:
            path = cached_file(str(model), name, **quiet)
        except (OSError, ValueError):  # whoever loads it reports what is wrong with the name
            continue
        if path is not None:
            yield name, Path(path)


def _check_regular(folder: Path) -> None:
    """Refuse a folder with pipes, sockets or devices in it: who reads one may wait for ever."""
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise UserError(f"{path}: this is no regular file; fetch the folder again.")


def _check_counts(model: Path | str, config: dict[str, Any]) -> None:
    """Refuse a configuration that asks for very many layers or labels: they are built before weights are looked at."""
    for place, value in _values(config):
        most = EXPERTS if place.endswith(("experts", "labels")) else LAYERS
        count = len(value) if isinstance(value, list | str) and place.endswith(LISTED) else value
        if isinstance(count, int) and place.endswith((*COUNTED, *LISTED)) and count > most:
            raise UserError(f"{model}: config.json: `{place}` is {count}; no model has more than {most}.")


def _values(value: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (place, value) of everything in a configuration, in those within it, and in lists (at the list's place)."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _values(inner, f"{place}.{key}" if place else key)
        return
    yield place, value
    for item in value if isinstance(value, list) else ():
        yield from _values(item, place)


def _own_code(model: Path | str, name: str, built_in: bool) -> None:
    if not built_in:
        raise UserError(
            f"{model}: {name} says that the model brings its own code (`auto_map`), and transformers does not know it "
            "without; such code is never run, take a model of a type that transformers knows."
        )
    logger.warning("%s: the code that %s names (auto_map) is not run; transformers' own class is used", model, name)


def _refuse_pickles(folder: Path) -> None:
    if pickled := sorted(path.name for pattern in PICKLES for path in folder.glob(pattern)):
        raise UserError(
            f"{folder}: the weights are pickled ({pickled[0]}), which can run code when it is loaded; take the model's "
            "safetensors files, or convert it where you trust it (docs/real-models.md says how)."
        )
