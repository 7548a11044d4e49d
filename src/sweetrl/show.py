"""`sweetrl show`: trajectories for people. Who said what, what each turn cost, and the verdict of every hidden test."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from sweetrl.errors import UserError
from sweetrl.plugins import find_domain
from sweetrl.types import AgentTurn, Message, Task, Trajectory

if TYPE_CHECKING:
    from rich.console import RenderableType

    from sweetrl.colbench.domain import Domain
    from sweetrl.screen import Screen

COLOURS = {"system": "magenta", "user": "green", "assistant": "cyan"}
NAMES = {"system": "system", "user": "user", "assistant": "agent"}


def read(source: Path, domain: Domain, policy: str | None = None) -> Iterator[Trajectory]:
    """Yield the trajectories of a folder of shards or of an official file; only those of `policy` if it is given."""
    if source.is_dir():
        from sweetrl.colbench.store import TrajectoryStore

        found = TrajectoryStore(source).read()
    elif source.exists():
        from sweetrl.colbench.files import read_trajectories

        found = read_trajectories(source, domain)
    else:
        raise UserError(f"{source}: there are no trajectories here; run the pipeline (`sweetrl run`) or give --from.")
    return (each for each in found if policy is None or policy in each.policy)


def find(source: Path, domain: Domain, task: str, attempt: int, policy: str | None = None) -> Trajectory:
    """Return one attempt at one task, given by id or by number in order of first appearance."""
    by_number: dict[str, None] = {}
    wanted = int(task) if task.isdecimal() else -1
    numbered: Trajectory | None = None
    attempts: set[int] = set()
    for each in read(source, domain, policy):
        by_number.setdefault(each.task.id)
        if each.task.id == task:
            attempts.add(each.attempt)
            if each.attempt == attempt:
                return each
        elif 0 <= wanted < len(by_number) and each.attempt == attempt and numbered is None:
            # An id is looked for to the end first: a number is what is left.
            numbered = each if next(islice(by_number, wanted, None)) == each.task.id else None
    if attempts:
        known = ", ".join(map(str, sorted(attempts)))
        raise UserError(f"{source}: task {task!r} has no attempt {attempt}; there are attempts {known}.")
    if numbered is not None:
        return numbered
    chosen = f" by {policy!r}" if policy else ""
    raise UserError(
        f"{source}: there is no attempt {attempt} at a task {task!r}{chosen}; `sweetrl show` lists what there is."
    )


def list_trajectories(console: Screen, source: Path, domain: Domain, policy: str | None, limit: int) -> None:
    """Print a table of the first `limit` trajectories."""
    from rich.table import Table

    table = Table(title=f"trajectories in {source}", title_justify="left", header_style="bold")
    for name in ("task", "attempt", "policy", "turns", "outcome", "reward"):
        table.add_column(name, justify="right" if name in ("attempt", "turns", "reward") else "left", overflow="fold")
    rest = 0
    for number, each in enumerate(read(source, domain, policy)):
        if number >= limit:
            rest += 1
            continue
        turns = sum(message.role == "assistant" for message in each.messages)
        reward = "-" if each.reward is None else f"{each.reward:.2f}"
        colour = "green" if each.success else ""
        table.add_row(each.task.id, str(each.attempt), each.policy, str(turns), each.outcome, reward, style=colour)
    console.print(table)
    if rest:
        console.print(f"and {rest:,} more (--limit)", style="dim")
    console.print("sweetrl show TASK --attempt N shows one.", style="dim")


def show_trajectory(
    console: Screen, source: Path, domain: Domain, task: str, attempt: int, policy: str | None, privileged: bool
) -> None:
    """Print one trajectory; with `privileged` also the training-time information, which the agent never sees."""
    from rich.text import Text

    one = find(source, domain, task, attempt, policy)
    domain = domain if one.task.suite == domain.spec else find_domain(one.task.suite)
    facts = [f"attempt {one.attempt}", f"policy {one.policy or 'unknown'}", f"simulator {one.simulator or 'unknown'}"]
    console.rule(Text(one.task.id, "bold"), align="left")
    console.print(", ".join([*facts, f"seed {one.seed}", one.outcome.replace("_", " ")]), style="dim")
    if privileged:
        print_privileged(console, one.task, domain)
    turns = {turn.message_index: turn for turn in one.turns}
    for index, message in enumerate(one.messages):
        print_message(console, message, domain, turns.get(index))
    if one.error:
        console.print(f"lost: {one.error}", style="red")
    print_tests(console, one)


def print_message(console: Screen, message: Message, domain: Domain, turn: AgentTurn | None = None) -> None:
    """Print one message in its role's colour, with what its turn cost if that is known."""
    from rich.panel import Panel
    from rich.text import Text

    colour = COLOURS[message.role]
    console.print(
        Panel(
            _content(message, domain),
            title=Text(NAMES[message.role], f"bold {colour}"),
            title_align="left",
            subtitle=Text(_cost(turn), "dim") if turn and turn.token_ids else None,
            subtitle_align="right",
            border_style=colour,
        )
    )
    if turn is not None and turn.raw and turn.raw != message.content:
        console.print(f"  the agent's raw reply: {turn.raw}", style="dim")


def print_privileged(console: Screen, task: Task, domain: Domain) -> None:
    """Print what only the critic and the simulator may see."""
    from rich.panel import Panel
    from rich.syntax import Syntax
    from rich.text import Text

    if task.hidden_information:
        console.print(Panel(Text(task.hidden_information), title="hidden information", border_style="magenta"))
    if task.ground_truth:
        reference = Syntax(task.ground_truth, domain.syntax, background_color="default", word_wrap=True)
        console.print(Panel(reference, title="reference (training time only)", border_style="magenta"))


def print_tests(console: Screen, one: Trajectory) -> None:
    """Print the verdict of every hidden test, and the reward."""
    from rich.table import Table
    from rich.text import Text

    if one.tests:
        calls = dict(one.task.test_cases)
        table = Table(
            "test", "call", "verdict", "detail", title="hidden tests", title_justify="left", header_style="bold"
        )
        for test in one.tests:
            verdict = Text(test.reason, style="green" if test.passed else "red")
            table.add_row(test.name, calls.get(test.name, ""), verdict, test.detail)
        console.print(table)
    if one.reward is None:
        console.print("not scored", style="yellow")
        return
    passed = f" ({sum(test.passed for test in one.tests)} of {len(one.tests)} tests)" if one.tests else ""
    console.print(
        f"reward {one.reward:.2f}{passed}: {'success' if one.success else 'no success'}",
        style="bold green" if one.success else "bold red",
    )


def _content(message: Message, domain: Domain) -> RenderableType:
    """A message's text; the program (or page) in it is highlighted."""
    from rich.console import Group
    from rich.syntax import Syntax
    from rich.text import Text

    parts: list[RenderableType] = [
        Syntax(text, language, background_color="default", word_wrap=True) if language else Text(text)
        for language, text in domain.display(message.content)
    ]
    return Group(*parts)


def _cost(turn: AgentTurn) -> str:
    """Tokens of a turn and how sure the agent was of them (mean log-probability as perplexity)."""
    text = f"{len(turn.token_ids)} tokens"
    if turn.logprobs:
        text += f", perplexity {math.exp(-sum(turn.logprobs) / len(turn.logprobs)):.2f}"
    return text + (", cut at the limit" if turn.finish_reason == "length" else "")
