"""The synthetic suite's tasks: disjoint splits, requests that hint and tell nothing, tests that expose every detail."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sweetrl.backend import Backend
from sweetrl.backend.suite import generate
from sweetrl.backend.suite.agents import read_request
from sweetrl.backend.suite.details import KINDS
from sweetrl.backend.suite.tasks import draw_spec, outputs, read_facts, write_facts
from sweetrl.backend.suite.topics import (
    ASPECTS,
    CELL_OF,
    CLOSERS,
    DOMAINS,
    GRID,
    MATTERS,
    PLAIN,
    named_kinds,
)
from sweetrl.colbench.find import load_domain
from sweetrl.config.settings import parse_settings
from sweetrl.errors import UserError
from sweetrl.seeds import split_of
from sweetrl.types import Split, Task

SEEDS = st.integers(0, 10**6)
HELD_OUT = [domain for domain in DOMAINS if domain.held_out]


def content(task: Task) -> str:
    request = read_request(task.problem_description)
    facts = ";".join(f"{name}={','.join(values)}" for name, values in read_facts(task.hidden_information).items())
    return f"{request.domain.name}|{request.function}|{request.argument}|{facts}"


def shape(program: str) -> str:
    """The program without its numbers and names: which operations it has, in which order."""
    words = {"def", "return", "if", "max", "min", "round"}
    bare = re.sub(r"\d+(\.\d+)?", "0", program)
    return re.sub(r"[A-Za-z_]\w*", lambda match: match[0] if match[0] in words else "name", bare)


def cells_named(request: str) -> set[tuple[str, str]]:
    """The cells that a request names, by splitting its list of hints: another way than the suite's own."""
    wish = request.partition(" The signature of the function is: ")[0]
    bare = [closer.split("{}")[0] for closer in CLOSERS]
    (start,) = [wish.index(opening) + len(opening) for opening in bare if opening in wish]
    listed = wish[start:].partition(".")[0]
    cells = set()
    for hint in re.split(r", | and ", listed):
        words = hint.split()
        matter, aspect = (words[0], words[3]) if words[1:3] == ["that", "are"] else (words[1], words[0])
        (cell,) = [(a, m) for a, m in GRID if aspect in ASPECTS[a] and matter in MATTERS[m]]
        cells.add(cell)
    return cells


@pytest.fixture(scope="module")
def some_tasks() -> list[Task]:
    return list(generate("train", 400, seed=3, difficulty=3))


def test_equal_arguments_give_equal_tasks_and_a_longer_list_starts_the_same() -> None:
    first = list(generate("train", 50, seed=1, difficulty=2))
    assert first == list(generate("train", 80, seed=1, difficulty=2))[:50]
    assert first != list(generate("train", 50, seed=2, difficulty=2))


# Splits


def programs(split: Split, seeds: Iterable[int], count: int, **options: Any) -> list[str]:
    return [
        task.ground_truth
        for seed in seeds
        for difficulty in (2, 3, 4)
        for task in generate(split, count, seed, difficulty, **options)
    ]


@pytest.mark.slow
def test_no_test_program_is_a_training_program_up_to_numbers_and_names() -> None:
    train = {shape(program) for program in programs("train", (1, 2), 500, domains=DOMAINS)}
    test = {shape(program) for program in programs("test", (1, 3), 300)}
    assert len(train) > 1000 and len(test) > 150
    assert not train & test
    held_out = {shape(program) for program in programs("test", (5,), 200, domains=HELD_OUT)}
    assert not train & held_out


def test_the_structure_decides_the_split_whatever_the_seed() -> None:
    for split in ("train", "test"):
        for task in (*generate(split, 200, 1, 3), *generate(split, 200, 2, 3)):
            assert split_of(" ".join(read_facts(task.hidden_information))) == split
    assert not {content(t) for t in generate("train", 800, 1, 3)} & {content(t) for t in generate("test", 800, 2, 3)}


@pytest.mark.parametrize("difficulty", [1, 3, 6])
def test_held_out_domains_are_never_trained_on(difficulty: int) -> None:
    def domains(split: Split) -> Counter[str]:
        tasks = generate(split, 500, 4, difficulty)
        return Counter(read_request(task.problem_description).domain.name for task in tasks)

    train, test = domains("train"), domains("test")
    held_out = {domain.name for domain in HELD_OUT}
    assert not held_out & train.keys() and train.keys() | held_out == {domain.name for domain in DOMAINS}
    if difficulty > 1:  # single details are too few structures for every domain to have one of the test split
        assert held_out <= test.keys() and len(test.keys() - held_out) >= 20


def test_pre_training_sees_all_domains_and_no_test_content() -> None:
    tasks = list(Backend().pretraining_tasks(900, 2, 3))
    assert {read_request(task.problem_description).domain.name for task in tasks} == {domain.name for domain in DOMAINS}
    assert {split_of(" ".join(read_facts(task.hidden_information))) for task in tasks} == {"train"}


@pytest.mark.parametrize("difficulty", [1, 3, 6])
def test_difficulty_is_the_number_of_hidden_details(difficulty: int) -> None:
    counts = [len(read_facts(task.hidden_information)) for task in generate("train", 300, 1, difficulty)]
    assert min(counts) >= max(1, difficulty - 1)
    assert max(counts) <= difficulty + 1
    assert difficulty - 0.6 < sum(counts) / len(counts) < difficulty + 0.6


