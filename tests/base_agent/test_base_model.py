"""The shipped base agent: small, loads like any Llama, copies values, zero-shot in its band, has seen no test task."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sweetrl.backend import Backend
from sweetrl.backend.rewards import CodeScorer
from sweetrl.backend.suite import ScriptedSimulator, generate
from sweetrl.backend.suite.tasks import read_facts
from sweetrl.base_agent.pretraining import Demonstrations, Encoder, copying
from sweetrl.config.settings import load_settings
from sweetrl.engines.transformers import TransformersEngine
from sweetrl.rollout.context import RolloutContext
from sweetrl.rollout.run import rollout
from sweetrl.stages.pretrain import TASKS
from sweetrl.types import Task

ROOT = Path(__file__).resolve().parents[2]
BASE = ROOT / "models" / "base"
SETTINGS = load_settings(ROOT / "params.yaml")


@pytest.fixture(scope="module")
def engine() -> Iterator[TransformersEngine]:
    engine = TransformersEngine(BASE, None, "float32", "cpu", 2)
    yield engine
    engine.close()


def test_it_is_small_and_names_its_recipe(recipe_settings: Callable[[Path], dict[str, Any]]) -> None:
    files = [path for path in BASE.iterdir() if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= 8 * 2**20
    assert (BASE / "model.safetensors").exists()
    assert recipe_settings(BASE) == SETTINGS.pretrain.model_dump(mode="json"), (
        "the recipe names other settings than params.yaml"
    )


def test_it_is_a_llama_that_transformers_loads() -> None:
    from transformers import AutoConfig, AutoTokenizer

    assert AutoConfig.from_pretrained(BASE).model_type == "llama"
    tokenizer = AutoTokenizer.from_pretrained(BASE)
    assert all(len(tokenizer.encode(f" {number}", add_special_tokens=False)) == 1 for number in range(200))


def test_it_copies_what_the_user_said_into_the_program(engine: TransformersEngine) -> None:
    blind = SETTINGS.pretrain.model_copy(update={"informed": 0.0})  # the values stand in the user's words only
    tasks = list(generate("test", 100, SETTINGS.seed + 5, SETTINGS.tasks.difficulty))
    encoder = Encoder(engine.tokenizer, Backend())
    data = Demonstrations(tasks, 1, encoder, blind, SETTINGS.agent.max_turns, "short")
    values, _ = copying(engine.model, [data.item(i) for i in range(len(tasks))])
    assert values > 0.9


def solved(engine: TransformersEngine, tasks: list[Task], temperature: float, attempts: int = 1) -> list[list[bool]]:
    """For each task whether each attempt solved it."""
    agent = SETTINGS.agent.model_copy(update={"temperature": temperature})
    with CodeScorer(SETTINGS.reward) as scorer:
        context = RolloutContext(Backend(), engine, engine.chat, ScriptedSimulator(), scorer, agent)
        pairs = [(task, attempt) for task in tasks for attempt in range(attempts)]
        scores = scorer.score(rollout(pairs, context, seed=3, batch=400))
    flat = [score.reward == 1.0 for score in scores]
    return [flat[start : start + attempts] for start in range(0, len(flat), attempts)]


@pytest.fixture(scope="module")
def validation() -> list[Task]:
    return list(generate("train", 300, SETTINGS.seed + 1, SETTINGS.tasks.difficulty))


@pytest.mark.slow
def test_no_temperature_solves_the_tasks(engine: TransformersEngine, validation: list[Task]) -> None:
    """Its mode is wrong: sampling noise taken out of it gains little, and there is something to find in its tail."""
    rates = {}
    for temperature in (0.0, 0.25, 0.5, 0.7, 1.0):
        found = solved(engine, validation, temperature)
        rates[temperature] = sum(one for (one,) in found) / len(found)
    assert max(rates.values()) <= 0.35, rates
    assert 0.15 <= rates[1.0] <= 0.35, rates


@pytest.mark.slow
def test_a_success_is_there_to_be_found(engine: TransformersEngine, validation: list[Task]) -> None:
    found = solved(engine, validation[:40], 1.0, attempts=32)
    assert sum(map(any, found)) / len(found) >= 0.8


@pytest.mark.slow
def test_no_test_task_was_in_its_training_data() -> None:
    def content(task: Task) -> tuple[Any, ...]:
        return task.problem_description.partition("is: ")[2], tuple(sorted(read_facts(task.hidden_information).items()))

    tasks = Backend().pretraining_tasks(TASKS, SETTINGS.pretrain.seed, SETTINGS.tasks.difficulty)
    trained = {content(task) for task in tasks}
    test = {content(task) for task in generate("test", SETTINGS.tasks.test, SETTINGS.seed, SETTINGS.tasks.difficulty)}
    assert len(trained) == TASKS
    assert not trained & test
