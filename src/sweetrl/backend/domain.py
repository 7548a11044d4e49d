"""Backend Programming as a domain: its tasks, user, reward, and what replies about programs are worth."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from sweetrl.backend import leaks
from sweetrl.backend.facts import facts_of
from sweetrl.backend.suite import ScriptedSimulator, generate
from sweetrl.backend.suite.agents import demonstrate
from sweetrl.backend.suite.details import CURRENCIES
from sweetrl.backend.suite.judge import WORTH, faults, judge_reply
from sweetrl.backend.suite.tasks import read_facts
from sweetrl.backend.suite.topics import DOMAINS
from sweetrl.backend.suite.users import PERSONAS
from sweetrl.colbench import demonstrator
from sweetrl.colbench.described import Fact
from sweetrl.colbench.domain import Domain, Labels, Pretraining
from sweetrl.config.sections import Section
from sweetrl.errors import UserError
from sweetrl.types import ANSWER_MARKER, Demonstration, Judgment, Leak, Message, Split, Task, TestRun, Trajectory

if TYPE_CHECKING:
    from sweetrl.backend.rewards import CodeScorer
    from sweetrl.config.settings import PretrainSettings
    from sweetrl.protocols import Scorer, UserSimulator

REWARD_TOLERANCE = 1e-6


class BackendOptions(Section):
    """`suite_options` of the domain."""

    hints: Literal["grid", "plain"] = Field(
        "grid",
        description="How the requests of generated tasks name what is worth asking for: by two words of which neither "
        "alone tells it (`grid`), or in the words of the questions (`plain`), for a pretrained model and little data.",
    )


class Backend(Domain):
    """ColBench Backend Programming: ask what the function must do, then write it.

    The training-time information is the reference program. The reward is the share of hidden unit tests passed, scored
    in the sandbox (settings: section `reward`). Without task files the tasks are those of a synthetic suite.
    """

    name = spec = "backend"
    shipped_prompts = "backend"
    privileged_template = "privileged"
    simulator_template = "backend_simulator"
    reminder_template = "backend_simulator_reminder"
    judge_template = "judge"
    syntax = "python"
    choices = BackendOptions()
    contrasts = (
        ("needed", "hinted"),
        ("needed", "plausible"),
        ("needed", "irrelevant"),
        ("needed", "repeated"),
        ("needed", "premature"),
        ("hinted", "plausible"),
        ("hinted", "premature"),
        ("plausible", "irrelevant"),
        ("complete", "mistaken"),
        ("complete", "irrelevant"),
        ("complete", "repeated"),
    )

    @property
    def labels(self) -> Labels:
        """The answer is a program, the reward the share of hidden tests passed."""
        return Labels(
            answer="program",
            reward="Tests passed",
            reward_axis="hidden tests passed, %",
            reward_title="How many tests were passed",
            decided="hidden unit tests decided",
            measured="Success is passing every hidden test of a task, tests passed the mean share over tasks",
            faults=(
                *Labels.faults[:-2],
                ("unhinted_questions", "Questions at which the request did not hint", False),
                ("forgotten_details", "Details told, but missing from the program", False),
                ("mistaken_details", "Details told, but with another value in the program", False),
            ),
        )

    # Tasks

    def tasks(self, split: Split, count: int, seed: int, difficulty: int) -> Iterator[Task]:
        """Yield tasks of the synthetic suite."""
        return generate(split, count, seed, difficulty, hints=self.choices.hints)

    def parse_task(self, row: dict[str, Any], where: str, default_id: str) -> Task:
        """Build a Task, which has at least one unit test."""
        from sweetrl.backend.rewards import checks_of

        task = super().parse_task(row, where, default_id)
        if not task.test_cases:
            raise UserError(f"{where}: `test_cases` is missing or empty; a task needs at least one unit test.")
        try:
            checks_of(task.test_cases, self.settings.reward.semantics != "fixed")
        except UserError as error:
            raise UserError(f"{where}: {error}") from error
        return task

    def reference_answer(self, task: Task) -> tuple[str, str]:
        """Return the marker and the fence as the prompts ask for them, and the reference program."""
        return f"{ANSWER_MARKER}\n```python\n", self.reference(task)

    # The user and the score

    def scripted_user(self, tools: Any) -> UserSimulator:
        """Return the user of the synthetic suite, who answers from a task's hidden facts."""
        self.scripted_option("", None)
        persona = self.settings.simulator.persona
        return ScriptedSimulator(persona if persona in PERSONAS else "plain")

    def facts(self, task: Task) -> Sequence[Fact]:
        """Return what a reference program does, in sentences."""
        return facts_of(task)

    def knows(self, task: Task) -> bool:
        """Whether `task` is one of the synthetic suite."""
        return bool(read_facts(task.hidden_information))

    @contextmanager
    def open(self) -> Iterator[CodeScorer]:
        """Yield the sandbox's scorer, which starts with the first answer."""
        from sweetrl.backend.rewards import CodeScorer

        with CodeScorer(self.settings.reward) as scorer:
            yield scorer

    def scorer(self, tools: CodeScorer) -> Scorer:
        """Return the scorer that `open` yields."""
        return tools

    def check_score(self, trajectory: Trajectory) -> str | None:
        """The reward must be the share of the task's hidden tests that passed."""
        tests, reward = trajectory.tests, trajectory.reward
        if not tests:
            return None
        names, expected = [test.name for test in tests], [name for name, _ in trajectory.task.test_cases]
        if names != expected:
            return f"{len(names)} test results, the task has {len(expected)} tests or others"
        passed = sum(test.passed for test in tests)
        if reward is not None and abs(reward - passed / len(tests)) > REWARD_TOLERANCE:
            return f"the reward is {reward:g}, but {passed} of {len(tests)} tests passed"
        return None

    def unsettled_tests(self, tasks: Sequence[Task], hash_seed: int = 0) -> list[str]:
        """Run the references twice, and return for each task a test whose value differs."""
        from sweetrl.backend.rewards import unsettled_tests

        return unsettled_tests(self.settings.reward, tasks, hash_seed)

    def scoring(self) -> str:
        """Return the semantics of the tests."""
        return self.settings.reward.semantics

    def evaluation_rules(self) -> list[Any]:
        """Return the semantics of the tests."""
        return [self.settings.reward.semantics]

    def find_leak(self, task: Task, words: str) -> Leak | None:
        """Return code, or a quotation of the reference, in the user's words."""
        return leaks.find_leak(task, words)

    # What replies are worth

    def judge(self, task: Task, earlier: Sequence[Message], reply: str) -> Judgment | None:
        """Return the worth of a reply to a task of the synthetic suite."""
        verdict = judge_reply(task, earlier, self.visible(reply))
        return None if verdict is None else Judgment(WORTH[verdict], verdict)

    def diagnose(self, trajectory: Trajectory, questions: Sequence[str], max_turns: int) -> dict[str, Any]:
        """Return what went wrong in a dialogue about a task of the synthetic suite."""
        return faults(trajectory, questions, max_turns)

    # For people

    def run_tests(self, task: Task, answer: str) -> list[TestRun]:
        """Run each hidden test in a child of its own, in the sandbox."""
        from sweetrl.backend.rewards import run_tests

        return run_tests(self.settings.reward, task, answer)

    # Pre-training

    @property
    def pretraining(self) -> Pretraining:
        """Numbers and currencies are copied from the user's words into the program."""
        return Pretraining(tuple(f" {currency}" for currency in CURRENCIES), numbers=200, constants=(0, 100))

    def pretraining_tasks(self, count: int, seed: int, difficulty: int) -> Iterator[Task]:
        """Yield training tasks of all domains: the base learns the words of those too that only the test split has."""
        return generate("train", count, seed, difficulty, DOMAINS, self.choices.hints)

    def demonstrate(self, task: Task, settings: PretrainSettings, max_turns: int, seed: int) -> Demonstration:
        """Play one dialogue of an imperfect agent; for tasks outside the synthetic suite, one that asks for facts."""
        play = demonstrate if self.knows(task) else partial(demonstrator.demonstrate, self)
        return play(task, settings, max_turns, seed)
