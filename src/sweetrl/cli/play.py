"""`sweetrl play`: a user at the terminal is the user of a task, and the trained agent writes the answer.

The user takes the user simulator's place in an ordinary rollout, so protocol, token ids and scoring are those of
training and evaluation.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from sweetrl.cli.show import load_critic, print_message, print_tests
from sweetrl.colbench.find import load_domain
from sweetrl.config.settings import Settings
from sweetrl.errors import SimulatorError, UserError
from sweetrl.io import write_text
from sweetrl.paths import POLICY, TEST_TASKS
from sweetrl.types import AgentTurn, Message, Task, Trajectory

if TYPE_CHECKING:
    from sweetrl.api.learning import TrainedCritic
    from sweetrl.colbench.domain import Domain
    from sweetrl.console.screen import Screen
    from sweetrl.engines.policy import Policy


class TerminalUser:
    """The user is whoever sits at the terminal; the end of the input (Ctrl-D) ends the dialogue.

    What the agent hands over and a terminal cannot show (a page) is written to `folder`, and the file is named.
    """

    name = "human"
    serial = True

    def __init__(self, console: Screen, domain: Domain, folder: Path, critic: TrainedCritic | None = None) -> None:
        self.console, self.domain, self.folder, self.critic = console, domain, folder, critic
        self.task: Task | None = None

    def reply(self, task: Task, messages: Sequence[Message], seed: int) -> str:
        """Show the agent's words, and what a critic thinks of them, and return what the user types."""
        self.task = task
        self.show(messages)
        try:
            said = self.console.input("[bold green]you[/] > " if self.console.is_terminal else "").strip()
        except EOFError:
            raise SimulatorError("you left the dialogue") from None
        if not self.console.is_terminal:  # piped words leave no trace of their own
            print_message(self.console, Message("user", said), self.domain)
        return said

    def show(self, messages: Sequence[Message]) -> None:
        """Show the last of `messages`, the agent's."""
        message, advantage = messages[-1], self.advantage(messages)
        if file := self.domain.file_of(message.content):
            words = "\n".join(text for language, text in self.domain.display(message.content) if not language)
            path = self.keep(f"turn-{sum(one.role == 'assistant' for one in messages)}{file[0]}", file[1])
            message = Message("assistant", f"{words}\n[{path}]".strip())
        print_message(self.console, message, self.domain, advantage=advantage)

    def advantage(self, messages: Sequence[Message]) -> float | None:
        """Return the advantage of the agent's last words; None without a critic."""
        if self.critic is None or self.task is None:
            return None
        turns = tuple(AgentTurn(index, one.content) for index, one in enumerate(messages) if one.role == "assistant")
        return self.critic.advantages(Trajectory(self.task, 0, tuple(messages), turns))[-1]

    def keep(self, name: str, content: str) -> Path:
        """Write a file for people to open, and return where it is."""
        path = self.folder / name
        write_text(path, content)
        return path


def play_task(
    settings: Settings,
    console: Screen,
    reference: str,
    tasks: Path | None,
    policy: str,
    seed: int,
    blind: bool,
    critic: Path | None = None,
) -> Trajectory:
    """Play one dialogue at the terminal, score it, print the verdict; return the scored trajectory.

    With `critic`, the folder of a trained one, each reply comes with its advantage.
    """
    domain = load_domain(settings)
    task = find_task(reference, tasks, domain)
    console.print(f"loading the agent ({policy}) ...", style="dim")
    agent = load_agent(policy, settings)
    judge = None if critic is None else load_critic(domain, critic)
    user = TerminalUser(console, domain, Path(tempfile.mkdtemp(prefix="sweetrl-play-")), judge)
    introduce(user, task, settings.agent.max_turns, blind)
    return play(domain, user, task, agent, seed)


def play(domain: Domain, user: TerminalUser, task: Task, agent: Policy, seed: int) -> Trajectory:
    """Run the dialogue, score its answer and print the verdict."""
    from sweetrl.api import rollouts

    console = user.console
    with rollouts.opened(domain) as environment, rollouts.serving([agent]) as (served,):
        one = rollouts.attempt_one(replace(environment, simulator=user), served, task, seed)
    if one.outcome == "lost":
        console.print(f"\nThe dialogue ended without an answer: {one.error}.", style="yellow")
        return one
    user.show(one.messages)
    if not domain.answers(one.messages[-1].content):
        console.print("Out of turns: the last reply is the answer.", style="yellow")
    print_tests(console, one, domain.run_tests(one.task, one.answer) if one.tests and one.answer is not None else ())
    return one


