"""Table 4's larger base: the small one with more layers, trained on by the stage `pretrain`."""

from __future__ import annotations

from pathlib import Path

import pytest

from sweetrl.errors import UserError
from sweetrl.io import read_json
from sweetrl.reproduce import larger
from sweetrl.settings import parse_settings
from sweetrl.stages import pretrain as module

BASE = Path(__file__).resolve().parents[2] / "models/base"


def test_a_larger_base_reads_the_token_ids_of_the_small_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from sweetrl.engines.transformers import load_model
    from sweetrl.models import load_tokenizer

    if not (BASE / "config.json").exists():
        pytest.skip("models/base is missing: git pull, or make base-model")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SWEETRL_TRACKING", "off")
    monkeypatch.setattr(module, "TASKS", 60)
    monkeypatch.setattr(module, "HELD_OUT", 2)
    Path("params.yaml").write_text("seed: 7\n")
    larger.SMALL.symlink_to(BASE)
    sizes = {"layers": 5, "steps": 10, "batch_size": 2}
    larger.larger(parse_settings({"model": {"device": "cpu", "threads": 1}, "pretrain": sizes}))
    ours, theirs = load_tokenizer(Path("models/base")), load_tokenizer(BASE)
    assert ours.get_vocab() == theirs.get_vocab()
    assert ours.chat_template == theirs.chat_template
    text = "Is there a maximum? The rate is 7.\nI WANT TO ANSWER:"
    assert ours.encode(text) == theirs.encode(text)
    config = load_model(Path("models/base"), None, "float32", "cpu").config
    assert (config.hidden_size, config.num_hidden_layers, config.vocab_size) == (128, 5, len(theirs))
    assert read_json(Path("models/base/recipe.json"))["settings"]["layers"] == 5


def test_a_grown_model_starts_as_the_small_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from sweetrl.engines.transformers import load_model
    from sweetrl.models import load_tokenizer

    if not (BASE / "config.json").exists():
        pytest.skip("models/base is missing: git pull, or make base-model")
    monkeypatch.chdir(tmp_path)
    larger.SMALL.symlink_to(BASE)
    tokenizer, wanted = load_tokenizer(BASE), parse_settings({"pretrain": {"layers": 7}}).pretrain
    big = larger.grown(len(tokenizer), wanted, tokenizer, 2048)
    small = load_model(BASE, None, "float32", "cpu")
    ids = torch.tensor([tokenizer.encode("Is there a maximum? The rate is 7.\nI WANT TO ANSWER:")])
    assert torch.equal(big(ids).logits, small(ids).logits)
    assert big.generate(ids, max_new_tokens=9, do_sample=False).tolist() == (
        small.generate(ids, max_new_tokens=9, do_sample=False).tolist()
    ), "with a cache, too: every layer has a place of its own in it"
    loss = big(ids, labels=ids).loss
    loss.backward()
    for layer in big.model.layers:
        assert layer.self_attn.o_proj.weight.grad.abs().sum() > 0
        assert layer.mlp.down_proj.weight.grad.abs().sum() > 0
    with pytest.raises(UserError, match="larger base has more than the small one's 3 layers"):
        larger.grown(len(tokenizer), parse_settings({}).pretrain, tokenizer, 2048)
