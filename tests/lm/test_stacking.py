"""Adapters put on top of each other are one adapter that does the same."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from sweetrl.errors import UserError


@pytest.fixture(scope="module")
def two_ended(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model with a head of its own."""
    from sweetrl.engines.transformers import load_model
    from sweetrl.models.load import load_tokenizer

    folder = tmp_path_factory.mktemp("two-ended")
    model = load_model(tiny_model, None, "float32", "cpu")
    model.config.tie_word_embeddings = False
    model.lm_head.weight = type(model.lm_head.weight)(1.1 * model.lm_head.weight.detach())
    model.save_pretrained(folder)
    load_tokenizer(tiny_model).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("ends", [False, True])
def test_the_stack_is_what_merging_one_after_the_other_gives(
    tiny_model: Path, two_ended: Path, write_adapter: Callable[..., Path], tmp_path: Path, ends: bool
) -> None:
    """For adapters on all layers between embeddings and head, and for adapters on these two."""
    import torch

    from sweetrl.engines.transformers import load_model
    from sweetrl.lm.adapters import stack_adapters
    from sweetrl.models.load import load_tokenizer

    base, more = (two_ended, {"target_modules": "embed_tokens,q_proj,lm_head"}) if ends else (tiny_model, {})
    first = write_adapter(base, tmp_path / "1", 0.05, rank=4, alpha=8, **more)
    merged = load_model(base, first, "float32", "cpu")
    merged.save_pretrained(tmp_path / "start")
    load_tokenizer(tiny_model).save_pretrained(tmp_path / "start")
    second = write_adapter(tmp_path / "start", tmp_path / "2", 0.05, 2, rank=2, alpha=6, **more)
    stack_adapters([first, second], tmp_path / "out", "models/base")

    ids = torch.tensor([[5, 9, 200, 17, 33]])
    one_by_one = load_model(tmp_path / "start", second, "float32", "cpu")(input_ids=ids).logits
    together = load_model(base, tmp_path / "out", "float32", "cpu")(input_ids=ids).logits
    plain = load_model(base, None, "float32", "cpu")(input_ids=ids).logits
    assert (one_by_one - together).abs().max().item() < 1e-4
    assert (one_by_one - merged(input_ids=ids).logits).abs().max().item() > 1e-2
    assert (one_by_one - plain).abs().max().item() > 1e-2
    config = json.loads((tmp_path / "out/adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], config["base_model_name_or_path"]) == (6, 12.0, "models/base")


def test_what_cannot_be_stacked_is_one_sentence(
    tiny_model: Path, write_adapter: Callable[..., Path], tmp_path: Path
) -> None:
    from sweetrl.lm.adapters import stack_adapters

    plain = write_adapter(tiny_model, tmp_path / "1", 0.05, rank=4, alpha=8)
    with pytest.raises(UserError, match="there is no peft adapter"):
        stack_adapters([plain, tmp_path / "nothing"], tmp_path / "out", "models/base")
    other = write_adapter(tiny_model, tmp_path / "2", 0.05, rank=4, alpha=8, target_modules="q_proj")
    with pytest.raises(UserError, match=r"train every iteration with the same lora\.target_modules"):
        stack_adapters([plain, other], tmp_path / "out", "models/base")
    config = json.loads((other / "adapter_config.json").read_text())
    (other / "adapter_config.json").write_text(json.dumps(config | {"modules_to_save": ["score"]}))
    with pytest.raises(UserError, match="only plain LoRA adapters"):
        stack_adapters([plain, other], tmp_path / "out", "models/base")


@pytest.mark.parametrize("end", ["lm_head", "embed_tokens"])
def test_an_adapter_on_weights_that_are_used_twice_is_refused(
    tiny_model: Path, write_adapter: Callable[..., Path], tmp_path: Path, end: str
) -> None:
    """Beside the weights it changes the embeddings or the head, merged into them both: another model is evaluated."""
    from peft import LoraConfig, get_peft_model

    from sweetrl.lm.adapters import load_adapter
    from sweetrl.models.load import load_weights

    with pytest.raises(UserError, match=rf"lora\.target_modules = 'q_proj,{end}': .*{end}` as embeddings and as head"):
        write_adapter(tiny_model, tmp_path / "ours", 0.05, rank=4, target_modules=f"q_proj,{end}")
    adapted = get_peft_model(load_weights(tiny_model, "float32"), LoraConfig(target_modules=["q_proj", end]))
    adapted.save_pretrained(tmp_path / "theirs")
    with pytest.raises(UserError, match=f"theirs: the adapter changes `.*{end}`"):
        load_adapter(load_weights(tiny_model, "float32"), tmp_path / "theirs")
