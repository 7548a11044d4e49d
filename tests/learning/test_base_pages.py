"""The shipped base agent of pages: small, writes pages, listens, and leaves room; it has seen no test task."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from sweetrl.domains.frontend.evaluation import first_page
from sweetrl.domains.frontend.pages import find_page, last_page
from sweetrl.domains.frontend.suite import generate
from sweetrl.domains.frontend.suite.agents import person
from sweetrl.domains.frontend.suite.designs import CLASSES, read_page
from sweetrl.domains.frontend.suite.judge import worth
from sweetrl.domains.frontend.suite.tasks import read_request
from sweetrl.engines.transformers import TransformersEngine
from sweetrl.learning.pretraining import Demonstrations, Encoder, copying
from sweetrl.reproduce.cells import merged
from sweetrl.rollout.run import rollout
from sweetrl.settings import parse_settings
from sweetrl.stages.pretrain import TASKS

ROOT = Path(__file__).resolve().parents[2]
BASE = ROOT / "models" / "base-frontend"
PROFILE = yaml.safe_load((ROOT / "reproduce" / "frontend" / "params.yaml").read_text(encoding="utf-8"))
SETTINGS = parse_settings(merged(yaml.safe_load((ROOT / "params.yaml").read_text()), PROFILE["settings"]))


@pytest.fixture(scope="module")
def engine():
    engine = TransformersEngine(BASE, None, "float32", "cpu", 1)
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def dialogues(engine):
    """With the scripted person who looks at sketches: no browser is needed."""
    tasks = list(generate("train", 60, SETTINGS.seed + 1, SETTINGS.tasks.difficulty))
    return rollout([(task, 0) for task in tasks], engine, engine.chat, person(), SETTINGS.agent, seed=3, batch=60)


def test_it_is_small_and_names_its_recipe():
    assert sum(path.stat().st_size for path in BASE.iterdir()) <= 2 * 2**20
    recipe = json.loads((BASE / "recipe.json").read_text())
    assert recipe["settings"] == SETTINGS.pretrain.model_dump(mode="json")


def test_it_knows_words_and_classes_as_one_token(engine):
    for word in (*CLASSES, *CLASSES.values()):
        assert len(engine.tokenizer.encode(word, add_special_tokens=False)) == 1


def test_it_puts_into_the_page_what_the_person_said(engine):
    blind = SETTINGS.pretrain.model_copy(update={"informed": 0.0})
    tasks = list(generate("test", 40, SETTINGS.seed + 5, SETTINGS.tasks.difficulty))
    data = Demonstrations(tasks, 1, Encoder(engine.tokenizer, blind, True), blind, SETTINGS.agent.max_turns, "short")
    values, others = copying(engine.model, [data.item(i) for i in range(len(tasks))], blind)
    assert values > 0.8 and others > 0.95  # some changes are whims that nobody could foresee


def test_it_writes_pages_listens_and_leaves_room(dialogues):
    replies = [one.content for each in dialogues for one in each.messages if one.role == "assistant"]
    pages = [html for text in replies if (html := find_page(text)) is not None]
    assert 0.8 <= len(pages) / len(replies) <= 0.995  # it asks, too
    assert sum(read_page(html) is not None for html in pages) / len(pages) >= 0.95
    asked = [read_request(each.task.problem_description).title for each in dialogues]
    assert sum(title in (last_page(each.messages) or "") for title, each in zip(asked, dialogues, strict=True)) >= 54
    start, end = (
        sum(worth(each.task, html) or 0.0 for each in dialogues if (html := find(each.messages))) / len(dialogues)
        for find in (first_page, last_page)
    )
    assert 0.5 <= start <= end - 0.05 and end <= 0.97


def test_no_test_task_was_in_its_training_data():
    trained = {
        task.ground_truth for task in generate("train", TASKS, SETTINGS.pretrain.seed, SETTINGS.tasks.difficulty)
    }
    test = {
        task.ground_truth for task in generate("test", SETTINGS.tasks.test, SETTINGS.seed, SETTINGS.tasks.difficulty)
    }
    assert len(trained) == TASKS and not trained & test
