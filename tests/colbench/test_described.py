"""Users with facts and personas: what a question brings out, and how it is said."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, get_args

import pytest

from sweetrl.backend import Backend
from sweetrl.colbench.described import REFUSED, UNKNOWN, DescribedUser, Fact
from sweetrl.colbench.domain import Domain
from sweetrl.colbench.personas import FORGOT, IN_WORDS, MISHEARD, REFUSAL, VAGUE, WithPersona, refuses
from sweetrl.colbench.users import LlmSimulator, ScriptedUser, simulator_prompt
from sweetrl.config.sections import Persona
from sweetrl.config.settings import Settings
from sweetrl.errors import UserError
from sweetrl.frontend import Frontend
from sweetrl.protocols import AsyncUserSimulator
from sweetrl.rollout.users import open_user, user_name
from sweetrl.stages.parameters import with_values
from sweetrl.types import Message, Task

FACTS = (
    Fact("default", "If the speed is not given, 200 is used.", "Which speed should be used?", ("speed",)),
    Fact("condition", "If the age is more than 65, 3 is added to the fee.", "What of age?", ("age",)),
    Fact("empty", "If the articles are empty, it should return 0.", "And none?", ("articles",)),
    Fact("return", "It should return the fee rounded to 2 decimals.", "What is returned?", ("fee",)),
)
TASK = Task("t", "I want the fee for some articles.", "def f(x):\n    return x * 7 + 1", (("test1", "f(1)"),))


def replies(*questions: str, persona: Persona = "plain", seed: int = 3) -> list[str]:
    plain = DescribedUser(lambda task: FACTS)
    user = plain if persona == "plain" else WithPersona(plain, persona)
    messages, words = [Message("user", TASK.problem_description)], []
    for question in questions:
        messages.append(Message("assistant", question))
        words.append(user.reply(TASK, messages, seed))
        messages.append(Message("user", words[-1]))
    return words


@pytest.mark.parametrize(
    ("question", "facts"),
    [
        ("Does the age of the person matter?", [1]),
        ("How fast? Is there a default speed?", [0]),
        ("What should happen if there are no articles or the list is empty?", [2]),
        ("What precision should the output have?", [3]),
        ("Does age play a role? What is the speed?", [1, 0]),
        ("Which currency is it in?", []),
        ("```python\nage = speed\n```\nIs the weather of interest?", []),
    ],
)
def test_a_question_brings_out_what_it_is_about_and_nothing_else(question: str, facts: Sequence[int]) -> None:
    (words,) = replies(question)
    assert words == " ".join(FACTS[at].text for at in facts) if facts else words in UNKNOWN


def test_a_user_who_also_takes_time_has_the_manner_too() -> None:
    class Slow(DescribedUser):
        async def answer(self, task: Task, messages: Sequence[Message], seed: int) -> str:
            return self.reply(task, messages, seed)

    slow = Slow(lambda task: FACTS)
    assert isinstance(slow, AsyncUserSimulator)
    assert not isinstance(WithPersona(slow, "terse"), AsyncUserSimulator)  # or it is asked without its manner


@pytest.mark.parametrize("question", ["Show me the code.", "Tell me everything.", "Please share all requirements."])
def test_a_request_for_everything_is_refused(question: str) -> None:
    assert replies(question) == [REFUSED]


def test_every_persona_is_a_function_of_its_arguments_and_has_its_manner() -> None:
    questions = ["Does age matter?", "Which speed?", "What if empty?", "What is returned?", "Which currency?"]
    plain = replies(*questions)
    for persona in get_args(Persona):
        assert replies(*questions, persona=persona) == replies(*questions, persona=persona)
    assert replies(*questions, persona="impatient") == [*plain[:3], REFUSAL, REFUSAL]
    talkative = replies(*questions, persona="talkative")
    assert all(few in many and few != many for few, many in zip(plain, talkative, strict=True))
    vague = replies(*questions, persona="vague")
    assert vague[:-1] == plain[:-1] and vague[-1] in VAGUE
    misheard = sum(replies(questions[0], persona="misunderstanding", seed=seed) != plain[:1] for seed in range(40))
    assert 2 <= misheard <= 20


def test_what_is_forgotten_stays_forgotten() -> None:
    user, forgot = WithPersona(ScriptedUser(lambda task, messages, seed: "It is 7."), "forgetful"), 0
    for number in range(40):
        task, messages = replace(TASK, id=str(number)), [Message("user", "I want f.")]
        for seed in range(4):
            messages += [Message("assistant", "Which?"), Message("user", "")]
            messages[-1] = Message("user", user.reply(task, messages[:-1], seed))
        assert len({message.content for message in messages[2::2]}) == 1
        forgot += messages[2].content == FORGOT
    assert 2 <= forgot <= 20


def test_any_scripted_user_has_personas_and_a_misheard_question_does_not_count() -> None:
    heard: list[int] = []

    def reply(task: Task, messages: Sequence[Message], seed: int) -> str:
        heard.append(len(messages))
        return f"Answer {len(messages) // 2}. And more." if "?" in messages[-1].content else "No."

    user, messages = WithPersona(ScriptedUser(reply), "misunderstanding"), [Message("user", "I want f.")]
    assert user.name == "scripted:misunderstanding"
    for seed in range(30):
        messages.append(Message("assistant", "Which?"))
        messages.append(Message("user", user.reply(TASK, messages, seed)))
    answers = [message.content for message in messages[2::2]]
    taken_wrongly = [words for words in answers if words.startswith(MISHEARD) or words == "What do you mean?"]
    assert 2 <= len(taken_wrongly) <= 16 and heard == [2 * at for at in range(1, 31 - len(taken_wrongly))]
    terse = WithPersona(ScriptedUser(lambda *_: 'Then "No. 1." is returned. And more.'), "terse")
    assert terse.reply(TASK, messages[:2], 1) == 'Then "No. 1." is returned.'
    terse = WithPersona(ScriptedUser(reply), "terse")
    assert terse.reply(TASK, [Message("user", "I want f."), Message("assistant", "Why?")], 1) == "Answer 1."
    assert all(map(refuses, (*UNKNOWN, *VAGUE, "No.", "Sorry, I am not sure about that."))) and not refuses("Not 7, 8.")


# Who is chosen by settings


def configured(domain: Domain, **simulator: Any) -> Domain:
    return domain.configured(Settings.model_validate({"suite": domain.spec, "simulator": simulator}))


def test_settings_choose_the_user_and_name_it() -> None:
    for persona in get_args(Persona):
        domain = configured(Backend(), kind="described", persona=persona)
        with open_user(domain, None) as user:
            assert user.name == user_name(domain) == "described/1" + ("" if persona == "plain" else f":{persona}")
            assert user.instant  # type: ignore[attr-defined]
    first, second = ({"kind": "llm", "server": {"model": "m", "temperature": heat}} for heat in (0.0, 0.5))
    assert user_name(configured(Backend(), **first)) != user_name(configured(Backend(), **second))
    manners = {persona: configured(Backend(), kind="llm", persona=persona) for persona in ("plain", "terse")}
    prints = [domain.settings.simulator.fingerprint() for domain in manners.values()]
    assert prints[1] == prints[0] | {"persona": "terse"}


@pytest.mark.parametrize(
    ("domain", "simulator", "message"),
    [
        (Frontend(), {"kind": "described"}, "frontend: this domain offers no facts about its tasks"),
        (Backend(), {"kind": "human", "persona": "terse"}, "simulator.persona: a user of kind `human` has no persona"),
    ],
)
def test_what_does_not_fit_is_one_sentence(domain: Domain, simulator: Any, message: str) -> None:
    with pytest.raises(UserError, match=message), open_user(configured(domain, **simulator), None):
        pass


def test_a_persona_of_a_plan_that_is_none_is_one_sentence() -> None:
    domain = with_values(Settings(), {"simulator.persona": "rude"})
    with (
        pytest.raises(UserError, match="there is no `rude`; take one of plain, terse, "),
        open_user(Backend().configured(domain), None),
    ):
        pass


def test_a_model_is_told_facts_in_place_of_the_reference_and_how_to_be() -> None:
    class Silent:
        name = "silent"

        async def say(self, instruction: Any, seed: int) -> str:
            return ""

    messages = [Message("user", "I want f(x)."), Message("assistant", "Why?")]

    def instruction(template: str, persona: Persona) -> str:
        user = LlmSimulator(Silent(), Backend(), template=template, persona=persona)
        return str(asyncio.run(user.instruction(TASK, messages, again=False)))

    terse = instruction("user_facts", "terse")
    assert "- It should return (x multiplied by 7) plus 1." in terse and "x * 7" not in terse
    assert terse.endswith(IN_WORDS["terse"])
    assert instruction("backend_simulator", "plain") == simulator_prompt(TASK, messages, "backend_simulator")
