"""Dialogues at the terminal: `sweetrl show` prints them, who said what, what each turn cost, and every hidden test.

In `sweetrl play` whoever sits there is the user of a task, and the trained agent writes the answer. They take the user
simulator's place in an ordinary rollout, so protocol, token ids and scoring are those of training and evaluation.
"""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweetrl.api import rollouts
from sweetrl.api.learning import TrainedCritic
from sweetrl.colbench.domain import Domain
from sweetrl.colbench.files import read_trajectories
from sweetrl.colbench.find import find_domain, load_domain
from sweetrl.colbench.store import TrajectoryStore
from sweetrl.config.settings import Settings
from sweetrl.console.screen import Screen
from sweetrl.engines.policy import Policy
from sweetrl.errors import SimulatorError, UserError
from sweetrl.io import write_text
from sweetrl.models.check import check_trained
from sweetrl.paths import POLICY, TEST_TASKS
from sweetrl.serve.source import from_registry
from sweetrl.stages.standalone import read_any_tasks
from sweetrl.stages.tasks import own_tasks
from sweetrl.tracking.chat_agent import refuse_critic
from sweetrl.tracking.registry import open_reference
from sweetrl.types import AgentTurn, Message, Task, TestRun, Trajectory

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text


SPEAKERS = {"system": ("system", "magenta"), "user": ("user", "green"), "assistant": ("agent", "cyan")}


def read(source: Path, domain: Domain, policy: str | None = None) -> Iterator[Trajectory]:
    """Yield the trajectories of a folder of shards, of one shard or of an official file; of `policy` if it is given.

    A folder of such folders (data/evaluation: one for each policy) is read in the order of their names.
    """
    folders: list[Path] = []
    if source.is_dir():
        inner = sorted({path.parent for path in source.glob("*/shard-*.parquet")})
        folders = [source] if TrajectoryStore(source).shards() else inner
    if not folders and not source.is_file():
        raise UserError(f"{source}: there are no dialogues here; `sweetrl run` makes some, --dialogues names others.")
    return (dialogue for dialogue in _read(source, folders, domain) if policy is None or policy in dialogue.policy)


def _read(source: Path, folders: Sequence[Path], domain: Domain) -> Iterator[Trajectory]:
    for folder in folders:
        yield from TrajectoryStore(folder).read()
    if folders:
        return
    beside = TrajectoryStore(source.parent)
    number = next((index for index, path in beside.shards().items() if path.name == source.name), None)
    yield from read_trajectories(source, domain) if number is None else beside.read_shard(number)


def find(source: Path, domain: Domain, task: str, attempt: int, policy: str | None = None) -> Trajectory:
    """Return one attempt at one task, given by id or by number in order of first appearance."""
    attempts: dict[str, list[int]] = {}
    for dialogue in read(source, domain, policy):
        attempts.setdefault(dialogue.task.id, []).append(dialogue.attempt)
    if task not in attempts and task.isdecimal() and int(task) < len(attempts):
        task = list(attempts)[int(task)]  # an id comes first: a number is what is left
    if task not in attempts:
        chosen = f" by {policy!r}" if policy else ""
        raise UserError(f"{source}: there is no task {task!r}{chosen}; `sweetrl show` lists what there is.")
    if attempt not in attempts[task]:
        others = ", ".join(map(str, sorted(set(attempts[task]))))
        raise UserError(f"{source}: task {task!r} has no attempt {attempt}; there are attempts {others}.")
    return next(each for each in read(source, domain, policy) if (each.task.id, each.attempt) == (task, attempt))


def list_trajectories(console: Screen, source: Path, domain: Domain, policy: str | None, limit: int) -> None:
    """Print a table of the first `limit` trajectories."""
    from rich.table import Table

    table = Table(title=f"trajectories in {source}", title_justify="left", header_style="bold")
    for name in ("task", "attempt", "policy", "turns", "outcome", "reward"):
        table.add_column(name, justify="right" if name in ("attempt", "turns", "reward") else "left", overflow="fold")
    rows = map(outline, read(source, domain, policy))
    hint = ""
    for row in islice(rows, limit):
        *cells, reward, success = row.values()
        command = ["sweetrl", "show", row["task"], "--attempt", str(row["attempt"]), "--dialogues", str(source)]
        hint = hint or f"to see the first: {shlex.join(command)}"
        table.add_row(*map(str, cells), "-" if reward is None else f"{reward:.2f}", style="green" if success else "")
    console.print(table)
    if rest := sum(1 for _ in rows):
        console.print(f"and {rest:,} more (--limit)", style="dim")
    console.print(hint, style="dim", soft_wrap=True)


