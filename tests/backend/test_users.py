"""The scripted person of the synthetic suite: answers from the facts only, to questions only; five personas."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweetrl.backend import Backend
from sweetrl.backend.leaks import find_leak
from sweetrl.backend.suite import ScriptedSimulator, generate
from sweetrl.backend.suite.details import BY_NAME, CURRENCIES, KINDS
from sweetrl.backend.suite.tasks import read_facts
from sweetrl.backend.suite.users import AFTER, BEFORE, CORRECTION, NOTHING, PERSONAS, REFUSAL, UNKNOWN, Persona, slip
from sweetrl.colbench.leaks import leaks_of
from sweetrl.colbench.personas import refuses
from sweetrl.config.settings import Settings
from sweetrl.errors import UserError
from sweetrl.types import Message, Task

TASKS = list(generate("train", 150, seed=3, difficulty=3))
FOUR = next(task for task in TASKS if len(read_facts(task.hidden_information)) == 4)
SEEDS = st.integers(0, 10**6)
ANY_TASK = st.sampled_from(TASKS)
ANY_PERSONA = st.sampled_from(PERSONAS)
PATIENT = [persona for persona in PERSONAS if persona != "impatient"]


def dialogue(task: Task, *questions: str, persona: Persona = "plain", seed: int = 4) -> list[str]:
    """The person's replies to these questions, asked one after the other."""
    user, messages, replies = ScriptedSimulator(persona), [Message("user", task.problem_description)], []
    for question in questions:
        messages.append(Message("assistant", question))
        replies.append(user.reply(task, messages, seed))
        messages.append(Message("user", replies[-1]))
    return replies


def question(name: str) -> str:
    return BY_NAME[name].questions[0]


def values_in(*replies: str) -> list[str]:
    return re.findall(rf"\d+|\b(?:{'|'.join(CURRENCIES)})\b", " ".join(replies))


def test_the_user_answers_from_the_facts_only() -> None:
    for task in TASKS:
        facts = read_facts(task.hidden_information)
        for kind in KINDS:
            (reply,) = dialogue(task, kind.questions[0])
            assert reply.count(".") <= 2 and len(reply) <= 400
            values = list(facts.get(kind.name, ()))
            first = {"tier": values[:1], "bulk": values[:1], "discount": []}.get(kind.name, values)
            assert values_in(reply) == first, (kind.name, reply)
            assert (reply in NOTHING) == (kind.name not in facts)
        assert dialogue(task, "Do you like music?")[0] in UNKNOWN


# Details of two parts


@pytest.mark.parametrize("name", ["tier", "bulk", "discount"])
@pytest.mark.parametrize("persona", PATIENT)
def test_a_detail_of_two_parts_is_told_in_two_steps_and_then_again(name: str, persona: Persona) -> None:
    tasks = [task for task in TASKS if name in read_facts(task.hidden_information)]
    assert len(tasks) >= 5
    for task in tasks:
        values = list(read_facts(task.hidden_information)[name])
        kind = BY_NAME[name]
        first, second, third = dialogue(task, question(name), kind.follow_ups[0], kind.follow_ups[1], persona=persona)
        assert values_in(first) == values[:-1] and values_in(second) == values_in(third) == values[-1:]
        if persona == "terse":
            assert second == third
        # Any question about it is a follow-up, and others may stand between.
        other = next(k for k in KINDS if k.name not in read_facts(task.hidden_information))
        replies = dialogue(task, question(name), other.questions[0], question(name), persona=persona)
        assert [values_in(reply) for reply in replies] == [values[:-1], [], values[-1:]]
        # A follow-up that comes first brings out the first part.
        assert values_in(*dialogue(task, kind.follow_ups[0], persona=persona)) == values[:-1]


# Code and statements


@pytest.mark.parametrize("persona", PERSONAS)
def test_code_and_statements_bring_out_nothing(persona: Persona) -> None:
    for task in TASKS[:40]:
        facts = read_facts(task.hidden_information)
        names = ", ".join(facts)
        for message in (
            task.ground_truth,
            f"```python\n{task.ground_truth}\n```",
            f"```\n{' '.join(map(question, facts))}",
            f"# {' '.join(map(question, facts))}\ndef f({names}):",
            f"I will add {names}, the tax, the rate and a discount.",
            f"`{question(next(iter(facts)))}` would be too much.",
        ):
            (reply,) = dialogue(task, message, persona=persona)
            assert any(text in reply for text in UNKNOWN) and not values_in(reply)
            first = next(iter(facts))
            assert values_in(*dialogue(task, f"{question(first)}\n{message}")) == values_in(
                *dialogue(task, question(first))
            )


