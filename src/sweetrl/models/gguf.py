"""A GGUF file, the format of llama.cpp, as a model's folder like any other: `sweetrl convert`.

transformers reads the file, and leaves out in silence what it has no place for. So the header is read here first, with
limits, and what the file says is compared with the model that transformers makes of it.
"""

from __future__ import annotations

import logging
import os
import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from sweetrl.bounded import MIB
from sweetrl.errors import UserError, extras
from sweetrl.io import private_folder, usual_mode
from sweetrl.models.check import EXPERTS, LAYERS, check_weights
from sweetrl.models.load import SLACK, context_limit, load_tokenizer

logger = logging.getLogger("sweetrl")

HEADER = 64 * MIB  # bytes
KEYS, TENSORS, DIMENSIONS = 4096, 2**16, 4
ITEMS, LONGEST = 2**22, 4096  # of all lists together, and bytes of a text in one: tokens, merges
FORMS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
TEXT, LIST = 8, 9
PLAIN = {0: (1, 4), 1: (1, 2), 30: (1, 2)}  # of a type that has no blocks: numbers, bytes
NAME = "model.gguf"
ROPE = "rope_freqs.weight"
LLAMA3 = {
    **{"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    "original_max_position_embeddings": 8192,
}

# Pre-tokenizers of byte-level vocabularies as llama.cpp names them. These part digits, then as GPT-2's, ...
DIGITS = {"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"}
# ... these are GPT-2's, which transformers takes for any name that it does not know, ...
GPT2 = {"gpt-2", "phi-2", "mpt", "olmo", "jais", "exaone4", "gigachat", "trillion", "granite-docling"}
# ... and with these a word of the vocabulary is one token, whatever the merges make of it.
WORDS = {"llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "tekken"}
SAMPLE = "In 1984, it's 25% \n\n\treturn x // 100  # Füße"


@dataclass(frozen=True)
class Header:
    """What a GGUF file says of itself: its values (of a list: the length), and how many numbers each tensor has."""

    values: dict[str, Any]
    tensors: dict[str, int]

    @property
    def architecture(self) -> str:
        """As llama.cpp names it."""
        return str(self.values.get("general.architecture"))

    def own(self, key: str) -> Any:
        """Return a value that the architecture has; None where it is not there."""
        return self.values.get(f"{self.architecture}.{key}")

    def token(self, name: str) -> Any:
        """Return the id of the token with this role; None where there is none."""
        return self.values.get(f"tokenizer.ggml.{name}_token_id")


def convert(file: Path, folder: Path, dtype: str = "bfloat16") -> dict[str, Any]:
    """Make `folder`, all or nothing, from a GGUF file, with weights in `dtype`; return what the model is.

    UserError where the file is none or not complete, or says what transformers does not read.
    """
    header = read_header(file)
    _check_model(file, header)
    with extras():
        import gguf  # noqa: F401  # transformers reads most architectures with it
    folder = Path(folder).resolve()
    private_folder(folder.parent)
    with TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as name:
        source, made = Path(name) / "source", Path(name) / "model"
        source.mkdir()
        (source / NAME).symlink_to(Path(file).resolve())  # alone: nothing beside it is read
        try:
            facts = _write(file, header, source, made, dtype)
        except UserError as error:
            raise UserError(str(error).replace(str(made), str(file))) from error
        except Exception as error:  # libraries raise anything at all about somebody else's file
            if isinstance(error, MemoryError) or getattr(error, "errno", None):  # of the machine
                raise
            said = " ".join(str(error).split())[:300] or type(error).__name__
            raise UserError(f"{file}: transformers cannot read it ({said}); take the model's safetensors.") from error
        for path in made.iterdir():
            path.chmod(usual_mode())
        made.rename(folder)
    return {**facts, "folder": str(folder)}


def read_header(file: Path) -> Header:
    """Return the header of a GGUF file, of which at most `HEADER` bytes are read; UserError where there is none."""
    if not Path(file).is_file():
        raise UserError(f"{file}: there is no such file; name a GGUF file.")
    with Path(file).open("rb") as stream:
        size = os.fstat(stream.fileno()).st_size
        head = stream.read(min(HEADER, size))
    if head[:4] != b"GGUF":
        raise UserError(f"{file}: this is no GGUF file, which begins with these four letters; name another.")
    reader = _Reader(head, 4)
    try:
        version, tensors, keys = reader.take("IQQ")
        if version not in (2, 3):
            raise UserError(f"{file}: this is GGUF of version {version}, and 2 and 3 are read; convert it anew.")
        if keys > KEYS or tensors > TENSORS:
            raise ValueError(f"{keys} keys and {tensors} tensors")
        values = {reader.text(LONGEST): reader.value() for _ in range(keys)}
        table, end = reader.tensors(tensors)
    except (struct.error, KeyError, ValueError) as error:
        raise UserError(
            f"{file}: the header is cut short or broken, or beyond all proportion ({error}); fetch the file again."
        ) from error
    if end > size:
        raise UserError(f"{file}: the file is cut short: {size:,} bytes of {end:,} or more; fetch it again.")
    return Header(values, table)


class _Reader:
    """Takes one value after the other from the bytes of a header; struct.error or ValueError where they end."""

    def __init__(self, head: bytes, at: int) -> None:
        self.head, self.at, self.items = head, at, 0

    def take(self, form: str) -> tuple[Any, ...]:
        values = struct.unpack_from(f"<{form}", self.head, self.at)
        self.at += struct.calcsize(f"<{form}")
        return values

    def text(self, most: int) -> str:
        (length,) = self.take("Q")
        start, self.at = self.at, self.at + length
        if length > most or self.at > len(self.head):
            raise ValueError(f"a text of {length} bytes")
        return self.head[start : self.at].decode("utf-8", "replace")

    def value(self) -> Any:
        (kind,) = self.take("I")
        if kind == TEXT:
            return self.text(HEADER)
        if kind != LIST:
            return self.take(FORMS[kind])[0]
        kind, count = self.take("IQ")
        self.items += count
        if self.items > ITEMS:
            raise ValueError(f"lists of {self.items} items")
        if kind != TEXT:
            self.at += count * struct.calcsize(FORMS[kind])
        for _ in range(count if kind == TEXT else 0):
            self.text(LONGEST)
        return count

    def tensors(self, count: int) -> tuple[dict[str, int], int]:
        """Return the numbers of each tensor, and how long the file is at least."""
        from transformers.integrations.gguf.dequant import GGML_BLOCK

        table, last = dict[str, int](), 0
        for _ in range(count):
            name, (dimensions,) = self.text(LONGEST), self.take("I")
            if dimensions > DIMENSIONS:
                raise ValueError(f"a tensor of {dimensions} dimensions")
            table[name] = prod(self.take(f"{dimensions}Q"))
            kind, offset = self.take("IQ")
            numbers, size = {**GGML_BLOCK, **PLAIN}.get(kind, (8, 1))  # of another type: a bit each, or more
            last = max(last, offset + table[name] // numbers * size)
        return table, self.at + last


def _check_model(file: Path, header: Header) -> None:
    """UserError where the file is no language model with its tokenizer, or one that transformers does not know."""
    from transformers.integrations.gguf import GGUF_ARCHS
    from transformers.modeling_gguf_pytorch_utils import GGUF_SUPPORTED_ARCHITECTURES

    known = {_letters(name): name for name in sorted({*GGUF_ARCHS, *GGUF_SUPPORTED_ARCHITECTURES})}
    known = {key: name for key, name in known.items() if name not in ("general", "tokenizer")}
    if header.values.get("split.count") not in (None, 0, 1):
        raise UserError(f"{file}: this is one of several parts; join them (llama-gguf-split --merge), and name that.")
    if not header.tensors:
        raise UserError(f"{file}: this is a vocabulary without weights; name the file of the model.")
    if _letters(header.architecture) not in known:
        raise UserError(
            f"{file}: transformers does not read the architecture {header.architecture!r} from GGUF, only "
            f"{', '.join(known.values())}; take the model's safetensors."
        )
    if not header.values.get("tokenizer.ggml.tokens"):
        raise UserError(f"{file}: the model has no tokenizer; take its safetensors, or another file.")
    for key, most in (("block_count", LAYERS), ("expert_count", EXPERTS)):
        if (value := header.own(key)) is not None and not (isinstance(value, int) and 0 <= value <= most):
            raise UserError(f"{file}: `{header.architecture}.{key}` is {value}, and {most} is the most; fetch again.")


def _letters(name: str) -> str:
    return name.replace("-", "").replace("_", "")


def _write(file: Path, header: Header, source: Path, folder: Path, dtype: str) -> dict[str, Any]:
    """Write the model and the tokenizer of the file in `source` to `folder`, and return what they are."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig, GgufConfig

    where: dict[str, Any] = {"gguf_file": NAME, "trust_remote_code": False}
    tokenizer = _tokenizer(file, header, source)
    config = AutoConfig.from_pretrained(source, **where)
    config.pad_token_id = tokenizer.pad_token_id
    _complete_config(file, header, config)
    with torch.device("meta"):
        empty = AutoModelForCausalLM.from_config(config)
    if sum(each.numel() for each in (*empty.parameters(), *empty.buffers())) > SLACK + sum(header.tensors.values()):
        raise UserError(f"{file}: a size in the header is not that of the weights; fetch the file again.")
    _check_tensors(file, header, empty)
    # Without `dequantize` the model keeps a quantizer that can neither be trained nor saved.
    where |= {"dtype": getattr(torch, dtype), "quantization_config": GgufConfig(dequantize=True)}
    loaded: Any = AutoModelForCausalLM.from_pretrained(source, config=config, output_loading_info=True, **where)
    model, found = loaded
    if lacking := sorted(found["missing_keys"]) + sorted(found["unexpected_keys"]):
        raise UserError(f"{file}: its tensors are not the model's ({lacking[0]}); take the model's safetensors.")
    ends = config.eos_token_id if isinstance(config.eos_token_id, list) else [config.eos_token_id]
    stops = [*dict.fromkeys(one for one in (*ends, header.token("eot"), header.token("eom")) if one is not None)]
    stop = stops[0] if len(stops) == 1 else stops or None
    model.generation_config = GenerationConfig(eos_token_id=stop, pad_token_id=tokenizer.pad_token_id)
    if header.values.get("tokenizer.ggml.add_bos_token") is False:  # the chat template writes what comes first
        model.config.bos_token_id = None
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    check_weights(folder)
    if load_tokenizer(folder)(SAMPLE)["input_ids"] != tokenizer(SAMPLE)["input_ids"]:
        raise UserError(f"{file}: its tokenizer is another one when it is saved; take the model's own folder.")
    if not tokenizer.chat_template:
        logger.warning("%s has no chat template, as base models have none: give the folder a chat_template.jinja", file)
    return {
        "architecture": f"{type(model).__name__} ({header.architecture})",
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "dtype": dtype,
        "context": context_limit(model),
        "vocabulary": config.get_text_config().vocab_size,
        "pre_tokenizer": header.values.get("tokenizer.ggml.pre"),
        "chat_template": bool(tokenizer.chat_template),
        "stops": " ".join(tokenizer.convert_ids_to_tokens(stops)),
    }


def _tokenizer(file: Path, header: Header, source: Path) -> Any:
    """Load the tokenizer, and give it the pre-tokenizer that the file names."""
    from tokenizers import pre_tokenizers
    from transformers import PreTrainedTokenizerFast
    from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS

    # Not AutoTokenizer: when it is saved, an architecture's own class would put its own pre-tokenizer in place of this.
    tokenizer: Any = PreTrainedTokenizerFast.from_pretrained(source, gguf_file=NAME)
    name, backend = header.values.get("tokenizer.ggml.pre"), tokenizer.backend_tokenizer
    if header.values.get("tokenizer.ggml.model") == "gpt2":
        backend.model.ignore_merges = name in WORDS
        if name in DIGITS:
            digits = pre_tokenizers.Digits(individual_digits=True)
            rest = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
            backend.pre_tokenizer = pre_tokenizers.Sequence([digits, rest])
        elif name not in {*GPT2, *GGUF_PRE_TOKENIZER_SPLITS}:
            logger.warning(
                "%s: the pre-tokenizer %r is not known, GPT-2's is taken: compare its tokens with the model's own",
                *(file, name),
            )
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def _complete_config(file: Path, header: Header, config: Any) -> None:
    """Give a configuration what transformers has left out of it; UserError for what it has no place for."""
    head = getattr(config, "head_dim", None) or config.hidden_size // getattr(config, "num_attention_heads", 1)
    rope = getattr(config, "rope_parameters", None) or {}
    if "rope_theta" in rope:
        rope["rope_theta"] = header.own("rope.freq_base") or rope["rope_theta"]
    if config.model_type == "phi3":
        config.sliding_window = header.own("attention.sliding_window") or None
    for key, value in {
        "attention.key_length": getattr(config, "global_head_dim", None) or head,
        "attention.sliding_window": getattr(config, "sliding_window", None),
        "rope.dimension_count": int(head * rope.get("partial_rotary_factor", 1)),
        "rope.scaling.type": rope.get("rope_type"),
        **{key: getattr(config, key, None) for key in ("attn_logit_softcapping", "final_logit_softcapping")},
    }.items():
        said = header.own(key)
        if said and said not in ("none", value):
            raise UserError(
                f"{file}: `{header.architecture}.{key}` is {said}, and transformers makes it {value} from a GGUF file; "
                "take the model's safetensors."
            )
    if ROPE in header.tensors:
        _scale_positions(file, config, head)


def _scale_positions(file: Path, config: Any, head: int) -> None:
    """Llama 3.1 and later divide the frequencies of positions by factors, a tensor that transformers leaves out."""
    import torch
    from gguf import GGUFReader
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    factors = torch.tensor(next(each.data for each in GGUFReader(file).tensors if each.name == ROPE))
    if (factors == 1).all():
        return
    config.rope_parameters = {**config.rope_parameters, **LLAMA3, "factor": float(factors.max())}
    frequencies, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    plain = config.rope_parameters["rope_theta"] ** -(torch.arange(0, head, 2) / head)
    if not torch.allclose(frequencies * factors, plain, rtol=1e-3, atol=0):
        raise UserError(f"{file}: `{ROPE}` scales positions in a way of its own; take the model's safetensors.")


def _check_tensors(file: Path, header: Header, model: Any) -> None:
    """UserError where the file has tensors that transformers leaves out."""
    from transformers.integrations.gguf import GGUF_ARCHS
    from transformers.modeling_gguf_pytorch_utils import TENSOR_PROCESSORS, TensorProcessor, get_gguf_hf_weights_map

    if header.architecture in GGUF_ARCHS:  # these are loaded as safetensors are, which says so itself
        return
    processor = TENSOR_PROCESSORS.get(header.architecture, TensorProcessor)(config=model.config.to_dict())
    read = {ROPE, *get_gguf_hf_weights_map(model, processor)}
    if left := [name for name in header.tensors if not {name, name.removesuffix(".weight")} & read]:
        raise UserError(
            f"{file}: transformers leaves out {len(left)} of its tensors ({left[0]}); take the model's safetensors."
        )