def outline(dialogue: Trajectory) -> dict[str, Any]:
    """Return a trajectory as a row of the list, as other programs read it."""
    turns = sum(message.role == "assistant" for message in dialogue.messages)
    facts = {"task": dialogue.task.id, "attempt": dialogue.attempt, "policy": dialogue.policy, "turns": turns}
    return {**facts, "outcome": dialogue.outcome, "reward": dialogue.reward, "success": dialogue.success}


def facts_of(dialogue: Trajectory, privileged: bool) -> dict[str, Any]:
    """Return one trajectory for other programs; with `privileged` also the training-time information."""
    task, facts = dialogue.task, {**asdict(dialogue), **outline(dialogue)}
    if privileged:
        hidden = {"reference": task.ground_truth, "hidden_information": task.hidden_information}
        facts["privileged"] = {**hidden, "test_cases": dict(task.test_cases)}
    return {**facts, "request": task.problem_description, "suite": task.suite}


def domain_of(dialogue: Trajectory, domain: Domain) -> Domain:
    """Return the domain that a trajectory is of: `domain`, unless its task says otherwise."""
    return domain if dialogue.task.suite == domain.spec else find_domain(dialogue.task.suite)


def known_more(dialogue: Trajectory, domain: Domain, critic: Path | None, values: bool) -> dict[str, Any]:
    """Return what must be computed: with `critic` each turn's advantage, with `values` the hidden tests run again."""
    domain, more = domain_of(dialogue, domain), dict[str, Any]()
    if critic is not None:
        more["advantages"] = TrainedCritic.load(domain, critic).advantages(dialogue)
    if values and dialogue.answer is not None:
        more["runs"] = [asdict(run) for run in domain.run_tests(dialogue.task, dialogue.answer)]
    return more


def show_trajectory(
    console: Screen, dialogue: Trajectory, domain: Domain, privileged: bool, more: Mapping[str, Any] | None = None
) -> None:
    """Print one trajectory with what `known_more` says; with `privileged` also what the agent never sees."""
    from rich.text import Text

    domain, more = domain_of(dialogue, domain), more or {}
    turns = {turn.message_index: turn for turn in dialogue.turns}
    advantages = dict(zip(turns, more.get("advantages", ()), strict=False))
    console.rule(Text(dialogue.task.id, "bold"), align="left")
    console.print(
        f"attempt {dialogue.attempt}, policy {dialogue.policy or 'unknown'}, simulator "
        f"{dialogue.simulator or 'unknown'}, seed {dialogue.seed}, {dialogue.outcome.replace('_', ' ')}",
        style="dim",
    )
    if privileged:
        print_privileged(console, dialogue.task, domain)
    for index, message in enumerate(dialogue.messages):
        print_message(console, message, domain, turns.get(index), advantages.get(index))
    if dialogue.error:
        console.print(f"lost: {dialogue.error}", style="red")
    print_tests(console, dialogue, [TestRun(**run) for run in more.get("runs", ())])


def print_message(
    console: Screen, message: Message, domain: Domain, turn: AgentTurn | None = None, advantage: float | None = None
) -> None:
    """Print one message in its role's colour, with what its turn cost and its advantage if they are known."""
    from rich.console import Group
    from rich.syntax import Syntax
    from rich.text import Text

    name, colour = SPEAKERS[message.role]
    notes = [_cost(turn)] if turn and turn.token_ids else []
    notes += [] if advantage is None else [f"advantage {advantage:+.3f}"]
    parts: list[RenderableType] = [
        Syntax(text, language, background_color="default", word_wrap=True) if language else Text(text)
        for language, text in domain.display(message.content)
    ]
    subtitle = Text(", ".join(notes), "dim") if notes else None
    print_panel(console, Group(*parts), Text(name, f"bold {colour}"), colour, title_align="left", subtitle=subtitle)
    if turn is not None and turn.raw and turn.raw != message.content:
        console.print(f"  the agent's raw reply: {turn.raw}", style="dim")


def print_privileged(console: Screen, task: Task, domain: Domain, information: str = "", reference: str = "") -> None:
    """Print what the agent never sees, under these titles."""
    from rich.syntax import Syntax
    from rich.text import Text

    if task.hidden_information:
        print_panel(console, Text(task.hidden_information), Text(information or "hidden information"), "magenta")
    if task.ground_truth:
        text = Syntax(task.ground_truth, domain.syntax, background_color="default", word_wrap=True)
        print_panel(console, text, Text(reference or "reference (training time only)"), "magenta")


def print_panel(console: Screen, content: RenderableType, title: Text, colour: str, **more: Any) -> None:
    """Print a framed text."""
    from rich.panel import Panel

    console.print(Panel(content, title=title, border_style=colour, subtitle_align="right", **more))


