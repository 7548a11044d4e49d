"""A base of 4 bits (`model.quantization: nf4`): the options of bitsandbytes, what is refused, and its memory."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from sweetrl.config.settings import ModelSettings, parse_settings
from sweetrl.engines.policy import Policy
from sweetrl.errors import UserError
from sweetrl.lm.adapters import load_base
from sweetrl.lm.memory import Shape
from sweetrl.models import load

CARD = "cuda:0"


def test_what_cannot_be_is_one_sentence(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for other in ({"train": "full"}, {"sharding": "fsdp2"}):
        with pytest.raises(UserError, match="4 bits are neither trained nor sharded; set `train: lora`"):
            parse_settings({"model": {"quantization": "nf4", **other}})
    settings = ModelSettings(base=str(tiny_model), device="cpu", quantization="nf4")
    with pytest.raises(UserError, match=r"model\.quantization: nf4 needs a CUDA device; set it to `none`"):
        load_base(settings)
    monkeypatch.setattr(load, "resolve_device", lambda device: CARD)
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)  # as where it is not installed
    with pytest.raises(UserError, match=r"bitsandbytes is not installed.*pip install 'sweetrl\[quantization\]'"):
        load_base(settings)


def test_the_base_is_quantised_by_transformers_own_means_wherever_it_is_loaded(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Any] = []

    def loaded(kind: Any, model: Any, **options: Any) -> None:
        given.append(options)
        raise UserError("enough")

    monkeypatch.setattr(load, "resolve_device", lambda device: CARD)
    monkeypatch.setattr(load, "_complete", loaded)
    monkeypatch.setitem(sys.modules, "bitsandbytes", ModuleType("bitsandbytes"))
    settings = ModelSettings(base=str(tiny_model), dtype="bfloat16", quantization="nf4")
    for loads in (lambda: load_base(settings), lambda: Policy(settings).open(1)):
        with pytest.raises(UserError, match="enough"):
            loads()
    assert len(given) == 2
    for options in given:
        how = options["quantization_config"].to_dict()
        assert how["load_in_4bit"] and how["bnb_4bit_quant_type"] == "nf4" and how["bnb_4bit_use_double_quant"]
        assert how["bnb_4bit_compute_dtype"] == "bfloat16" and options["device_map"] == {"": CARD}

    def command(*parts: Any) -> None:
        given.append(parts)
        raise UserError("enough")

    monkeypatch.setattr("sweetrl.engines.vllm_server.vllm_command", command)
    at_server = Policy(settings, Policy().engine.model_copy(update={"kind": "vllm"}))
    with pytest.raises(UserError, match="enough"):
        at_server.serving(tmp_path / "log").__enter__()
    assert "--quantization bitsandbytes" in given[-1][1]


def test_the_plan_knows_it() -> None:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32, "num_key_value_heads": 8}
    with torch.device("meta"):
        model = LlamaForCausalLM(LlamaConfig(vocab_size=128_256, num_hidden_layers=32, **sizes))
    plain, packed = (Shape.planned(model, 2, 16, nf4=nf4) for nf4 in (False, True))
    assert plain.adapter == packed.adapter
    # 8.03 billion numbers, 6.98 of them in linear layers; embeddings and head keep 16 bits.
    assert packed.weights * 2 == pytest.approx(6.98e9 * 0.52 + 2 * 1.05e9, rel=0.01)
