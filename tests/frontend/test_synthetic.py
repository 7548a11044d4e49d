"""The synthetic frontend suite: deterministic, disjoint, learnable, and every hidden detail can be seen."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Callable
from pathlib import Path
from statistics import mean

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from sweetrl.colbench.dialogue import Environment
from sweetrl.config.settings import PretrainSettings, parse_settings
from sweetrl.evaluation.checks import leak, protocol, turn_order
from sweetrl.frontend import Frontend
from sweetrl.frontend.differences import compare
from sweetrl.frontend.outline import outline_of
from sweetrl.frontend.pages import find_page
from sweetrl.frontend.suite import generate
from sweetrl.frontend.suite.agents import OracleAgent, ScriptedAgent, Start, belief, demonstrate, scripted_user
from sweetrl.frontend.suite.designs import BY_NAME, CLASSES, DETAILS, HEADINGS, Design, read_page, write_page
from sweetrl.frontend.suite.looks import LOOKS, hinted_look
from sweetrl.frontend.suite.sketch import sketch_design
from sweetrl.frontend.suite.tasks import draw_design, read_request, reference_design, write_facts, write_request
from sweetrl.reproduce.variants import merged
from sweetrl.rollout.dialogue import Dialogue
from sweetrl.types import Task

ROOT = Path(__file__).resolve().parents[2]

FRONTEND = Frontend()
TASKS = list(generate("train", 120, 7))
PROFILE = parse_settings(
    merged(
        yaml.safe_load((ROOT / "params.yaml").read_text()),
        yaml.safe_load((ROOT / "reproduce" / "frontend" / "params.yaml").read_text())["settings"],
    )
)


def test_equal_arguments_give_equal_tasks_and_splits_are_disjoint() -> None:
    assert list(generate("train", 30, 7)) == TASKS[:30]
    assert list(generate("train", 30, 8)) != TASKS[:30]
    pages = {
        split: {task.ground_truth for seed in (1, 2) for task in generate(split, 300, seed)}
        for split in ("train", "test")
    }
    assert len(pages["train"]) > 550 and not pages["train"] & pages["test"]


def of_the_look(task: Task) -> Design:
    look = hinted_look(task.problem_description)
    assert look is not None
    return look.on(read_request(task.problem_description))


@pytest.mark.parametrize("difficulty", [1, 3, 5])
def test_difficulty_is_the_number_of_details_that_no_look_tells(difficulty: int) -> None:
    many = []
    for task in generate("test", 60, 3, difficulty):
        reference, look = reference_design(task), of_the_look(task)
        many.append(sum(reference[detail.name] != look[detail.name] for detail in DETAILS))
    assert difficulty - 0.5 <= mean(many) <= difficulty + 1  # what cannot be seen is no detail


def test_every_look_can_be_read_off_its_request_and_no_two_are_alike() -> None:
    rng = random.Random(1)
    phrases = [words for look in LOOKS for words in look.words]
    assert len(set(phrases)) == len(phrases)
    for look in LOOKS:
        for kinds in itertools.combinations(HEADINGS, 3):
            design = look.on(Design("gym", "Star Gym", kinds))
            assert hinted_look(write_request(design, look, rng)) is look
            assert design == design.seen() == design.grounded()
            others = [other.on(Design("gym", "Star Gym", kinds)) for other in LOOKS if other is not look]
            assert design not in others
    assert hinted_look("I want a website for a cafe.") is None


def test_requests_tell_title_sections_and_look_and_no_value() -> None:
    for task in TASKS:
        plain, reference = read_request(task.problem_description), reference_design(task)
        assert (plain.topic, plain.title, plain.sections) == (reference.topic, reference.title, reference.sections)
        assert write_page(reference) == task.ground_truth and find_page(task.ground_truth) == task.ground_truth
        assert write_facts(reference) == task.hidden_information
        words = re.findall(r"[a-z]+", task.problem_description.lower())
        assert not {word for _, value in reference.details for word in value.split() if word in CLASSES} & set(words)
    with pytest.raises(ValueError, match="not a request"):
        read_request("Write a function. The signature of the function is: def f(x)")


@given(st.integers(0, 10**9))
def test_pages_are_read_back(seed: int) -> None:
    rng = random.Random(seed)
    design = draw_design(rng, rng.randint(1, 6))
    assert read_page(write_page(design), design.sections) == design
    for detail in DETAILS:
        if detail.section in ("", *design.sections):
            changed = design.set({detail.name: rng.choice(detail.values)})
            assert read_page(write_page(changed), design.sections) == changed


def test_every_hidden_detail_can_be_seen() -> None:
    for task in TASKS:
        reference = reference_design(task)
        for name, _ in reference.details:
            without = reference.set({name: BY_NAME[name].plain})
            assert compare(outline_of(sketch_design(without)), outline_of(sketch_design(reference))), (name, reference)


def play(task: Task, agent: OracleAgent | ScriptedAgent, turns: int = 12, differences: int = 3) -> Environment:
    environment = Environment(task, FRONTEND, scripted_user(differences), turns, reply_characters=1000)
    while not environment.done:
        environment.step(agent.act(task, environment.messages))
    return environment


def test_whoever_listens_arrives_at_the_page() -> None:
    turns = []
    for task in TASKS:
        ended = play(task, OracleAgent())
        assert reference_design(task) == belief(ended.messages).seen(), task.id
        assert ended.outcome == "answered"
        turns.append(ended.turn)
    assert 3.5 < mean(turns) < 8 and max(turns) < 12


@pytest.mark.slow
def test_only_who_begins_with_the_look_arrives_within_the_turns() -> None:
    """The bands of decision 12, for the turns and the user of reproduce/frontend."""

    def solved(start: Start) -> float:
        agent = ScriptedAgent(start, PROFILE.agent.max_turns)
        many = PROFILE.simulator.options["differences"]
        ended = {task: play(task, agent, PROFILE.agent.max_turns, many) for task in tasks}
        return mean(belief(dialogue.messages).seen() == reference_design(task) for task, dialogue in ended.items())

    tasks = list(generate("train", 400, 5, PROFILE.tasks.difficulty))
    assert solved("hints") >= 0.97
    assert solved("usual") <= 0.35
    assert solved("random") <= 0.15 + 0.03  # 400 tasks; 15 % of 3,000


def test_what_the_user_says_is_no_leak_and_follows_the_protocol(by_hand: Callable[..., Dialogue]) -> None:
    for task in TASKS[:40]:
        dialogue = by_hand(task, scripted_user(), seed=3)
        while not dialogue.environment.done:
            dialogue.environment.step(OracleAgent().act(task, dialogue.environment.messages))
        ended = dialogue.close("oracle")
        assert turn_order(ended) is None and protocol(ended, FRONTEND, 10) is None
        assert leak(ended, FRONTEND.hidden_fragments(task)) is None
        assert not any(FRONTEND.find_leak(task, message.content) for message in ended.messages[2::2])


def skill(quality: float, heed: float = 0.0, informed: float = 0.0) -> PretrainSettings:
    return PretrainSettings(poorest=quality, best=quality, heed_least=heed, heed_most=heed, informed=informed)


def test_what_the_user_has_put_right_is_not_undone_by_heeding() -> None:
    for index, task in enumerate(TASKS[:30]):
        demonstration = demonstrate(task, skill(1.0, heed=1.0), 10, index)
        assert belief(demonstration.messages).seen() == reference_design(task)
