"""Demonstrations of page design as data for a base agent: pages for programs, changes for values."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

from sweetrl.base_agent.pretraining import (
    VALUE_WEIGHT,
    Demonstrations,
    Encoder,
    build_model,
    changed,
    collate,
    corpus,
    demonstrate,
    make_tokenizer,
    weighted_loss,
)
from sweetrl.config.settings import PretrainSettings
from sweetrl.engines.chat import ChatFormat
from sweetrl.frontend import Frontend
from sweetrl.frontend.pages import find_page
from sweetrl.frontend.suite import generate
from sweetrl.frontend.suite.designs import CLASSES, SIZES

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

FRONTEND = Frontend()
SETTINGS = PretrainSettings(layers=2, width=64, batch_size=2, vocabulary=640)
TASKS = list(generate("train", 60, 3, 2))


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return make_tokenizer(TASKS, FRONTEND, SETTINGS, 10, "short")


def test_what_is_told_and_written_is_one_token_and_nothing_is_unknown(tokenizer: PreTrainedTokenizerFast) -> None:
    for word in (*CLASSES, *CLASSES.values(), *SIZES):
        assert len(tokenizer.encode(word, add_special_tokens=False)) == 1, word
    assert len(tokenizer) <= SETTINGS.vocabulary
    pages = [len(tokenizer.encode(task.ground_truth, add_special_tokens=False)) for task in TASKS]
    assert max(pages) <= 80
    foreign = "Ünknown <div class='text-white'>rewhited</div>\n\n a\tb. c?  d"
    for text in (*corpus(TASKS[:20], FRONTEND, SETTINGS, 10, "short"), foreign):
        assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


def test_the_saved_tokenizer_is_the_same_and_keeps_dialogues(
    tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    from transformers import AutoTokenizer

    tokenizer.save_pretrained(tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    for text in corpus(TASKS[:10], FRONTEND, SETTINGS, 10, "short"):
        assert again.encode(text) == tokenizer.encode(text)
    chat = ChatFormat(again)
    assert again.decode(chat.reply(TASKS[0].ground_truth)[:-1]) == TASKS[0].ground_truth


def test_changes_are_what_is_not_as_before() -> None:
    assert changed([], [1, 2]) == []
    assert changed([1, 2, 3, 4], [1, 9, 3, 4, 5]) == [1, 4]
    assert changed([1, 2, 3], [1, 3]) == []


def test_pages_weigh_like_programs_and_changes_like_values(tokenizer: PreTrainedTokenizerFast) -> None:
    encoder = Encoder(tokenizer, FRONTEND)
    blind = SETTINGS.model_copy(update={"informed": 0.0, "poorest": 1.0})
    dialogue = demonstrate(TASKS[0], FRONTEND, blind, 10, "short", 5)
    assert dialogue == demonstrate(TASKS[0], FRONTEND, blind, 10, "short", 5)
    ids, weights = encoder.encode(dialogue)
    assert len(ids) == len(weights)
    heavy = [token for token, weight in zip(ids, weights, strict=True) if weight == VALUE_WEIGHT]
    said = [message.content for message in dialogue.messages if message.role == "assistant"]
    assert all(find_page(text) for text in said)
    pages = [tokenizer.encode(text, add_special_tokens=False) for text in said]
    expected = [page[place] for old, page in pairwise(pages) for place in changed(old, page)]
    assert heavy == expected and heavy


def test_the_informed_see_the_page_in_front_and_the_others_do_not(tokenizer: PreTrainedTokenizerFast) -> None:
    for share, seen in ((1.0, True), (0.0, False)):
        shown = demonstrate(TASKS[1], FRONTEND, SETTINGS.model_copy(update={"informed": share}), 10, "short", 3)
        assert (TASKS[1].ground_truth in shown.system) == shown.informed == seen
        assert shown.system.endswith("then end with it.")


def test_dialogues_fit_a_context_of_4096_and_a_step_learns(tokenizer: PreTrainedTokenizerFast) -> None:
    data = Demonstrations(TASKS, 8, Encoder(tokenizer, FRONTEND), SETTINGS, 10, "short")
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