# Requests


def test_requests_tell_nothing_of_the_details(some_tasks: list[Task]) -> None:
    subjects = {question.split()[0].rstrip(":").lower() for kind in KINDS for question in kind.questions}
    of_grid = {word for table in (ASPECTS, MATTERS) for row in table.values() for word in row}
    subjects -= of_grid | {word for domain in DOMAINS for phrase in domain.phrases for word in phrase.split()}
    assert len(subjects) >= 15
    for task in some_tasks:
        wish, _, _ = task.problem_description.partition("The signature of the function is:")
        assert not any(character.isdigit() for character in wish)
        assert not subjects & set(re.findall(r"\w+", wish.lower())), wish
        assert not any(question in wish for kind in KINDS for question in (*kind.questions, *kind.follow_ups))


def hints_of(task: Task) -> tuple[set[tuple[str, str]], set[tuple[str, str]]]:
    """The cells that the request names, and those in which something is hidden."""
    facts = read_facts(task.hidden_information)
    return cells_named(task.problem_description), {CELL_OF[name] for name in facts}


@settings(max_examples=40)
@given(seed=SEEDS, difficulty=st.integers(1, 6), split=st.sampled_from(["train", "test"]))
def test_requests_name_the_cells_of_their_details_and_at_most_one_more(
    seed: int, difficulty: int, split: Split
) -> None:
    for task in generate(split, 5, seed, difficulty):
        request = read_request(task.problem_description)
        named, hidden = hints_of(task)
        assert hidden <= named and len(named - hidden) <= 1, task.problem_description
        wish = task.problem_description.partition(" The signature")[0]
        assert named_kinds(task.problem_description) == named_kinds(wish)
        assert named_kinds(wish) == {kind for cell in named for kind in GRID[cell]}
        assert set(request.named) == named_kinds(wish) & set(request.domain.relevant)
        assert all(set(GRID[cell]) & set(request.domain.relevant) for cell in named), "a false hint is plausible, too"
        assert read_facts(task.hidden_information).keys() <= set(request.named)


@settings(max_examples=40)
@given(seed=SEEDS, difficulty=st.integers(1, 6), split=st.sampled_from(["train", "test"]))
def test_plain_requests_hint_at_what_is_hidden_in_the_words_of_the_questions(
    seed: int, difficulty: int, split: Split
) -> None:
    for task in generate(split, 5, seed, difficulty, hints="plain"):
        request, facts = read_request(task.problem_description), read_facts(task.hidden_information)
        wish = task.problem_description.partition(" The signature")[0]
        hidden = {CELL_OF[name] for name in facts}
        named = {cell for cell, wordings in PLAIN.items() if any(words in wish for words in wordings)}
        assert hidden <= named and len(named - hidden) <= 1, wish
        assert facts.keys() <= set(request.named) == named_kinds(wish) & set(request.domain.relevant)
        assert not any(character.isdigit() for character in wish), "the request holds no value"
        assert not any(question in wish for kind in KINDS for question in (*kind.questions, *kind.follow_ups))


def test_the_wording_of_requests_is_an_option_of_the_suite() -> None:
    plain = load_domain(parse_settings({"suite_options": {"hints": "plain"}}))
    tasks = list(plain.tasks("test", 5, 3, 2))
    assert tasks == list(generate("test", 5, 3, 2, hints="plain")) != list(generate("test", 5, 3, 2))
    assert list(load_domain(parse_settings({})).tasks("test", 5, 3, 2)) == list(generate("test", 5, 3, 2))
    shown = list(plain.pretraining_tasks(5, 3, 2))
    assert shown == list(generate("train", 5, 3, 2, DOMAINS, "plain"))
    for suite, options in (
        ("backend", {"hint": "plain"}),
        ("backend", {"hints": "coded"}),
        ("frontend", {"hints": "plain"}),
    ):
        with pytest.raises(UserError, match="suite_options"):
            load_domain(parse_settings({"suite": suite, "suite_options": options}))


# Programs and tests


def numbers(task: Task) -> dict[str, tuple[int | str, ...]]:
    facts = read_facts(task.hidden_information)
    return {name: tuple(int(v) if v.isdigit() else v for v in values) for name, values in facts.items()}


def test_a_program_that_lacks_a_detail_or_has_a_number_that_is_one_more_fails(some_tasks: list[Task]) -> None:
    for task in some_tasks[:150]:
        details = numbers(task)
        inputs = [int(call[call.index("(") + 1 : -1]) for _, call in task.test_cases]
        right = outputs(details, inputs)
        for name, values in details.items():
            without = {other: v for other, v in details.items() if other != name}
            assert outputs(without, inputs) != right, (task.id, name)
            for i, value in enumerate(values):
                if isinstance(value, int):
                    changed = {**details, name: (*values[:i], value + 1, *values[i + 1 :])}
                    assert outputs(changed, inputs) != right, (task.id, name, i)


# Facts and files


@given(seed=SEEDS, difficulty=st.integers(1, 6))
def test_facts_survive_being_written(seed: int, difficulty: int) -> None:
    details = dict(draw_spec(random.Random(seed), difficulty).details)
    read = read_facts(write_facts(details))
    assert read == {name: tuple(map(str, values)) for name, values in details.items()} and list(read) == list(details)
