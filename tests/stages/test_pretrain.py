"""Stage `pretrain` with another model's tokenizer: what Table 4's larger base is made with."""

from __future__ import annotations

from pathlib import Path

import pytest

from sweetrl.io import read_json
from sweetrl.reproduce import larger
from sweetrl.settings import parse_settings
from sweetrl.stages import pretrain as module

BASE = Path(__file__).resolve().parents[2] / "models/base"


def test_a_larger_base_reads_the_token_ids_of_the_small_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from sweetrl.engines.transformers import load_model, load_tokenizer

    if not (BASE / "config.json").exists():
        pytest.skip("models/base is missing: git pull, or make base-model")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SWEETRL_TRACKING", "off")
    monkeypatch.setattr(module, "TASKS", 60)
    monkeypatch.setattr(module, "HELD_OUT", 2)
    Path("params.yaml").write_text("seed: 7\n")
    larger.SMALL.symlink_to(BASE)
    sizes = {"layers": 2, "width": 64, "heads": 2, "steps": 10, "batch_size": 2}
    larger.larger(parse_settings({"model": {"device": "cpu", "threads": 1}, "pretrain": sizes}))
    ours, theirs = load_tokenizer(Path("models/base")), load_tokenizer(BASE)
    assert ours.get_vocab() == theirs.get_vocab()
    assert ours.chat_template == theirs.chat_template
    text = "Is there a maximum? The rate is 7.\nI WANT TO ANSWER:"
    assert ours.encode(text) == theirs.encode(text)
    config = load_model(Path("models/base"), None, "float32", "cpu").config
    assert (config.hidden_size, config.num_hidden_layers, config.vocab_size) == (64, 2, len(theirs))
    assert read_json(Path("models/base/recipe.json"))["settings"]["width"] == 64
