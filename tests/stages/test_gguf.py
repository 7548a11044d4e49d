"""`sweetrl convert`: a GGUF file as a model's folder, with files that are written here, and broken ones."""

from __future__ import annotations

import importlib.util
import json
import struct
import sys
import tracemalloc
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from sweetrl.cli import main
from sweetrl.errors import UserError
from sweetrl.models.gguf import convert
from sweetrl.models.load import load_tokenizer, load_weights
from tests.conftest import TEXTS

needs_package = pytest.mark.skipif(
    importlib.util.find_spec("gguf") is None, reason="needs a package of requirements-smollm2.lock: make test-smollm2"
)
FORMS: dict[type, tuple[int, str]] = {bool: (7, "?"), int: (4, "I"), float: (6, "f")}
# What transformers calls a layer's parts, and what llama.cpp does.
PARTS = {
    **{"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate"},
    **{"mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down"},
    **{f"self_attn.{letter}_proj": f"attn_{letter}" for letter in "qkv"} | {"self_attn.o_proj": "attn_output"},
    **{f"self_attn.{letter}_norm": f"attn_{letter}_norm" for letter in "qk"},
    **{"model.layers.": "blk.", "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"},
}


def text(words: str) -> bytes:
    return struct.pack("<Q", len(words.encode())) + words.encode()


def packed(value: Any) -> bytes:
    if isinstance(value, str):
        return struct.pack("<I", 8) + text(value)
    if isinstance(value, list):
        kind, items = (
            (8, [*map(text, value)]) if isinstance(value[0], str) else (5, [struct.pack("<i", i) for i in value])
        )
        return struct.pack("<IIQ", 9, kind, len(value)) + b"".join(items)
    kind, form = FORMS[type(value)]
    return struct.pack(f"<I{form}", kind, value)


def claims(tensors: int, keys: int, rest: bytes = b"") -> bytes:
    """The begin of a GGUF file, and `rest`."""
    return b"GGUF" + struct.pack("<IQQ", 3, tensors, keys) + rest


def gguf(values: Mapping[str, Any], tensors: Mapping[str, Any]) -> bytes:
    """A GGUF file with these values, and tensors of torch in float32."""
    head = claims(len(tensors), len(values))
    head += b"".join(text(key) + packed(value) for key, value in values.items())
    data = b""
    for name, tensor in tensors.items():
        shape = tensor.shape[::-1]
        head += text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, 0, len(data))
        data += tensor.float().contiguous().numpy().tobytes()
        data += b"\0" * (-len(data) % 32)
    return head + b"\0" * (-len(head) % 32) + data


@pytest.fixture(scope="module")
def vocabulary(tiny_model: Path) -> dict[str, Any]:
    """The tiny model's tokens, as a GGUF file names them; its chat template, too."""
    saved = json.loads((tiny_model / "tokenizer.json").read_text())
    tokens: dict[str, int] = saved["model"]["vocab"]
    special = {token["content"] for token in saved["added_tokens"]}
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": sorted(tokens, key=lambda token: tokens[token]),
        "tokenizer.ggml.token_type": [
            3 if token in special else 1 for token in sorted(tokens, key=lambda token: tokens[token])
        ],
        "tokenizer.ggml.merges": [" ".join(merge) for merge in saved["model"]["merges"]],
        "tokenizer.ggml.eos_token_id": tokens["<|end|>"],
        "tokenizer.ggml.eot_token_id": tokens["<|user|>"],
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": load_tokenizer(tiny_model).chat_template,
    }


@pytest.fixture(scope="module")
def written(vocabulary: dict[str, Any]) -> Callable[..., tuple[Any, bytes]]:
    """A function that makes a random model of an architecture, and the GGUF file of it."""

    def write(architecture: str, more: Mapping[str, Any] | None = None, **options: Any) -> tuple[Any, bytes]:
        from transformers import AutoConfig, AutoModelForCausalLM
        from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

        torch.manual_seed(0)
        sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
        rope = {"rope_type": "default", "rope_theta": 500000.0} | options.pop("rope", {})
        sizes |= {"num_key_value_heads": 2, "max_position_embeddings": 512, "head_dim": 16} | options
        head = sizes["head_dim"]
        size = len(vocabulary["tokenizer.ggml.tokens"])
        config = AutoConfig.for_model(architecture, vocab_size=size, rope_parameters=rope, **sizes)
        model = AutoModelForCausalLM.from_config(config).eval()
        tensors = {}
        for name, weight in model.state_dict().items():
            if name == "lm_head.weight" and config.tie_word_embeddings:
                continue
            if architecture == "llama" and name.endswith(("q_proj.weight", "k_proj.weight")):
                heads = weight.shape[0] // 16  # llama.cpp turns neighbours, not halves
                weight = weight.reshape(heads, 2, 8, 64).swapaxes(1, 2).reshape(weight.shape)
            for part, renamed in PARTS.items():
                name = name.replace(part, renamed)
            tensors[name] = weight
        if rope["rope_type"] == "llama3":
            frequencies, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
            tensors["rope_freqs.weight"] = rope["rope_theta"] ** -(torch.arange(0, 16, 2) / 16) / frequencies
        own = {"block_count": 2, "context_length": 512, "embedding_length": 64, "feed_forward_length": 96}
        own |= {"attention.head_count": 4, "attention.head_count_kv": 2, "attention.layer_norm_rms_epsilon": 1e-6}
        own |= {"attention.layer_norm_epsilon": 1e-5}
        own |= {"rope.freq_base": 500000.0, "rope.dimension_count": head}
        values = {"general.architecture": architecture, **{f"{architecture}.{key}": own[key] for key in own}}
        return model, gguf({**values, **vocabulary, **(more or {})}, tensors)

    return write


LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
KINDS = {
    "llama": {"tie_word_embeddings": True, "rms_norm_eps": 1e-6},
    "llama-3.1": {"rope": {**LLAMA3, "original_max_position_embeddings": 8192}, "rms_norm_eps": 1e-6},
    "qwen2": {},
    "qwen3": {"head_dim": 128},
    "starcoder2": {"tie_word_embeddings": True},
}


@needs_package
@pytest.mark.parametrize("kind", KINDS)
def test_the_folder_has_the_logits_of_the_model_from_which_the_file_was_written(
    kind: str,
    written: Callable[..., tuple[Any, bytes]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    model, content = written(kind.partition("-")[0], {"tokenizer.ggml.pre": "smollm"}, **KINDS[kind])
    file, folder = tmp_path / "any name.gguf", tmp_path / "new" / "model"
    file.write_bytes(content)
    (tmp_path / "tokenizer.json").write_text("{}")  # what lies beside the file is not its
    words = ["sweetrl", "convert", str(file), "--to", str(folder), "--dtype", "float32"]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as left:
        main.main()
    out = capsys.readouterr().out
    assert left.value.code == 0 and f"({kind.partition('-')[0]})" in out and "chat template\tTrue" in out
    tokenizer, again = load_tokenizer(folder), load_weights(folder, "float32")
    ids = torch.tensor([tokenizer(TEXTS[3] * 4, add_special_tokens=False)["input_ids"]])
    assert tokenizer.decode(ids[0]) == TEXTS[3] * 4 and tokenizer.tokenize("in 90")[-3:] == ["Ġ", "9", "0"]
    with torch.inference_mode():
        assert torch.allclose(again(ids).logits, model(ids).logits, atol=1e-5)
    end, user = tokenizer.convert_tokens_to_ids(["<|end|>", "<|user|>"])
    assert again.generation_config.eos_token_id == [end, user]
    assert tokenizer.eos_token_id == tokenizer.pad_token_id == end


@needs_package
@pytest.mark.parametrize(
    ("architecture", "more", "options", "words"),
    [
        ("llama", {"llama.rope.scaling.type": "yarn"}, {}, r"`llama.rope.scaling.type` is yarn, .* makes it default"),
        ("llama", {"llama.attention.sliding_window": 64}, {}, r"sliding_window` is 64, and transformers makes it None"),
        ("llama", {}, {"attention_bias": True}, r"leaves out 8 of its tensors \(blk.0.attn_q.bias\)"),
        (
            "llama",
            {},
            {"rope": LLAMA3 | {"original_max_position_embeddings": 64}},
            r"scales positions in a way of its own",
        ),
        ("llama", {"llama.vocab_size": 2**31}, {}, r"a size in the header is not that of the weights"),
        ("qwen2", {"qwen2.attention.head_count": 0}, {}, r"transformers cannot read it \("),
    ],
)
def test_what_transformers_would_silently_leave_out_is_refused(
    architecture: str,
    more: dict[str, Any],
    options: dict[str, Any],
    words: str,
    written: Callable[..., tuple[Any, bytes]],
    tmp_path: Path,
) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(written(architecture, more, **options)[1])
    with pytest.raises(UserError, match=words):
        convert(file, tmp_path / "out")
    assert [*tmp_path.iterdir()] == [file], "nothing is left behind"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda content: b"PK" + content, "this is no GGUF file"),
        (lambda content: content[:4] + b"\0\0\0\3" + content[8:], "GGUF of version 50331648"),
        (lambda content: content[:300], "header is cut short"),
        (lambda content: content[:-4096], "the file is cut short: .* bytes of .* or more"),
    ],
)
def test_a_broken_file_is_one_sentence(
    change: Callable[[bytes], bytes], words: str, written: Callable[..., tuple[Any, bytes]], tmp_path: Path
) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(change(written("llama")[1]))
    with pytest.raises(UserError, match=words):
        convert(file, tmp_path / "out")


MANY, ONE = 2**60, {"a": torch.zeros(1)}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (claims(0, MANY), "beyond all proportion"),
        (claims(MANY, 0), "beyond all proportion"),
        (claims(0, 1, struct.pack("<Q", MANY)), "a text of 11529"),
        (claims(0, 1, text("a") + struct.pack("<IIQ", 9, 8, MANY)), "lists of 11529"),
        (claims(0, 1, text("a") + struct.pack("<IIQ", 9, 0, MANY)), "lists of 11529"),
        (claims(0, 1, text("a") + struct.pack("<IIQ", 9, 9, 1)), "header is cut short or broken"),
        (claims(1, 0, text("a") + struct.pack("<I4QIQ", 4, *[MANY] * 4, 0, 0)), "the file is cut short"),
        (claims(1, 0, text("a") + struct.pack("<I", 2**31)), "a tensor of 2147483648 dimensions"),
        (gguf({"general.architecture": "llama", "split.count": 3}, {}), "one of several parts"),
        (gguf({"general.architecture": "llama"}, {}), "a vocabulary without weights"),
        (gguf({"general.architecture": "clip"}, ONE), "architecture 'clip' from GGUF, only bloom, .* qwen2, "),
        (gguf({"general.architecture": "llama"}, ONE), "the model has no tokenizer"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_no_header_takes_memory(content: bytes, words: str, tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(content)
    with pytest.raises(UserError, match=words):
        convert(file, tmp_path / "out")  # what the libraries need is loaded
    tracemalloc.start()
    try:
        with pytest.raises(UserError, match=words):
            convert(file, tmp_path / "out")
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()