def print_tests(console: Screen, dialogue: Trajectory, runs: Sequence[TestRun] = ()) -> None:
    """Print the verdict of every hidden test, and the reward; with `runs` also what was expected and returned."""
    from rich.table import Table
    from rich.text import Text

    more = ("expected", "returned", "seconds") if runs else ("detail",)
    table = Table("test", "call", "verdict", *more, title="hidden tests", title_justify="left", header_style="bold")
    calls = dict(dialogue.task.test_cases)
    for test in runs or dialogue.tests:
        verdict = Text(test.reason, style="green" if test.passed else "red")
        if isinstance(test, TestRun):
            table.add_row(test.name, test.call, verdict, test.expected, test.got, f"{test.seconds:.3f}")
        else:
            table.add_row(test.name, calls.get(test.name, ""), verdict, test.detail)
    if table.rows:
        console.print(table)
    if dialogue.reward is None:
        console.print("not scored", style="yellow")
        return
    tests = dialogue.tests
    passed = f" ({sum(test.passed for test in tests)} of {len(tests)} tests)" if tests else ""
    says, colour = ("success", "green") if dialogue.success else ("no success", "red")
    console.print(f"reward {dialogue.reward:.2f}{passed}: {says}", style=f"bold {colour}")
    if len(dialogue.parts) > 1:
        console.print("its parts: " + ", ".join(f"{name} {value:+.2f}" for name, value in dialogue.parts.items()))


def _cost(turn: AgentTurn) -> str:
    """Tokens of a turn and how sure the agent was of them."""
    perplexity = "" if turn.perplexity is None else f", perplexity {turn.perplexity:.2f}"
    cut = ", cut at the limit" if turn.finish_reason == "length" else ""
    return f"{len(turn.token_ids)} tokens{perplexity}{cut}"


class TerminalUser:
    """The user is whoever sits at the terminal; the end of the input (Ctrl-D) ends the dialogue.

    What the agent hands over and a terminal cannot show (a page) is written to a file, which is named and stays.
    """

    name = "human"
    serial = True

    def __init__(self, console: Screen, domain: Domain, critic: TrainedCritic | None = None) -> None:
        self.console, self.domain, self.critic = console, domain, critic
        self.task: Task | None = None

    @cached_property
    def folder(self) -> Path:
        """Where these files are; made for the first of them."""
        return Path(tempfile.mkdtemp(prefix="sweetrl-play-"))

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
    """Play one dialogue at the terminal, with advantages by a trained `critic`; print the verdict and return it."""
    domain = load_domain(settings)
    task = find_task(reference, tasks, domain)
    console.print(f"loading the agent ({policy}) ...", style="dim")
    agent = load_agent(policy, settings)
    judge = None if critic is None else TrainedCritic.load(domain, critic)
    user = TerminalUser(console, domain, judge)
    introduce(user, task, settings.agent.max_turns, blind)
    return play(domain, user, task, agent, seed)


def play(domain: Domain, user: TerminalUser, task: Task, agent: Policy, seed: int) -> Trajectory:
    """Run the dialogue, score its answer and print the verdict."""
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
        count, first = domain.settings.tasks.test, domain.settings.tasks.test_first
        if number is None or number >= count:
            raise UserError(f"{TEST_TASKS}: not there yet; give a number from 0 to {count - 1}, or run `sweetrl run`.")
        there = own_tasks(domain, "test", first + number + 1)[first:]  # each one before it is made, too
        if not there:
            raise UserError(f"{domain.spec}: there is no test task behind the first {first}; lower `tasks.test_first`.")
    else:
        there = read_any_tasks(tasks or TEST_TASKS, domain)
    for task in there:
        if task.id == reference:
            return task
    if number is not None and number < len(there):
        return there[number]
    raise UserError(f"{tasks or TEST_TASKS}: no task {reference!r}; 0 to {len(there) - 1}, or ids as {there[0].id!r}.")


def load_agent(policy: str, settings: Settings) -> Policy:
    """Return the agent to talk with.

    `policy` is "auto" (the trained adapter if there is one, else the base), "policy", "base", an adapter's folder, or
    a registered MODEL@ALIAS, which has the base that it was trained on.
    """
    model, adapter = settings.model, None
    if policy == "policy" or (policy == "auto" and POLICY.exists()):
        adapter = POLICY
    elif "@" in policy:
        registry, alias = open_reference(policy, settings.tracking)
        _kept.append(folder := tempfile.TemporaryDirectory(prefix="sweetrl-play-"))
        handed = from_registry(registry, alias, Path(folder.name))
        model, adapter = model.model_copy(update={"base": handed.base}), handed.adapter
    elif policy not in ("auto", "base"):
        adapter = Path(policy)
        refuse_critic(adapter, check_trained(policy))
    return Policy(model, settings.engine, adapter)


_kept: list[tempfile.TemporaryDirectory[str]] = []  # adapters, for as long as this process
