"""The defaults of a domain: a domain of a dozen lines, and the errors for parts that a domain does not have."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
from pydantic import BaseModel

from sweetrl.backend import Backend
from sweetrl.colbench.dialogue import Environment
from sweetrl.colbench.domain import ANSWER, QUESTION, Domain, Labels
from sweetrl.colbench.leaks import leaks_of
from sweetrl.colbench.users import LlmSimulator
from sweetrl.config.settings import Settings
from sweetrl.errors import UserError
from sweetrl.types import Leak, Message, Score, Split, Task, Trajectory


class Echo(Domain):
    prompt = "Find out what the user wants to hear, then say it."

    def tasks(self, split: Split, count: int, seed: int, difficulty: int) -> Iterator[Task]:
        for number in range(count):
            yield Task(f"{split}-{number}", "Say my word.", f"word{number}")

    def reply(self, task: Task, messages: Sequence[Message], seed: int) -> str:
        return f"It is {task.ground_truth}." if "?" in messages[-1].content else "Ask me."

    def reward(self, task: Task, dialogue: Trajectory) -> float:
        return float((dialogue.answer or "").strip() == task.ground_truth)


class Bare(Domain):
    """Has nothing at all."""


ECHO, BARE = Echo(), Bare()
TASK = next(ECHO.tasks("train", 1, 0, 1))
RECIPE = Task("r", "What do I cook?", "mix(flour, 200) + mix(water, 120)\nbake(30, at=220)\nand then eat all of it")


def messages_of(*texts: str) -> tuple[Message, ...]:
    return tuple(Message("assistant" if at % 2 else "user", text) for at, text in enumerate(texts))


def test_a_dozen_lines_are_a_domain() -> None:
    for last, reward in (("I WANT TO ANSWER: word0", 1.0), ("I WANT TO ANSWER: word1", 0.0)):
        environment = Environment(TASK, ECHO, ECHO.scripted_user(None))
        for reply in ("Hm.", "What is it?", last):
            environment.step(reply)
        heard = [message.content for message in environment.messages if message.role == "user"]
        assert heard == ["Say my word.", "Ask me.", "It is word0."]
        assert (environment.outcome, environment.answer) == ("answered", last.partition(":")[2])
        dialogue = Trajectory(TASK, 0, environment.messages, answer=environment.answer)
        with ECHO.open() as tools:
            assert ECHO.scorer(tools).score([dialogue]) == [Score(reward, semantics="echo")]
        assert ECHO.questions(dialogue) == ["Hm.", "What is it?"]
        assert ECHO.check_score(dialogue) is None and ECHO.diagnose(dialogue, [], 10) == {}
        assert ECHO.judge(TASK, environment.messages, last) is None
    assert ECHO.score(TASK, " word0 ") == Score(1.0, semantics="echo")
    assert ECHO.score(TASK, None).reward == 0.0
    assert (ECHO.name, ECHO.scoring(), ECHO.spec) == ("echo", "echo", f"{Echo.__module__}:Echo")


def test_a_subclass_of_a_built_in_domain_has_its_own_name() -> None:
    class Other(Backend):
        """A subclass of a built-in domain."""

    class Named(Other):
        name, spec = "called", "a.module:Named"

    assert (Backend.name, Backend.spec) == ("backend", "backend")
    assert (Other.name, Other.spec) == ("other", f"{Other.__module__}:{Other.__qualname__}")
    assert (Named.name, Named.spec) == ("called", "a.module:Named")


@pytest.mark.parametrize(
    ("last", "outcome", "answer", "kind"),
    [
        ("I WANT TO ANSWER: word0", "answered", " word0", ANSWER),
        ("Is it word0?", "max_turns_reached", "Is it word0?", QUESTION),
        ("", "max_turns_reached", "", QUESTION),
    ],
)
def test_how_a_dialogue_ends(last: str, outcome: str, answer: str, kind: str) -> None:
    messages = messages_of("Say my word.", last)
    assert (ECHO.outcome(messages), ECHO.final_answer(messages), ECHO.reply_type(last)) == (outcome, answer, kind)
    assert ECHO.outcome(messages_of("Say my word.", last, "Well?")) == ECHO.outcome(()) == "lost"


def test_the_last_reply_counts_as_the_answer() -> None:
    messages = messages_of("Say my word.", "What is it?", "It is word0.", "word0?")
    for outcome, questions in (("answered", 2), ("max_turns_reached", 1), ("user_left", 1), ("lost", 2)):
        dialogue = Trajectory(TASK, 0, messages, outcome=outcome)  # type: ignore[arg-type]
        assert len(ECHO.questions(dialogue)) == questions, outcome


# Prompts


def test_one_prompt_serves_for_all_until_others_are_given() -> None:
    class Wordy(Echo):
        prompts: ClassVar = {"full": "Ask one question at a time, then say it."}

    assert {ECHO.system_prompt(name) for name in ("short", "full", "single")} == {Echo.prompt}
    assert Wordy().system_prompt("full") == Wordy.prompts["full"] != Wordy().system_prompt("single") == Echo.prompt
    with pytest.raises(UserError, match=r"^shrot: there is no such prompt"):
        ECHO.system_prompt("shrot")


def test_the_critic_reads_the_reference_or_what_stands_for_it() -> None:
    assert ECHO.privileged_prompt(TASK) == "The hidden reference is:\nword0\n"
    described = Task("a", "Say it.", "", hidden_information="\nThe word is {red}.\n")
    assert ECHO.privileged_prompt(described) == "The hidden reference is:\nThe word is {red}.\n"
    both = Task("a", "Say it.", "word", hidden_information="red")
    assert ECHO.reference(both) == "word" and "red" not in ECHO.privileged_prompt(both)


# Leaks


def test_a_quotation_of_the_reference_is_a_leak() -> None:
    quoted = "You mix(flour, 200) + mix(water, 120), I think."
    assert ECHO.find_leak(RECIPE, quoted) == Leak("quote", "mix ( flour , 200 ) + mix")
    assert ECHO.find_leak(RECIPE, "Mix 200 of flour with water, bake it at 220.") is None
    assert ECHO.find_leak(TASK, "It is word0.") is None
    hidden = Task("r", "What do I cook?", "", hidden_information=RECIPE.ground_truth)
    assert ECHO.find_leak(hidden, quoted) == ECHO.find_leak(RECIPE, quoted)
    messages = messages_of("What?", "?", "bake(30, at=220), and then", "And?", "eat it")
    assert [(at, leak.kind) for at, leak in leaks_of(RECIPE, messages, ECHO.find_leak)] == [(2, "quote")]


def test_a_task_without_a_reference_has_no_more_to_hide_than_the_prompt() -> None:
    (fragment,) = ECHO.hidden_fragments(Task("a", "Chat with me.", ""))
    assert (fragment.name, fragment.text) == ("the critic's privileged prefix", "Thehiddenreferenceis:")


# What a domain does without


@pytest.mark.parametrize(
    ("ask", "part"),
    [
        (lambda: BARE.tasks("train", 1, 0, 1), "no tasks"),
        (lambda: BARE.scripted_user(None).reply(TASK, messages_of("Say my word.", "?"), 0), "no scripted user"),
        (lambda: BARE.score(TASK, "word0"), "no reward"),
        (lambda: BARE.system_prompt("short"), "no system prompt"),
        (lambda: BARE.demonstrate(TASK, Settings().pretrain, 10, 0), "no scripted agent"),
    ],
)
def test_a_missing_part_is_one_sentence(ask: Callable[[], Any], part: str) -> None:
    with pytest.raises(UserError, match=f"^{Bare.__module__}:Bare: (this|the) domain has {part}"):
        ask()


def test_a_model_plays_the_user_with_the_domains_words(tmp_path: Path) -> None:
    (tmp_path / "user.txt").write_text("{request}|{reference}|{dialogue}")
    (tmp_path / "again.txt").write_text("In other words, please.")

    class Spoken(Echo):
        simulator_template = str(tmp_path / "user.txt")
        reminder_template = str(tmp_path / "again.txt")

    instructions = []

    class Model:
        name = "a-model"

        async def say(self, instruction: str, seed: int) -> str:
            instructions.append(instruction)
            return "Eat it." if "In other words" in instruction else "mix(flour, 200) + mix(water, 120)"

    user = Spoken().model_user("llm", Model, None, leaks="refuse")
    assert isinstance(user, LlmSimulator)
    assert user.reply(RECIPE, messages_of("What do I cook?", "How?"), 0) == "Eat it."
    prompt = f"What do I cook?|{RECIPE.ground_truth}|Person: What do I cook?\nAssistant: How?"
    assert instructions == [prompt, f"{prompt}\n\nIn other words, please."]


# Files and settings


def test_settings_are_a_copys_own() -> None:
    assert (ECHO.settings.suite, ECHO.options) == (Echo.spec, {})
    settings = Settings.model_validate({"suite": Echo.spec, "suite_options": {"loud": True}, "agent": {"max_turns": 3}})
    loud = ECHO.configured(settings)
    assert isinstance(loud, Echo) and loud.settings is settings and loud.options == {"loud": True}
    assert loud.evaluation_rules() == [{"loud": True}] != ECHO.evaluation_rules()
    assert ECHO.settings.agent.max_turns != 3 and ECHO.options == {}


def test_options_that_any_model_of_choices_does_not_have_are_refused() -> None:
    class Choices(BaseModel):
        depth: int = 2

    class Deep(Echo):
        choices = Choices()

    assert Deep().configured(Settings.model_validate({"suite_options": {"depth": 3}})).choices == Choices(depth=3)
    with pytest.raises(UserError, match="suite_options: unknown parameter `dpeth`; remove it"):
        Deep().configured(Settings.model_validate({"suite_options": {"dpeth": 3}}))


def test_a_reward_of_ones_own_has_no_bounds_and_the_plain_names() -> None:
    backend = Backend()
    assert backend.reward_bounds == (0.0, 1.0) and backend.shown_labels == backend.labels
    own = backend.configured(Settings.model_validate({"reward": {"function": "somewhere:brief"}}))
    assert own.reward_bounds == (-math.inf, math.inf)
    assert own.labels == backend.labels and own.labels.reward == "Tests passed"
    shown = own.shown_labels
    assert (shown.reward, shown.reward_axis, shown.reward_title) == ("Mean reward", "reward, %", "Rewards")
    assert (shown.decided, "Success is what the domain itself says" in shown.measured) == (Labels.decided, True)
    assert (shown.answer, shown.success, shown.faults) == ("program", "Success rate", backend.labels.faults)


def test_a_price_of_questions_lowers_the_least_reward_and_takes_the_plain_names() -> None:
    values = {"reward": {"turn_cost": 0.02}, "agent": {"max_turns": 6}}
    priced = Backend().configured(Settings.model_validate(values))
    assert priced.reward_bounds == (-0.1, 1.0) and priced.reward_range == (0.0, 1.0)
    shown = priced.shown_labels
    assert (shown.reward, shown.success, shown.answer) == ("Mean reward", "Success rate", "program")
    assert shown.measured.endswith("the mean reward is taken over tasks (less 0.02 for each question)")
    both = Backend().configured(Settings.model_validate(values | {"reward": {"turn_cost": 0.02, "function": "a:b"}}))
    assert both.reward_bounds == (-math.inf, math.inf)


# At a terminal


def test_code_stands_apart_from_words() -> None:
    class Program(Echo):
        syntax = "python"

    text = "Here:\n```python\nx = 1\n```\nDone."
    assert Program().display(text) == [("", "Here:"), ("python", "x = 1"), ("", "Done.")]
    assert Program().display("```python\nx = 1\n```") == [("python", "x = 1")]
    assert ECHO.display(text) == [("", text)] and ECHO.file_of(text) is None
