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

from sweetrl.cli.show import load_critic, print_message, print_panel, print_privileged, print_tests
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
            typed = self.console.input("[bold green]you[/] > " if self.console.is_terminal else "").strip()
        except EOFError:
            raise SimulatorError("you left the dialogue") from None
        if not self.console.is_terminal:  # piped words leave no trace of their own
            print_message(self.console, Message("user", typed), self.domain)
        return typed

    def show(self, messages: Sequence[Message]) -> None:
        """Show the last of `messages`, the agent's."""
        message, turn = messages[-1], sum(each.role == "assistant" for each in messages)
        if file := self.domain.file_of(message.content):
            words = "\n".join(text for language, text in self.domain.display(message.content) if not language)
            message = Message("assistant", f"{words}\n[{self.keep(f'turn-{turn}', file)}]".strip())
        print_message(self.console, message, self.domain, advantage=self.advantage(messages))

    def advantage(self, messages: Sequence[Message]) -> float | None:
        """Return the advantage of the agent's last words; None without a critic."""
        if self.critic is None or self.task is None:
            return None
        turns = (AgentTurn(place, each.content) for place, each in enumerate(messages) if each.role == "assistant")
        return self.critic.advantages(Trajectory(self.task, 0, tuple(messages), tuple(turns)))[-1]

    def keep(self, name: str, file: tuple[str, str]) -> Path:
        """Write a file (its suffix and content) for people to open, and return where it is."""
        path = self.folder / f"{name}{file[0]}"
        write_text(path, file[1])
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
        played = rollouts.attempt_one(replace(environment, simulator=user), served, task, seed)
    if played.outcome == "lost":
        console.print(f"\nThe dialogue ended without an answer: {played.error}.", style="yellow")
        return played
    user.show(played.messages)
    if not domain.answers(played.messages[-1].content):
        console.print("Out of turns: the last reply is the answer.", style="yellow")
    runs = domain.run_tests(task, played.answer) if played.tests and played.answer is not None else ()
    print_tests(console, played, runs)
    return played


def introduce(user: TerminalUser, task: Task, max_turns: int, blind: bool) -> None:
    """Tell the user who they are and what they want; what they know and the agent does not, unless `blind`."""
    from rich.text import Text

    console, domain = user.console, user.domain
    print_panel(console, Text(task.problem_description), Text(f"task {task.id}: you ask for"), "green")
    if not blind:
        aim = "what you have in mind (never paste it)"
        file = domain.file_of(task.ground_truth)
        shown = replace(task, ground_truth="") if file else task
        print_privileged(console, shown, domain, "what only you know", aim)
        if file:
            console.print(f"{aim}: {user.keep('wanted', file)}", style="magenta")
    console.print(
        f"The agent has {max_turns} turns. Answer its questions in a sentence or two; Ctrl-D leaves.\n", style="dim"
    )


def find_task(reference: str, tasks: Path | None, domain: Domain) -> Task:
    """Return the task called `reference` (an id or a number) in a table or file.

    Without a file: the pipeline's test tasks, or where it has not run yet, a freshly generated one (only by number).
    """
    number = int(reference) if reference.isdecimal() and len(reference) < 10 else None
    if tasks is None and not TEST_TASKS.exists():
        settings, count = domain.settings, domain.settings.tasks.test
        if number is None or number >= count:
            raise UserError(f"{TEST_TASKS}: not there yet; give a number from 0 to {count - 1}, or run `sweetrl run`.")
        made = domain.tasks("test", count, settings.seed, settings.tasks.difficulty)
        return domain.own(next(islice(made, number, None)))  # each one before it is made, too
    from sweetrl.stages.standalone import read_any_tasks

    there = read_any_tasks(tasks or TEST_TASKS, domain)
    for task in there:
        if task.id == reference:
            return task
    if number is not None and number < len(there):
        return there[number]
    raise UserError(
        f"{tasks or TEST_TASKS}: there is no task {reference!r}; give one of its ids (the first is {there[0].id!r}) "
        f"or a number from 0 to {len(there) - 1}."
    )


def load_agent(policy: str, settings: Settings) -> Policy:
    """Return the agent to talk with.

    `policy` is "auto" (the trained adapter if there is one, else the base), "policy", "base", an adapter's folder, or
    a registered MODEL@ALIAS.
    """
    from sweetrl.engines.policy import Policy
    from sweetrl.models.load import check_adapter
    from sweetrl.tracking.chat_agent import refuse_critic

    adapter: Path | None = None
    if policy == "policy" or (policy == "auto" and POLICY.exists()):
        adapter = POLICY
    elif "@" in policy:
        adapter = _registered(policy, settings)
    elif policy not in ("auto", "base"):
        adapter = Path(policy)
        refuse_critic(adapter, check_adapter(policy))
    return Policy(settings.model, settings.engine, adapter)


def _registered(policy: str, settings: Settings) -> Path:
    import atexit
    import shutil

    from sweetrl.tracking.registry import open_reference

    registry, alias = open_reference(policy, settings.tracking)
    folder = tempfile.mkdtemp(prefix="sweetrl-play-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return registry.download(registry.get(alias), "artifacts/policy", Path(folder))
