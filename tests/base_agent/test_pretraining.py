"""The base agent's start and data; what its training ends with is test_shipped_bases'."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from sweetrl.backend import Backend
from sweetrl.backend.suite import generate
from sweetrl.base_agent.pretraining import (
    INFORMED_WEIGHT,
    USER_WEIGHT,
    VALUE_WEIGHT,
    Demonstrations,
    Encoder,
    build_model,
    collate,
    make_tokenizer,
    weighted_loss,
)
from sweetrl.config.settings import PretrainSettings

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

SETTINGS = PretrainSettings()
BACKEND = Backend()
TASKS = list(generate("train", 400, 3, 3))


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return make_tokenizer(TASKS, BACKEND, SETTINGS, 10, "short")


def test_every_value_is_one_token_wherever_it_stands(tokenizer: PreTrainedTokenizerFast) -> None:
    recipe = BACKEND.pretraining
    for value in (*(f" {number}" for number in range(recipe.numbers)), *recipe.words):
        (token,) = tokenizer.encode(value, add_special_tokens=False)
        for text in (f"The rate is{value}.", f"    rate ={value}\n    total", f"of{value} units"):
            assert token in tokenizer.encode(text, add_special_tokens=False)
            assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


def test_the_first_layer_starts_looking_at_the_two_tokens_before(tokenizer: PreTrainedTokenizerFast) -> None:
    model = build_model(len(tokenizer), SETTINGS, tokenizer)
    model.set_attn_implementation("eager")
    ids = torch.randint(6, len(tokenizer), (2, 150), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        first = model(input_ids=ids, output_attentions=True).attentions[0]
    places = torch.arange(10, 150)
    before = first[:, :, places, places - 1] + first[:, :, places, places - 2]
    assert before.mean() > 0.7 and before.min() > 0.4
    again = build_model(len(tokenizer), SETTINGS, tokenizer)
    assert all(torch.equal(one, other) for one, other in zip(model.parameters(), again.parameters(), strict=True))


def test_the_later_layers_start_attending_to_like_at_any_distance(tokenizer: PreTrainedTokenizerFast) -> None:
    model = build_model(len(tokenizer), SETTINGS, tokenizer)
    model.set_attn_implementation("eager")
    ids = torch.randperm(len(tokenizer) - 6, generator=torch.Generator().manual_seed(2))[:260] + 6
    ids[250:253] = ids[50:53]  # the same three words 200 tokens later
    with torch.no_grad():
        second = model(input_ids=ids[None], output_attentions=True).attentions[1][0].mean(0)
    assert second[252, 52] > 5 / 252, "like gets several times the attention of a token at random"


def test_a_dialogue_is_a_function_of_its_place_and_weights_follow_the_roles(tokenizer: PreTrainedTokenizerFast) -> None:
    data = Demonstrations(TASKS, 8, Encoder(tokenizer, BACKEND), SETTINGS, 10, "short")
    again = Demonstrations(TASKS, 8, Encoder(tokenizer, BACKEND), SETTINGS, 10, "short")
    assert [data[i] for i in range(8)] == [again[i] for i in range(8)]
    for item in data[3]:
        assert len(item["input_ids"]) == len(item["weights"])
        assert set(item["weights"]) <= {
            0.0,
            1.0,
            USER_WEIGHT,
            VALUE_WEIGHT,
            INFORMED_WEIGHT,
            INFORMED_WEIGHT * VALUE_WEIGHT,
        }


def test_the_loss_is_the_weighted_mean_over_tokens(tokenizer: PreTrainedTokenizerFast) -> None:
    model = build_model(len(tokenizer), SETTINGS, tokenizer)
    data = Demonstrations(TASKS, 8, Encoder(tokenizer, BACKEND), SETTINGS, 10, "short")
    items = data[0][:3]
    ids, weights = collate(items, padding=tokenizer.pad_token_id)
    with torch.no_grad():
        loss = weighted_loss(model, ids, weights).item()
        total = weight = 0.0
        for item in items:
            logprobs = model(input_ids=torch.tensor([item["input_ids"]])).logits[0, :-1].log_softmax(-1)
            for place, (token, w) in enumerate(zip(item["input_ids"][1:], item["weights"][1:], strict=True)):
                total -= w * logprobs[place, token].item()
                weight += w
    assert loss == pytest.approx(total / weight, rel=1e-5)
