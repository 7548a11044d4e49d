"""What agents and users work on together: a domain has tasks, a user, a reward, and a say in everything about them.

docs/extending.md shows a domain in ten lines, `params.yaml: suite: my_package.echo:Echo` takes it through every stage.
Everything but tasks, user and reward has a default; Backend Programming and Frontend Design override most of them.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from sweetrl.colbench import leaks
from sweetrl.colbench.described import Fact, no_facts
from sweetrl.colbench.jsonl import TaskRow, read_as
from sweetrl.colbench.markers import marked_answer, visible_reply
from sweetrl.colbench.prompts import AGENT_PROMPTS, agent_prompt, load_prompt, render
from sweetrl.colbench.scoring import RewardScorer
from sweetrl.colbench.users import LlmSimulator, ScriptedUser
from sweetrl.errors import UserError
from sweetrl.types import (
    ANSWER_MARKER,
    Demonstration,
    Judgment,
    Leak,
    Message,
    Outcome,
    Report,
    Result,
    Score,
    Split,
    Task,
    TestRun,
    Trajectory,
)

if TYPE_CHECKING:
    from typing import Self

    from sweetrl.config.settings import CriticSettings, DialogueSettings, EvaluateSettings, PretrainSettings
    from sweetrl.protocols import Scorer, Speaker, Tools, UserSimulator

QUESTION, ANSWER = "question", "answer"


@dataclass(frozen=True)
class Pretraining:
    """How a small base agent of a domain is pre-trained (stage `pretrain`).

    `words` are the values that are copied from the user's words, each with the blank before it; `numbers`: so are the
    numbers below it, but for `constants`. `revises`: each reply holds the whole answer again, and what changes
    in it is what counts. `pieces`: whole pieces of the texts are tokens. `positions` is the context.
    """

    words: tuple[str, ...] = ()
    numbers: int = 0
    constants: tuple[int, ...] = ()
    revises: bool = False
    pieces: bool = False
    positions: int = 2048


@dataclass(frozen=True)
class Labels:
    """What things are called in reports: the answer that is handed over, success, the mean reward, what goes wrong.

    `decided` and `measured` say who decided and what success and the mean are, as parts of sentences.
    `faults` are rows of a table: (key of the policy's summary, label, whether more is better).
    """

    answer: str = "answer"
    success: str = "Success rate"
    reward: str = "Mean reward"
    reward_axis: str = "reward, %"
    reward_title: str = "Rewards"
    decided: str = "the reward decided"
    measured: str = "Success is a reward of 1, the mean reward is taken over tasks"
    faults: tuple[tuple[str, str, bool], ...] = (
        ("answered", "Ended with an answer", True),
        ("max_turns_reached", "Reached the last turn without one", False),
        ("premature_answers", "Answered with turns left, before every hidden detail was told", False),
        ("details_brought_out", "Hidden details that a question brought out", True),
        ("repeated_questions", "Questions that repeat an earlier one", False),
        ("irrelevant_questions", "Questions about nothing that matters here", False),
        ("forgotten_details", "Details told, but missing from the answer", False),
        ("mistaken_details", "Details told, but with another value in the answer", False),
    )


class Domain:
    """A domain: the defaults suit dialogues in which the agent asks questions and then answers, once."""

    name: str = ""
    """A short name for people; empty: the class's, in small letters."""
    prompt: str = ""
    """The agent's system prompt `short` (and `full`, `single`, unless `prompts` has them)."""
    prompts: Mapping[str, str] = {}
    """System prompts by the names that `agent.prompt` takes."""
    shipped_prompts: str = ""
    """What the names of its system prompts begin with, if they come with the project; they name `agent.max_turns`."""
    privileged_template: str = "privileged_reference"
    """The prompt (shipped, or a file) that puts the training-time information in front of the critic."""
    simulator_template: str = "user_simulator"
    """The instruction that makes a language model play the user."""
    reminder_template: str = "user_simulator_reminder"
    """What such a model is told when its last reply leaked."""
    judge_template: str = "judge_any"
    """The instruction of a language model that compares two replies."""
    reply_characters: int = 400
    """The user's replies are cut here unless `simulator.reply_characters` says otherwise."""
    reply_types: tuple[str, ...] = (QUESTION, ANSWER)
    """What kinds of replies there are (`reply_type`)."""
    contrasts: tuple[tuple[str, str], ...] = ()
    """Verdicts of `judge` (better, worse): what a good critic ranks higher, and what lower."""
    reward_range: tuple[float, float] = (0.0, 1.0)
    """The least and the greatest reward."""
    measure: str = "success"
    """What a comparison of policies is about first: `success` or `reward`."""
    syntax: str = "text"
    """The language of references and answers, for highlighting."""
    model_kind: str = "llm"
    """The kind of model that can play the user: `llm`, or `vision` where pictures must be seen."""
    spec: str = ""
    """The domain as params.yaml names it (`suite`)."""
    options: Mapping[str, Any] = {}
    """What params.yaml says under `suite_options`."""
    choices: Any = None
    """The same as a pydantic model, where the class gives one with its defaults: other options are refused then."""
    _settings: DialogueSettings | None = None

    @property
    def labels(self) -> Labels:
        """What things are called in reports."""
        return Labels()

    @property
    def shown_labels(self) -> Labels:
        """`labels`, but for the reward's where it is not the domain's own (`reward.function`, `reward.turn_cost`)."""
        reward = self.settings.reward
        if not reward.function and not reward.turn_cost:
            return self.labels
        plain = {name: getattr(Labels, name) for name in ("reward", "reward_axis", "reward_title", "decided")}
        measured = "Success is what the domain itself says, the mean reward is taken over tasks"
        measured += f" (less {reward.turn_cost:g} for each question)" if reward.turn_cost else ""
        return replace(self.labels, **plain, measured=measured)

    @property
    def reward_bounds(self) -> tuple[float, float]:
        """`reward_range`, less what questions cost at most; without ends where there is a `reward.function`."""
        if self.settings.reward.function:
            return -math.inf, math.inf
        least, greatest = self.reward_range
        return least - self.settings.reward.turn_cost * (self.settings.agent.max_turns - 1), greatest

    @property
    def pretraining(self) -> Pretraining:
        """How a small base agent is pre-trained."""
        return Pretraining()

    # Settings

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        if "name" not in cls.__dict__:
            cls.name = cls.__name__.lower()
        if "spec" not in cls.__dict__:
            cls.spec = f"{cls.__module__}:{cls.__qualname__}"

    @property
    def settings(self) -> DialogueSettings:
        """The settings that the domain works with; the defaults until `configured` gave it others."""
        if self._settings is None:
            from sweetrl.config.settings import Settings

            self._settings = Settings.model_validate({"suite": self.spec})
        return self._settings

    def configured(self, settings: DialogueSettings) -> Self:
        """Return this domain with `settings` (its own are `suite_options`); UserError for an unknown option."""
        domain = copy.copy(self)
        domain._settings, domain.options = settings, settings.suite_options
        if self.choices is not None:
            from sweetrl.config.settings import section

            domain.choices = section(type(self.choices), domain.options, "params.yaml: suite_options")
            if unknown := domain.options.keys() - domain.choices.model_fields_set:  # of a model that ignores others
                raise UserError(f"params.yaml: suite_options: unknown parameter `{min(unknown)}`; remove it.")
        return domain

    # Tasks and their files

    def tasks(self, split: Split, count: int, seed: int, difficulty: int) -> Iterator[Task]:
        """Yield `count` generated tasks of `split`, the same for equal arguments; contents of the splits differ."""
        raise UserError(
            f"{self.spec}: this domain has no tasks of its own; set `tasks.source: files` and name task files."
        )

    def parse_task(self, row: dict[str, Any], where: str, default_id: str) -> Task:
        """Build a Task from one row of a task file; `where` opens every message."""
        read = read_as(TaskRow, row, where)
        return Task(
            id=default_id if read.id is None else read.id,
            problem_description=read.problem_description,
            ground_truth=read.ground_truth,
            test_cases=tuple((read.test_cases or {}).items()),
            hidden_information=read.hidden_information,
            suite=self.spec,
        )

    def read_answer(self, answer: str | None, messages: Sequence[Message]) -> str | None:
        """Return the answer of a dialogue in a trajectory file, whose row says `answer`."""
        return answer

    def own(self, task: Task) -> Task:
        """Return `task` with this domain's name on it."""
        return task if task.suite == self.spec else replace(task, suite=self.spec)

    # Prompts

    def system_prompt(self, name_or_path: str) -> str:
        """Return the agent's system prompt: `short`, `full` or `single` (to answer at once), or the text of a file."""
        if name_or_path not in AGENT_PROMPTS:
            return load_prompt(name_or_path)
        if self.shipped_prompts:
            return agent_prompt(self.shipped_prompts, name_or_path, self.settings.agent.max_turns)
        text = self.prompts.get(name_or_path) or self.prompt
        if not text:
            raise UserError(f"{self.spec}: the domain has no system prompt; give the class a `prompt`.")
        return text

    def privileged_prompt(self, task: Task) -> str:
        """Return the text that puts the training-time information c in front of the critic's system prompt.

        Few words around it, because a small critic reads them at every turn. Only the critic may see it.
        """
        return render(self.privileged_template, reference=self.reference(task)) + "\n"

    def reference(self, task: Task) -> str:
        """Return the training-time information c in words: the reference, or the hidden information without one."""
        return (task.ground_truth or task.hidden_information or "").strip("\n")

    def reference_answer(self, task: Task) -> tuple[str, str]:
        """Return what opens a reply that hands over the reference, and the reference (for `grpo.credit: igpo`)."""
        return f"{ANSWER_MARKER}\n", self.reference(task)

    # The dialogue

    def answers(self, visible: str) -> bool:
        """Whether what the user sees of a reply ends the dialogue: it holds "I WANT TO ANSWER:"."""
        return marked_answer(visible) is not None

    def outcome(self, messages: Sequence[Message]) -> Outcome:
        """Return how a dialogue from a file ended: with an answer, at the last turn without one, or broken off."""
        if not messages or messages[-1].role != "assistant":
            return "lost"
        return "answered" if self.answers(messages[-1].content) else "max_turns_reached"

    def final_answer(self, messages: Sequence[Message]) -> str | None:
        """Return the answer of a dialogue that ends with the last of `messages`: what follows the marker, or all."""
        visible = messages[-1].content
        answer = marked_answer(visible)
        return visible if answer is None else answer

    def visible(self, raw: str) -> str:
        """Return what the user sees of a raw reply: no thoughts, and no more than "OUTPUT:" lets through."""
        return visible_reply(raw, self.settings.model.marks)

    def reply_type(self, text: str) -> str:
        """Return what kind of reply a raw text is, one of `reply_types`."""
        return ANSWER if self.answers(self.visible(text)) else QUESTION

    # The user

    def reply(self, task: Task, messages: Sequence[Message], seed: int) -> str:
        """Say what the scripted user replies to the last of `messages` (see UserSimulator.reply)."""
        raise UserError(
            f"{self.spec}: this domain has no scripted user; set `simulator.kind` to `llm`, `replay` or `human`."
        )

    def scripted_user(self, tools: Tools) -> UserSimulator:
        """Return the scripted user; by default one who says what `reply` returns."""
        return ScriptedUser(self.reply)

    def scripted_option(self, name: str, default: Any) -> Any:
        """Return the scripted user's option `name` ("": it has none); another in `simulator.options` is a UserError."""
        options = self.settings.simulator.options if self.settings.simulator.kind == "scripted" else {}
        if unknown := options.keys() - {name}:
            raise UserError(
                f"params.yaml: simulator.options: the scripted user has no option `{min(unknown)}`"
                + (f"; it has `{name}`." if name else "; it has none.")
            )
        return options.get(name, default)

    def facts(self, task: Task) -> Sequence[Fact]:
        """Return what the user of kind `described` knows about `task`, in sentences that give no reference away."""
        raise no_facts(self.spec)

    def knows(self, task: Task) -> bool:
        """Whether the scripted user can answer about `task`."""
        return True

    def model_user(self, kind: str, speaker: Callable[[], Speaker], tools: Tools, **how: Any) -> UserSimulator:
        """Return the user whom a language model (`llm`) or a vision model (`vision`) plays.

        `speaker` makes the model, `how` are LlmSimulator's further arguments.
        """
        if kind != "llm":
            raise _sees_pages("simulator.kind", kind)
        return LlmSimulator(speaker(), self, **how)

    # Scores

    @contextmanager
    def open(self) -> Iterator[Tools]:
        """Yield what the scripted user and the scorer need while dialogues go on (a sandbox, a browser)."""
        yield None

    def reward(self, task: Task, dialogue: Trajectory) -> float | Mapping[str, float]:
        """Return the reward of a finished dialogue, or its named parts; a dialogue without an answer has None there."""
        raise UserError(f"{self.spec}: the domain has no reward; give the class a method `reward`, or a `scorer`.")

    def scorer(self, tools: Tools) -> Scorer:
        """Return what scores finished dialogues; by default `reward`, one by one."""
        return RewardScorer(self.reward, self.name, self.reward_range)

    def score(self, task: Task, answer: str | None, dialogue: Trajectory | None = None) -> Score:
        """Score an answer, or a `dialogue`; opens what it needs for that (many at once: `open`)."""
        dialogue = dialogue or Trajectory(task, 0, (Message("user", task.problem_description),), answer=answer)
        with self.open() as tools:
            return self.scorer(tools).score([dialogue])[0]

    def check_score(self, trajectory: Trajectory) -> str | None:
        """Say what is wrong with a scored trajectory's reward (without `reward.turn_cost`), or None."""
        return None

    def unsettled_tests(self, tasks: Sequence[Task], hash_seed: int = 0) -> list[str]:
        """Return for each task a test whose verdict changes from run to run (with that seed of hashes), or ""."""
        return [""] * len(tasks)

    def scoring(self) -> str:
        """Return what computes the reward, for reports."""
        return self.name

    def scoring_with_price(self) -> str:
        """Return what computes the rewards, for reports: `reward.function` or the domain's own, and the price."""
        reward = self.settings.reward
        price = f", less {reward.turn_cost:g} a question" if reward.turn_cost else ""
        return (reward.function or self.scoring()) + price

    def evaluation_rules(self) -> list[Any]:
        """Return which settings decide what a dialogue's reward is: evaluations with others are never compared."""
        return [dict(self.options)]

    # Leaks

    def find_leak(self, task: Task, words: str) -> Leak | None:
        """Return the first thing in the user's `words` that gives the reference away, or None."""
        return leaks.find_quote(task, words)

    def telling(self, text: str, lines: int) -> bool:
        """Whether nobody says a stretch (of one or two `lines`) of the reference by chance: for `hidden_fragments`."""
        return lines > 1 or bool(set("=([{<") & set(text))

    def hidden_fragments(self, task: Task) -> tuple[leaks.Fragment, ...]:
        """Return everything of the training-time information that nobody may say to the actor word for word."""
        opening = self.privileged_prompt(task)
        if reference := self.reference(task):
            opening = opening.split(reference)[0]
        return leaks.hidden_fragments(task, self.telling, opening)

    # What replies and dialogues are worth

    def judge(self, task: Task, earlier: Sequence[Message], reply: str) -> Judgment | None:
        """Return what `reply` to the dialogue `earlier` is worth, known from how the task was made; None: unknown."""
        return None

    def questions(self, trajectory: Trajectory) -> list[str]:
        """Return the agent's questions in a dialogue, in order."""
        replies = [message.content for message in trajectory.messages if message.role == "assistant"]
        if trajectory.outcome in ("max_turns_reached", "user_left"):
            replies = replies[:-1]  # the last reply counts as the answer
        return [reply for reply in replies if self.reply_type(reply) == QUESTION]

    def diagnose(self, trajectory: Trajectory, questions: Sequence[str], max_turns: int) -> dict[str, Any]:
        """Return what went wrong, as columns of sweetrl.types.Result; nothing for a task that says too little."""
        return {}

    def own_critic(self, critic: CriticSettings) -> Any:
        """Return a critic of a kind that only this domain has (`critic.parameterization`).

        Its `fit(dialogues, pairs, scratch, where)` trains it and returns a TrainingResult, its `load(folder)` returns
        the trained critic (sweetrl.protocols.Critic).
        """
        raise _sees_pages("critic.parameterization", critic.parameterization)

    # Evaluation and report

    def examine(
        self,
        dialogues: Mapping[str, Sequence[Trajectory]],
        results: Sequence[Result],
        tools: Tools,
        evaluate: EvaluateSettings,
    ) -> tuple[dict[str, Any], Callable[[Report], str] | None]:
        """Look at two policies' dialogues (by policy) while the tools are open.

        Returns what evaluation.json says more about them, by key, and what makes the report as HTML; None takes the
        usual one (evaluation.report.render).
        """
        return {}, None

    # Pre-training of a small base agent

    def pretraining_tasks(self, count: int, seed: int, difficulty: int) -> Iterator[Task]:
        """Yield the tasks of the demonstrations; none has the content of a test task."""
        return self.tasks("train", count, seed, difficulty)

    def demonstrate(self, task: Task, settings: PretrainSettings, max_turns: int, seed: int) -> Demonstration:
        """Play one dialogue of an imperfect scripted agent; a function of its arguments."""
        raise UserError(f"{self.spec}: the domain has no scripted agent (`demonstrate`) to pre-train a base agent on.")

    # What people are shown, at a terminal and in a browser

    def display(self, text: str) -> list[tuple[str, str]]:
        """Return a message in pieces (language, text) for highlighting; plain words have no language."""
        before, fence, rest = text.partition(f"```{self.syntax}\n")
        if not fence:
            return [("", text)]
        code, _, after = rest.partition("```")
        pieces = [("", before.rstrip()), (self.syntax, code.rstrip()), ("", after.strip())]
        return [(language, piece) for language, piece in pieces if piece.strip()]

    def file_of(self, text: str) -> tuple[str, str] | None:
        """Return (ending, content) of what a reply hands over that people look at with another program, or None."""
        return None

    def picture(self, content: str) -> bytes | None:
        """Return what `file_of` hands over as people see it, as PNG; None where it is nothing to be seen."""
        return None

    def run_tests(self, task: Task, answer: str) -> list[TestRun]:
        """Run the hidden tests of `task` on `answer` once more, with all values; nothing where there are no tests."""
        return []


def _sees_pages(key: str, kind: str) -> UserError:
    return UserError(f"{key}: `{kind}` looks at pages; set `suite: frontend` or take another.")
