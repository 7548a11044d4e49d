"""`sweetrl show`: trajectories for people. Who said what, what each turn cost, and the verdict of every hidden test."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweetrl.colbench.find import find_domain
from sweetrl.errors import UserError
from sweetrl.types import AgentTurn, Message, Task, TestRun, Trajectory

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

    from sweetrl.api.learning import TrainedCritic
    from sweetrl.colbench.domain import Domain
    from sweetrl.console.screen import Screen

SPEAKERS = {"system": ("system", "magenta"), "user": ("user", "green"), "assistant": ("agent", "cyan")}


def read(source: Path, domain: Domain, policy: str | None = None) -> Iterator[Trajectory]:
    """Yield the trajectories of a folder of shards, of one shard or of an official file; of `policy` if it is given.

    A folder of such folders (data/evaluation: one for each policy) is read in the order of their names.
    """
    if not source.exists():
        raise UserError(
            f"{source}: there are no dialogues here; run the pipeline (`sweetrl run`) or name others with --dialogues."
        )
    return (dialogue for dialogue in _read(source, domain) if policy is None or policy in dialogue.policy)


def _read(source: Path, domain: Domain) -> Iterator[Trajectory]:
    from sweetrl.colbench.files import read_trajectories
    from sweetrl.colbench.store import TrajectoryStore

    if source.is_dir():
        inner = sorted({path.parent for path in source.glob("*/shard-*.parquet")})
        for folder in inner if inner and not TrajectoryStore(source).shards() else [source]:
            yield from TrajectoryStore(folder).read()
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
    rows = outlines(source, domain, policy)
    for row in islice(rows, limit):
        *cells, reward, success = row.values()
        table.add_row(*map(str, cells), "-" if reward is None else f"{reward:.2f}", style="green" if success else "")
    console.print(table)
    if rest := sum(1 for _ in rows):
        console.print(f"and {rest:,} more (--limit)", style="dim")
    console.print("sweetrl show TASK --attempt N shows one.", style="dim")


def outlines(source: Path, domain: Domain, policy: str | None) -> Iterator[dict[str, Any]]:
    """Yield a row for each trajectory, as other programs read it."""
    return map(_outline, read(source, domain, policy))


def _outline(dialogue: Trajectory) -> dict[str, Any]:
    turns = sum(message.role == "assistant" for message in dialogue.messages)
    facts = {"task": dialogue.task.id, "attempt": dialogue.attempt, "policy": dialogue.policy, "turns": turns}
    return {**facts, "outcome": dialogue.outcome, "reward": dialogue.reward, "success": dialogue.success}


def facts_of(dialogue: Trajectory, privileged: bool) -> dict[str, Any]:
    """Return one trajectory for other programs; with `privileged` also the training-time information."""
    task, facts = dialogue.task, {**asdict(dialogue), **_outline(dialogue)}
    if privileged:
        hidden = {"reference": task.ground_truth, "hidden_information": task.hidden_information}
        facts["privileged"] = {**hidden, "test_cases": dict(task.test_cases)}
    return {**facts, "request": task.problem_description, "suite": task.suite}


def domain_of(dialogue: Trajectory, domain: Domain) -> Domain:
    """Return the domain that a trajectory is of: `domain`, unless its task says otherwise."""
    return domain if dialogue.task.suite == domain.spec else find_domain(dialogue.task.suite)


def load_critic(domain: Domain, folder: Path) -> TrainedCritic:
    """Return the trained critic in `folder`, on the domain's base; a UserError where there is none."""
    from sweetrl.api.calls import settings_of
    from sweetrl.api.learning import TrainedCritic
    from sweetrl.methods.critics import make_critic
    from sweetrl.models.load import check_adapter
    from sweetrl.stages.parameters import with_values

    check_adapter(folder)
    settings = with_values(settings_of(domain), {"rank.critic": "trained"})
    return TrainedCritic(make_critic(domain.configured(settings), settings, folder), folder)


def known_more(dialogue: Trajectory, domain: Domain, critic: Path | None, values: bool) -> dict[str, Any]:
    """Return what must be computed: with `critic` each turn's advantage, with `values` the hidden tests run again."""
    domain, more = domain_of(dialogue, domain), dict[str, Any]()
    if critic is not None:
        more["advantages"] = load_critic(domain, critic).advantages(dialogue)
    if values and dialogue.answer is not None:
        more["runs"] = [asdict(run) for run in domain.run_tests(dialogue.task, dialogue.answer)]
    return more


def show_trajectory(
    console: Screen, dialogue: Trajectory, domain: Domain, privileged: bool, more: Mapping[str, Any] | None = None
) -> None:
    """Print one trajectory, with what `known_more` says of it.

    With `privileged` also the training-time information, which the agent never sees.
    """
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


def _cost(turn: AgentTurn) -> str:
    """Tokens of a turn and how sure the agent was of them."""
    perplexity = "" if turn.perplexity is None else f", perplexity {turn.perplexity:.2f}"
    cut = ", cut at the limit" if turn.finish_reason == "length" else ""
    return f"{len(turn.token_ids)} tokens{perplexity}{cut}"
