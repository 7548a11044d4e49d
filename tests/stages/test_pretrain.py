"""The stage `pretrain`: what it trains on, a domain of one's own, and Table 4's larger base (the small one grown)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from transformers import TrainerState

from sweetrl.backend import Backend
from sweetrl.colbench.domain import Domain
from sweetrl.colbench.find import load_domain
from sweetrl.config.settings import PretrainSettings, parse_settings
from sweetrl.engines.chat import ChatFormat
from sweetrl.engines.transformers import load_model
from sweetrl.errors import UserError
from sweetrl.io import read_json
from sweetrl.models.load import load_tokenizer
from sweetrl.reproduce import larger
from sweetrl.stages import pretrain as module
from sweetrl.types import Split, Task


class Few(Domain):
    """A domain with `contents` different tasks, each of which comes `times` times; every seed yields all of them."""

    def __init__(self, contents: int, times: int = 1, reference: bool = True) -> None:
        self.contents, self.times, self.has_reference = contents, times, reference

    def tasks(self, split: Split, count: int, seed: int, difficulty: int) -> Iterator[Task]:
        for number in range(min(count, self.contents * self.times)):
            word = f"word {(number + seed) % self.contents}"
            hidden = None if self.has_reference else word
            yield Task(
                f"{split}-{number}", "Say my word.", word if self.has_reference else "", hidden_information=hidden
            )


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("reference", [True, False])
@pytest.mark.parametrize(("contents", "held"), [(2, 1), (9, 1), (40, 4), (900, 8)])
def test_a_domain_with_few_contents_keeps_some_of_them_for_measuring(
    contents: int, held: int, reference: bool, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "HELD_OUT", 8)
    domain = Few(contents, times, reference)
    trained, fresh = module._tasks(domain, 11)
    given = {domain.reference(task) for task in trained}, {domain.reference(task) for task in fresh}
    assert not given[0] & given[1] and given[0] | given[1] == {f"word {number}" for number in range(contents)}
    assert len(given[1]) == held and len(trained) == (contents - held) * times
    assert len(fresh) == min(8, held * times)


def test_a_domain_with_many_contents_is_measured_on_those_of_another_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TASKS", 200)
    monkeypatch.setattr(module, "HELD_OUT", 20)
    trained, fresh = module._tasks(Backend(), 11)
    seed, difficulty = PretrainSettings().seed, Backend().settings.tasks.difficulty
    assert trained == list(Backend().pretraining_tasks(200, seed, difficulty)), "none of them is given up"
    other = list(Backend().pretraining_tasks(200, seed + 1, difficulty))
    assert len(fresh) == 20 and all(task in other for task in fresh)
    tests = {task.ground_truth for task in Backend().tasks("test", 1000, 7, difficulty)}
    assert not tests & {task.ground_truth for task in (*trained, *fresh)}, (
        "the words of all domains, and no test program"
    )
    assert not {task.ground_truth for task in fresh} & {task.ground_truth for task in trained}


def killed(*_: object) -> None:
    raise KeyboardInterrupt


def test_a_domain_of_ones_own_gets_a_base_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """examples/forms.py: some 2,000 contents, so that no seed has one that another has not."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module, "HELD_OUT", 4)
    Path("params.yaml").write_text("seed: 7\n")
    sizes = {"layers": 2, "width": 32, "vocabulary": 512, "steps": 4, "batch_size": 2}
    settings = parse_settings(
        {"suite": "examples.forms:Forms", "model": {"device": "cpu", "threads": 1}, "pretrain": sizes}
    )
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(TrainerState, "save_to_json", killed)
        module.pretrain(settings)
    assert any(Path(".scratch").rglob("checkpoint-4")), "half of a checkpoint, from which nothing can go on"
    module.pretrain(settings)
    recipe = read_json(Path("models/base/recipe.json"))
    assert recipe["settings"] == settings.pretrain.model_dump(mode="json")
    domain, tokenizer = load_domain(settings), load_tokenizer(Path("models/base"))
    config = load_model(Path("models/base"), None, "float32", "cpu").config
    assert (config.num_hidden_layers, config.hidden_size, config.vocab_size) == (2, 32, len(tokenizer))
    assert config.max_position_embeddings == domain.pretraining.positions == 512
    for value in domain.pretraining.words:
        assert len(tokenizer.encode(value, add_special_tokens=False)) == 1, value
    task = next(domain.tasks("test", 1, 3, 3))
    ids = ChatFormat(tokenizer).open(domain.system_prompt("short"), task.problem_description)
    assert task.problem_description in tokenizer.decode(ids)


def test_a_larger_base_reads_the_token_ids_of_the_small_one(
    shipped_base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module, "TASKS", 60)
    monkeypatch.setattr(module, "HELD_OUT", 2)
    Path("params.yaml").write_text("seed: 7\n")
    larger.SMALL.symlink_to(shipped_base)
    sizes = {"layers": 5, "steps": 10, "batch_size": 2}
    settings = parse_settings({"model": {"device": "cpu", "threads": 1}, "pretrain": sizes})
    module.pretrain(settings, larger.SMALL, larger.grown)
    large, small = load_tokenizer(Path("models/base")), load_tokenizer(shipped_base)
    assert large.get_vocab() == small.get_vocab()
    assert large.chat_template == small.chat_template
    text = "Is there a maximum? The rate is 7.\nI WANT TO ANSWER:"
    assert large.encode(text) == small.encode(text)
    config = load_model(Path("models/base"), None, "float32", "cpu").config
    assert (config.hidden_size, config.num_hidden_layers, config.vocab_size) == (128, 5, len(small))
    assert read_json(Path("models/base/recipe.json"))["settings"]["layers"] == 5


def test_a_grown_model_starts_as_the_small_one(
    shipped_base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    monkeypatch.chdir(tmp_path)
    larger.SMALL.symlink_to(shipped_base)
    tokenizer, sizes = load_tokenizer(shipped_base), parse_settings({"pretrain": {"layers": 7}}).pretrain
    big = larger.grown(len(tokenizer), sizes, tokenizer, 2048)
    small = load_model(shipped_base, None, "float32", "cpu")
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
