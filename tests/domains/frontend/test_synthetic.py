"""The synthetic frontend suite: deterministic, disjoint, learnable, and every hidden detail can be seen."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from pathlib import Path
from statistics import mean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweetrl.colbench.environment import Environment
from sweetrl.colbench.files import read_tasks
from sweetrl.domains.frontend import Frontend
from sweetrl.domains.frontend.differences import compare
from sweetrl.domains.frontend.outline import outline_of
from sweetrl.domains.frontend.pages import find_page
from sweetrl.domains.frontend.suite import generate
from sweetrl.domains.frontend.suite.agents import OracleAgent, belief, demonstrate, listen, scripted_user
from sweetrl.domains.frontend.suite.designs import BY_NAME, DETAILS, Design, read_page, write_page
from sweetrl.domains.frontend.suite.sketch import sketch, sketch_design
from sweetrl.domains.frontend.suite.tasks import draw_design, read_facts, read_request, wanted_design, write_facts
from sweetrl.evaluation.checks import leak, protocol, turn_order
from sweetrl.rollout.dialogue import Dialogue
from sweetrl.types import Task

FRONTEND = Frontend()
TASKS = list(generate("train", 120, 7))


def test_equal_arguments_give_equal_tasks_and_splits_are_disjoint() -> None:
    assert list(generate("train", 30, 7)) == TASKS[:30]
    assert list(generate("train", 30, 8)) != TASKS[:30]
    pages = {
        split: {task.ground_truth for seed in (1, 2) for task in generate(split, 300, seed)}
        for split in ("train", "test")
    }
    assert len(pages["train"]) > 550 and not pages["train"] & pages["test"]


@pytest.mark.parametrize("difficulty", [1, 3, 6])
def test_difficulty_is_the_number_of_hidden_details(difficulty: int) -> None:
    many = [len(read_facts(task.hidden_information)) for task in generate("test", 60, 3, difficulty)]
    assert 2 * difficulty - 2 <= mean(many) <= 2 * difficulty + 1 and min(many) >= 1


def test_requests_tell_title_and_sections_and_nothing_hidden() -> None:
    for task in TASKS:
        plain, wanted = read_request(task.problem_description), wanted_design(task)
        assert (plain.topic, plain.title, plain.sections) == (wanted.topic, wanted.title, wanted.sections)
        assert write_page(wanted) == task.ground_truth and find_page(task.ground_truth) == task.ground_truth
        assert write_facts(wanted) == task.hidden_information
        assert not any(value in task.problem_description for _, value in wanted.details if len(value) > 3)
    with pytest.raises(ValueError, match="not a request"):
        read_request("Write a function. The signature of the function is: def f(x)")


def test_the_files_hold_them(tmp_path: Path, write_tasks: Callable[..., Path]) -> None:
    write_tasks(tmp_path / "pages.jsonl", TASKS)
    assert list(read_tasks(tmp_path / "pages.jsonl", FRONTEND)) == TASKS


@given(st.integers(0, 10**9))
def test_pages_are_read_back(seed: int) -> None:
    rng = random.Random(seed)
    design = draw_design(rng, rng.randint(1, 6))
    assert read_page(write_page(design), design.sections) == design
    for detail in DETAILS:
        if detail.section in ("", *design.sections):
            changed = design.set({detail.name: rng.choice(detail.values)})
            assert read_page(write_page(changed), design.sections) == changed


@pytest.mark.parametrize(
    "html", ["", "<html></html>", "<html><body>x</body></html>", '<html><body class=""><h1>No Such</h1></body></html>']
)
def test_foreign_pages_are_not_read(html: str) -> None:
    assert read_page(html) is None and sketch(html).elements == ()


def test_every_hidden_detail_can_be_seen() -> None:
    for task in TASKS:
        wanted = wanted_design(task)
        for name, _ in wanted.details:
            without = wanted.set({name: BY_NAME[name].plain})
            assert compare(outline_of(sketch_design(without)), outline_of(sketch_design(wanted))), (name, wanted)


def play(task: Task) -> Environment:
    environment = Environment(task, FRONTEND, scripted_user(), reply_characters=1000)
    while not environment.done:
        environment.step(OracleAgent().act(task, environment.messages))
    return environment


def test_whoever_listens_arrives_at_the_page_within_the_turns() -> None:
    turns = []
    for task in TASKS:
        ended = play(task)
        assert ended.answer == task.ground_truth, task.id
        assert ended.outcome == "answered"
        turns.append(ended.turn)
    assert 3.5 < mean(turns) < 6 and max(turns) < 9


def test_what_the_user_says_is_no_leak_and_follows_the_protocol(by_hand: Callable[..., Dialogue]) -> None:
    for task in TASKS[:40]:
        dialogue = by_hand(task, scripted_user(), seed=3)
        while not dialogue.environment.done:
            dialogue.environment.step(OracleAgent().act(task, dialogue.environment.messages))
        ended = dialogue.close("oracle")
        assert turn_order(ended) is None and protocol(ended, FRONTEND, 10) is None
        assert leak(ended, FRONTEND.hidden_fragments(task)) is None
        assert not any(FRONTEND.find_leak(task, message.content) for message in ended.messages[2::2])


def test_nobody_reads_more_out_of_words_than_is_in_them() -> None:
    design = Design("gym", "Star Gym", ("about", "contact"))
    for words in (
        "It looks right to me.",
        "I do not know.",
        'The section "Gallery" should be puce, yours is white.',
        "",
    ):
        assert listen(design, words) == design
    told = listen(
        design, 'Please make the header dark blue, not dark gray. The button "Send" should be red, yours is blue.'
    )
    assert told == design.with_(header_color="dark blue", contact_button="red")


def test_demonstrators_differ_in_skill_and_faults_can_be_found() -> None:
    def right(quality: float) -> tuple[float, float]:
        shares, turns = [], []
        for index, task in enumerate(TASKS[:60]):
            spoken = demonstrate(task, 10, index, quality, quality, informed=0.0)
            assert spoken == demonstrate(task, 10, index, quality, quality, informed=0.0)
            wanted, ended = wanted_design(task), belief(spoken.messages)
            hidden = [name for name, _ in wanted.details]
            shares.append(mean(ended[name] == wanted[name] for name in hidden))
            turns.append(len(spoken.messages) / 2)
        return mean(shares), mean(turns)

    poor, fair, good = (right(quality)[0] for quality in (0.0, 0.5, 1.0))
    assert good == 1.0 and poor < 0.8 < fair < 0.98


def test_the_informed_know_before_they_are_told() -> None:
    firsts = {}
    for share in (0.0, 1.0):
        known = []
        for task in TASKS[:60]:
            first = belief(demonstrate(task, 10, 5, informed=share).messages[:2])
            known.append(mean(first[name] == value for name, value in wanted_design(task).details))
        firsts[share] = mean(known)
    assert firsts[0.0] < 0.1 < 0.4 < firsts[1.0]


def test_colours_and_words_stay_apart() -> None:
    for one, other in itertools.combinations(DETAILS, 2):
        assert one.name != other.name
    assert all(len(set(detail.values)) == len(detail.values) for detail in DETAILS)