def introduce(user: TerminalUser, task: Task, max_turns: int, blind: bool) -> None:
    """Tell the user who they are and what they want; what they know and the agent does not, unless `blind`."""
    from rich.panel import Panel
    from rich.syntax import Syntax
    from rich.text import Text

    console, domain = user.console, user.domain
    asked = Text(task.problem_description)
    console.print(Panel(asked, title=Text(f"task {task.id}: you ask for"), border_style="green"))
    if not blind:
        if task.hidden_information:
            known = Text(task.hidden_information)
            console.print(Panel(known, title="what only you know", border_style="magenta"))
        if found := domain.file_of(task.ground_truth):
            path = user.keep(f"wanted{found[0]}", found[1])
            console.print(f"what you have in mind (never paste it): {path}", style="magenta")
        elif task.ground_truth:
            wanted = Syntax(task.ground_truth, domain.syntax, background_color="default", word_wrap=True)
            console.print(Panel(wanted, title="what you have in mind (never paste it)", border_style="magenta"))
    console.print(
        f"The agent has {max_turns} turns. Answer its questions in a sentence or two; Ctrl-D leaves.\n", style="dim"
    )


def find_task(reference: str, tasks: Path | None, domain: Domain) -> Task:
    """Return the task called `reference` (an id or a number) in a table or file.

    Without a file: the pipeline's test tasks, or where it has not run yet, freshly generated ones (only by number).
    """
    if tasks is None and not TEST_TASKS.exists():
        return _generated(reference, domain)
    from sweetrl.stages.standalone import read_any_tasks

    found = read_any_tasks(tasks or TEST_TASKS, domain)
    for task in found:
        if task.id == reference:
            return task
    if reference.isdecimal() and int(reference) < len(found):
        return found[int(reference)]
    raise UserError(
        f"{tasks or TEST_TASKS}: there is no task {reference!r}; give one of its ids (the first is {found[0].id!r}) "
        f"or a number from 0 to {len(found) - 1}."
    )


def _generated(reference: str, domain: Domain) -> Task:
    if not reference.isdecimal():
        raise UserError(
            f"{TEST_TASKS}: not there yet, so there is no task {reference!r}; give a number, or run `sweetrl run`."
        )
    settings, count = domain.settings, domain.settings.tasks.test
    # No more than the pipeline would make: each one before it is made, too.
    if len(reference.lstrip("0")) < 10:
        made = islice(domain.tasks("test", count, settings.seed, settings.tasks.difficulty), count)
        for task in islice(made, int(reference), None):
            return domain.own(task)
    raise UserError(
        f"{TEST_TASKS}: not there yet, and of the tasks to be made (`tasks.test`: {count}) there is no number "
        f"{reference[:20]}; give a lower one from 0, or run `sweetrl run`."
    )


def load_agent(policy: str, settings: Settings) -> Policy:
    """Return the agent to talk with.

    `policy` is "auto" (the trained adapter if there is one, else the base), "policy", "base", an adapter's folder, or
    a registered MODEL@ALIAS.
    """
    from sweetrl.engines.policy import Policy

    return Policy(settings.model, settings.engine, _adapter(policy, settings))


def _adapter(policy: str, settings: Settings) -> Path | None:
    if policy == "auto":
        return POLICY if POLICY.exists() else None
    if policy == "base":
        return None
    if policy == "policy":
        return POLICY
    if "@" in policy:
        return _registered(policy, settings)
    from sweetrl.models.load import check_adapter
    from sweetrl.tracking.chat_agent import refuse_critic

    refuse_critic(Path(policy), check_adapter(policy))
    return Path(policy)


def _registered(policy: str, settings: Settings) -> Path:
    import atexit
    import shutil

    from sweetrl.tracking.lineage import split_reference
    from sweetrl.tracking.registry import Registry
    from sweetrl.tracking.store import require_store

    name, alias = split_reference(policy, settings.tracking.model)
    named = settings.tracking.model_copy(update={"model": name})
    require_store(named)
    registry = Registry(named)
    folder = Path(tempfile.mkdtemp(prefix="sweetrl-play-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    artifacts = registry.download(registry.get(alias), "artifacts/policy", folder)
    for config in sorted(artifacts.rglob("adapter_config.json")):
        return config.parent
    raise UserError(f"{artifacts}: the registered version holds no adapter; register it again with `sweetrl run`.")
