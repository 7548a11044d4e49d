"""Folders of weights that are incomplete, or that no library can load, are refused in one sentence."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from sweetrl.errors import UserError
from sweetrl.models.check import ADAPTER_WEIGHTS
from tests.hostile.conftest import change, load


@pytest.fixture
def folder(tiny_model: Path, tmp_path: Path) -> Path:
    """A copy of the tiny model."""
    return shutil.copytree(tiny_model, tmp_path / "model")


def test_an_adapter_of_another_architecture_is_not_taken_for_the_base(tiny_model: Path, adapter: Path) -> None:
    """peft leaves what a file lacks at 0: the base would be measured as the trained agent."""
    from safetensors.torch import load_file, save_file

    from sweetrl.models.load import load_lora, load_weights

    weights = load_file(adapter / ADAPTER_WEIGHTS)
    save_file({name.replace("layers", "h"): value for name, value in weights.items()}, adapter / ADAPTER_WEIGHTS)
    with pytest.raises(UserError, match=rf"the adapter lacks {len(weights)} of the tensors"):
        load_lora(load_weights(tiny_model, "float32"), adapter)
    save_file({}, adapter / ADAPTER_WEIGHTS)
    with pytest.raises(UserError, match=r"asks for rank 2 .*, and the weights have 0;"):
        load_lora(load_weights(tiny_model, "float32"), adapter)


@pytest.mark.parametrize("asked", [{"r": 40_000}, {"rank_pattern": {"q_proj": 40_000}}])
def test_an_adapter_of_a_higher_rank_than_its_weights_is_refused_before_it_is_made(
    tiny_model: Path, adapter: Path, monkeypatch: pytest.MonkeyPatch, asked: dict[str, Any]
) -> None:
    """Made first, the adapter of a few kilobytes takes gigabytes."""
    from sweetrl.models.load import load_lora, load_weights

    monkeypatch.setattr("peft.get_peft_model", lambda *_: pytest.fail("the adapter is made"))
    change(adapter / "adapter_config.json", **asked)
    with pytest.raises(UserError, match=r"asks for rank 40000 .*, and the weights have 2;"):
        load_lora(load_weights(tiny_model, "float32"), adapter)


@pytest.mark.parametrize(
    "asked",
    [
        {"target_modules": r"([\w.]+)+!"},
        {"exclude_modules": r"([\w.]+)+!"},
        {"rank_pattern": {r"([\w.]+)+!": 2}},
        {"modules_to_save": [r"([\w.]+)+!"]},
        {"layers_pattern": r"([\w.]+)+!"},
    ],
    ids=lambda asked: next(iter(asked)),
)
def test_patterns_of_an_adapter_that_take_years_are_refused_in_seconds(
    tiny_model: Path, adapter: Path, asked: dict[str, Any]
) -> None:
    """peft matches them with the name of every layer, in a process that nothing interrupts."""
    from sweetrl.models.load import load_lora, load_weights

    change(adapter / "adapter_config.json", **asked)
    with pytest.raises(UserError, match=f"a pattern in {next(iter(asked))} cannot be used: it needs more processor"):
        load_lora(load_weights(tiny_model, "float32"), adapter)


@pytest.mark.parametrize("pattern", [r"(?!.*visual).*\.\w+_proj", r"(?i).*\.\w+_PROJ"])
def test_an_honest_pattern_of_an_adapter_is_taken(tiny_model: Path, adapter: Path, pattern: str) -> None:
    from sweetrl.models.load import load_lora, load_weights

    change(adapter / "adapter_config.json", target_modules=pattern)
    assert load_lora(load_weights(tiny_model, "float32"), adapter).peft_config["default"].r == 2


def test_incomplete_weights_are_refused_and_not_drawn_at_random(folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    for changed in (
        {name: value for name, value in weights.items() if ".layers.0." not in name},
        {f"base_model.model.{name}": value for name, value in weights.items()},
    ):
        save_file(changed, folder / "model.safetensors", metadata={"format": "pt"})
        with pytest.raises(
            UserError, match=r"the safetensors lack \d+ of the model's tensors \(.*fetch the folder again"
        ):
            load(folder)


@pytest.mark.parametrize(
    ("file", "values"),
    [
        ("config.json", {"quantization_config": {"quant_method": "awq", "bits": 4}}),
        ("config.json", {"attn_implementation": "flash_attention_2"}),
        ("config.json", {"hidden_size": "abc"}),
        ("config.json", {"num_attention_heads": 0}),
        ("config.json", {"hidden_act": "nope"}),
        ("config.json", {"model_type": ["llama"]}),
        ("config.json", {"vocab_size": 7}),
        ("config.json", {"num_hidden_layers": 10**8}),
        ("tokenizer.json", {"added_tokens": 3}),
        ("tokenizer_config.json", {"chat_template": 3}),
        ("tokenizer_config.json", {"model_max_length": "x"}),
        ("tokenizer_config.json", {"tokenizer_class": 3}),
    ],
)
def test_what_libraries_cannot_load_is_one_sentence(folder: Path, file: str, values: dict[str, Any]) -> None:
    change(folder / file, **values)
    with pytest.raises(UserError) as error:
        load(folder)
    assert str(folder) in str(error.value) and "\n" not in str(error.value)


def test_a_pipe_in_a_folder_is_not_waited_for(folder: Path) -> None:
    (folder / "generation_config.json").unlink(missing_ok=True)
    os.mkfifo(folder / "generation_config.json")
    with pytest.raises(UserError, match=r"generation_config\.json: this is no regular file"):
        load(folder)


def test_a_link_out_of_a_folder_is_no_licence(tmp_path: Path) -> None:
    from sweetrl.models.licences import base_licence, copy_licence

    (tmp_path / "id_rsa").write_text("secret")
    base, out, hub = tmp_path / "base", tmp_path / "out", tmp_path / "models--a--b"
    for place in (base, out, hub / "blobs", hub / "snapshots/1"):
        place.mkdir(parents=True)
    for name in ("LICENSE", "README.md", "NOTICE"):
        (base / name).symlink_to(tmp_path / "id_rsa")
    assert (copy_licence(base, out), base_licence(base)) == ([], "")
    (hub / "blobs/0a").write_text("MIT License")
    (hub / "snapshots/1/LICENSE").symlink_to("../../blobs/0a")
    assert (copy_licence(hub / "snapshots/1", out), base_licence(hub / "snapshots/1")) == (["LICENSE"], "MIT License")
    assert (out / "LICENSE").read_text() == "MIT License"
    cached = tmp_path / "cache/files/md5/0a" / ("b" * 30)
    cached.parent.mkdir(parents=True)
    cached.write_text("BSD License")
    (base / "LICENSE.txt").symlink_to(cached)  # a folder that DVC has linked
    assert base_licence(base) == "BSD License"
    (base / "LICENSE.txt").unlink()
    (base / "COPYING").write_bytes(b"x" * (2**20 + 1))
    assert copy_licence(base, out) == []


def test_a_card_that_unfolds_without_end_states_its_licence_all_the_same(tmp_path: Path) -> None:
    from sweetrl.models.licences import base_licence

    rows = [f"a{n}: &a{n}\n  <<: [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    for bomb in ("\n".join(["a0: &a0 {x: 1, y: 2}", *rows]), "tags: [" + "1, " * 300_000 + "]"):
        (tmp_path / "README.md").write_text(f"---\n{bomb}\nlicense: 'mit'  # as it was\n---\n# Base\n")
        began = time.process_time()
        assert base_licence(tmp_path) == "mit"
        assert time.process_time() - began < 1
