"""Demonstrations of page design as data for a base agent: pages for programs, changes for values."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from sweetrl.colbench.pages import find_page
from sweetrl.colbench.synthetic_frontend import generate
from sweetrl.learning.pretraining import (
    NUMBERS,
    WORDS,
    Demonstrations,
    Encoder,
    build_model,
    changed,
    collate,
    corpus,
    demonstrate,
    weighted_loss,
)
from sweetrl.learning.tokenizer import build_tokenizer
from sweetrl.settings import PretrainSettings

SETTINGS = PretrainSettings(layers=2, width=64, batch_size=2)
TASKS = list(generate("train", 60, 3, 2))


@pytest.fixture(scope="module")
def tokenizer():
    return build_tokenizer(corpus(TASKS, SETTINGS, 10, "short"), SETTINGS.vocabulary, NUMBERS, WORDS)


def test_changes_are_what_is_not_as_before():
    assert changed([], [1, 2]) == []
    assert changed([1, 2, 3, 4], [1, 9, 3, 4, 5]) == [1, 4]
    assert changed([1, 2, 3], [1, 3]) == []


def test_pages_weigh_like_programs_and_changes_like_values(tokenizer):
    encoder = Encoder(tokenizer, SETTINGS)
    blind = SETTINGS.model_copy(update={"informed": 0.0, "poorest": 1.0})
    dialogue = demonstrate(TASKS[0], blind, 10, "short", 5)
    assert dialogue == demonstrate(TASKS[0], blind, 10, "short", 5)
    ids, weights = encoder.encode(dialogue)
    assert len(ids) == len(weights)
    heavy = [token for token, weight in zip(ids, weights, strict=True) if weight == SETTINGS.value_weight]
    said = [message.content for message in dialogue.messages if message.role == "assistant"]
    assert all(find_page(text) for text in said)
    pages = [tokenizer.encode(text, add_special_tokens=False) for text in said]
    expected = [page[place] for old, page in pairwise(pages) for place in changed(old, page)]
    assert heavy == expected and heavy


def test_the_informed_see_the_page_in_front_and_the_others_do_not(tokenizer):
    for share, seen in ((1.0, True), (0.0, False)):
        shown = demonstrate(TASKS[1], SETTINGS.model_copy(update={"informed": share}), 10, "short", 3)
        assert (TASKS[1].ground_truth in shown.system) == shown.informed == seen
        assert shown.system.endswith("then end with it.")


def test_dialogues_fit_a_context_of_4096_and_a_step_learns(tokenizer):
    data = Demonstrations(TASKS, 8, Encoder(tokenizer, SETTINGS), SETTINGS, 10, "short")
    assert max(len(data.item(index)["input_ids"]) for index in range(60)) < 4096
    model = build_model(len(tokenizer), SETTINGS, tokenizer, 4096)
    assert model.config.max_position_embeddings == 4096
    ids, weights = collate(sorted((data.item(i) for i in range(12)), key=lambda item: len(item["input_ids"]))[:2], 0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(6):
        loss = weighted_loss(model, ids, weights)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]