# Personas
@given(ANY_TASK, SEEDS, st.permutations(KINDS))
def test_terse_and_talkative_people_tell_the_same_values(task: Task, seed: int, kinds: list[Any]) -> None:
    questions = [text for kind in kinds for text in (*kind.questions[:1], *kind.follow_ups[:1])]
    plain, terse, talkative = (
        dialogue(task, *questions, persona=persona, seed=seed)
        for persona in ("plain", "terse", "talkative")  # type: ignore[arg-type]
    )
    for medium, short, long in zip(plain, terse, talkative, strict=True):
        assert values_in(medium) == values_in(short) == values_in(long)
        assert medium in long and long.split(medium)[0].strip() in BEFORE and long.split(medium)[1].strip() in AFTER
        assert len(short) <= len(medium) < len(long)
        assert (short == "No.") == (medium in NOTHING)
    facts = read_facts(task.hidden_information)
    assert set(values_in(*terse)) == {value for values in facts.values() for value in values}


def test_an_impatient_person_stops_answering_and_never_before_the_fourth_question() -> None:
    stopped = []
    for task in TASKS:
        for seed in (1, 2):
            questions = [kind.questions[0] for kind in KINDS]
            replies = dialogue(task, *questions, persona="impatient", seed=seed)
            refused = [at for at, reply in enumerate(replies) if reply == REFUSAL]
            stopped.append(refused[0] if refused else len(replies))
            assert refused == list(range(stopped[-1], len(replies))), "once out of patience, for good"
            for reply, kind in zip(replies[: stopped[-1]], KINDS, strict=False):
                facts = read_facts(task.hidden_information)
                assert (reply in NOTHING) == (kind.name not in facts), "before that, answers as anybody"
    assert min(stopped) == 3
    share = sum(at == 3 for at in stopped) / len(stopped)
    assert 0.15 < share < 0.35, "a quarter at the fourth question"
    assert sum(at < 10 for at in stopped) / len(stopped) > 0.8


def test_a_forgetful_person_has_one_detail_wrong_and_corrects_it_when_asked_again() -> None:
    slips = 0
    for task in TASKS:
        facts = read_facts(task.hidden_information)
        wrong = slip(task, facts)
        assert wrong == slip(task, facts) and (wrong is None or BY_NAME[wrong].parts == 1)
        for name in facts:
            if BY_NAME[name].parts > 1 or name == "label":
                assert name != wrong
                continue
            replies = dialogue(task, *[question(name)] * 3, persona="forgetful")
            right = list(facts[name])
            if name == wrong:
                slips += 1
                assert values_in(replies[0]) != right and CORRECTION not in replies[0]
                assert [values_in(reply) for reply in replies[1:]] == [right] * 2
                assert all(reply.startswith(CORRECTION) and not refuses(reply) for reply in replies[1:])
            else:
                assert [values_in(reply) for reply in replies] == [right] * 3 and CORRECTION not in " ".join(replies)
    assert slips == sum(slip(task, read_facts(task.hidden_information)) is not None for task in TASKS) > 100


@given(ANY_TASK, ANY_PERSONA, SEEDS, st.lists(st.sampled_from(KINDS), min_size=1, max_size=10))
def test_nobody_leaks_or_says_too_much(task: Task, persona: Persona, seed: int, kinds: list[Any]) -> None:
    questions = [kind.questions[seed % 3] for kind in kinds]
    messages = [Message("user", task.problem_description)]
    for text, reply in zip(questions, dialogue(task, *questions, persona=persona, seed=seed), strict=True):
        messages += [Message("assistant", text), Message("user", reply)]
        assert 0 < len(reply) <= 400 and "\n" not in reply
    assert leaks_of(task, messages, find_leak) == []


# Settings


def backend(**simulator: Any) -> Backend:
    return Backend().configured(Settings.model_validate({"simulator": simulator}))


@pytest.mark.parametrize("persona", PERSONAS)
def test_the_persona_is_a_setting(persona: str) -> None:
    domain = backend(persona=persona)
    with domain.open() as tools:
        assert domain.scripted_user(tools).persona == persona  # type: ignore[attr-defined]
    assert backend().scripted_user(None).persona == "plain"  # type: ignore[attr-defined]


def test_an_unknown_option_is_one_clear_sentence() -> None:
    with pytest.raises(UserError, match=r"^params.yaml: simulator.options: the scripted user has no option `person`;"):
        backend(options={"person": "terse"}).scripted_user(None)


@pytest.mark.parametrize(
    "hidden", [None, "def f(x):\n    return x / 2", "tax: unknown", "tax: 5\nOn Sundays all is free."]
)
@pytest.mark.parametrize("persona", PERSONAS)
def test_nobody_answers_about_a_foreign_task(persona: Persona, hidden: str | None) -> None:
    foreign = Task("t", "halve", "def f(x):\n    return x / 2", (("test1", "f(1)"),), hidden_information=hidden)
    for message in (question("tax"), question("allowance"), "Why?"):
        with pytest.raises(UserError, match=r"^task t: the scripted user knows nothing about it, .* `simulator.kind`"):
            dialogue(foreign, message, persona=persona)
