"""`sweetrl show`: trajectories for people. Who said what, what each turn cost, and the verdict of every hidden test."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from sweetrl.colbench.find import find_domain
from sweetrl.errors import UserError
from sweetrl.types import AgentTurn, Message, Task, TestRun, Trajectory

if TYPE_CHECKING:
    from rich.console import RenderableType

    from sweetrl.api.learning import TrainedCritic
    from sweetrl.colbench.domain import Domain
    from sweetrl.console.screen import Screen

COLOURS = {"system": "magenta", "user": "green", "assistant": "cyan"}
NAMES = {"system": "system", "user": "user", "assistant": "agent"}


def read(source: Path, domain: Domain, policy: str | None = None) -> Iterator[Trajectory]:
    """Yield the trajectories of a folder of shards, of one shard or of an official file; of `policy` if it is given.

    A folder of such folders (data/evaluation: one for each policy) is read in the order of their names.
    """
    if not source.exists():
        raise UserError(
            f"{source}: there are no dialogues here; run the pipeline (`sweetrl run`) or name others with --dialogues."
        )
    return (each for each in _read(source, domain) if policy is None or policy in each.policy)


def _read(source: Path, domain: Domain) -> Iterator[Trajectory]:
    from sweetrl.colbench.files import read_trajectories
    from sweetrl.colbench.store import TrajectoryStore, format_of

    if source.is_dir():
        inner = sorted({path.parent for path in source.glob("*/shard-*.parquet")})
        for folder in inner if inner and not TrajectoryStore(source).shards() else [source]:
            yield from TrajectoryStore(folder).read()
    elif source.suffix == ".parquet" and format_of(source) is not None:
        with TemporaryDirectory() as name:  # a store of this shard alone
            (Path(name) / "shard-00000.parquet").symlink_to(source.resolve())
            try:
                yield from TrajectoryStore(name).read()
            except UserError as error:
                raise UserError(str(error).replace(f"{name}/shard-00000.parquet", str(source))) from error
    else:
        yield from read_trajectories(source, domain)


def find(source: Path, domain: Domain, task: str, attempt: int, policy: str | None = None) -> Trajectory:
    """Return one attempt at one task, given by id or by number in order of first appearance."""
    attempts: dict[str, list[int]] = {}
    for each in read(source, domain, policy):
        attempts.setdefault(each.task.id, []).append(each.attempt)
    if task not in attempts and task.isdecimal() and int(task) < len(attempts):
        task = list(attempts)[int(task)]  # an id comes first: a number is what is left
    if task not in attempts:
        chosen = f" by {policy!r}" if policy else ""
        raise UserError(f"{source}: there is no task {task!r}{chosen}; `sweetrl show` lists what there is.")
    if attempt not in attempts[task]:
        others = ", ".join(map(str, sorted(set(attempts[task]))))
        raise UserError(f"{source}: task {task!r} has no attempt {attempt}; there are attempts {others}.")
    return next(each for each in read(source, domain, policy) if each.task.id == task and each.attempt == attempt)


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


def _outline(one: Trajectory) -> dict[str, Any]:
    turns = sum(message.role == "assistant" for message in one.messages)
    facts = {"task": one.task.id, "attempt": one.attempt, "policy": one.policy, "turns": turns}
    return {**facts, "outcome": one.outcome, "reward": one.reward, "success": one.success}


def facts_of(one: Trajectory, privileged: bool) -> dict[str, Any]:
    """Return one trajectory for other programs; with `privileged` also the training-time information."""
    facts = {**asdict(one), **_outline(one)}
    if privileged:
        hidden = {"reference": one.task.ground_truth, "hidden_information": one.task.hidden_information}
        facts["privileged"] = {**hidden, "test_cases": dict(one.task.test_cases)}
    return {**facts, "request": one.task.problem_description, "suite": one.task.suite}


def domain_of(one: Trajectory, domain: Domain) -> Domain:
    """Return the domain that a trajectory is of: `domain`, unless its task says otherwise."""
    return domain if one.task.suite == domain.spec else find_domain(one.task.suite)


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


def known_more(one: Trajectory, domain: Domain, critic: Path | None, values: bool) -> dict[str, Any]:
    """Return what must be computed: with `critic` each turn's advantage, with `values` the hidden tests run again."""
    domain, found = domain_of(one, domain), dict[str, Any]()
    if critic is not None:
        found["advantages"] = load_critic(domain, critic).advantages(one)
    if values and one.answer is not None:
        found["runs"] = [asdict(each) for each in domain.run_tests(one.task, one.answer)]
    return found


def show_trajectory(
    console: Screen, one: Trajectory, domain: Domain, privileged: bool, more: Mapping[str, Any] | None = None
) -> None:
    """Print one trajectory, with what `known_more` says of it.

    With `privileged` also the training-time information, which the agent never sees.
    """
    from rich.text import Text

    domain, more = domain_of(one, domain), more or {}
    places = [turn.message_index for turn in one.turns]
    advantages = dict(zip(places, more.get("advantages", ()), strict=False))
    facts = [f"attempt {one.attempt}", f"policy {one.policy or 'unknown'}", f"simulator {one.simulator or 'unknown'}"]
    console.rule(Text(one.task.id, "bold"), align="left")
    console.print(", ".join([*facts, f"seed {one.seed}", one.outcome.replace("_", " ")]), style="dim")
    if privileged:
        print_privileged(console, one.task, domain)
    turns = {turn.message_index: turn for turn in one.turns}
    for index, message in enumerate(one.messages):
        print_message(console, message, domain, turns.get(index), advantages.get(index))
    if one.error:
        console.print(f"lost: {one.error}", style="red")
    print_tests(console, one, [TestRun(**each) for each in more.get("runs", ())])


def print_message(
    console: Screen, message: Message, domain: Domain, turn: AgentTurn | None = None, advantage: float | None = None
) -> None:
    """Print one message in its role's colour, with what its turn cost and its advantage if they are known."""
    from rich.panel import Panel
    from rich.text import Text

    colour = COLOURS[message.role]
    notes = [_cost(turn)] if turn and turn.token_ids else []
    if advantage is not None:
        notes.append(f"advantage {advantage:+.3f}")
    console.print(
        Panel(
            _content(message, domain),
            title=Text(NAMES[message.role], f"bold {colour}"),
            title_align="left",
            subtitle=Text(", ".join(notes), "dim") if notes else None,
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


def print_tests(console: Screen, one: Trajectory, runs: Sequence[TestRun] = ()) -> None:
    """Print the verdict of every hidden test, and the reward; with `runs` also what was expected and returned."""
    from rich.table import Table
    from rich.text import Text

    more = ("expected", "returned", "seconds") if runs else ("detail",)
    table = Table("test", "call", "verdict", *more, title="hidden tests", title_justify="left", header_style="bold")
    calls = dict(one.task.test_cases)
    for test in runs or one.tests:
        verdict = Text(test.reason, style="green" if test.passed else "red")
        if isinstance(test, TestRun):
            table.add_row(test.name, test.call, verdict, test.expected, test.got, f"{test.seconds:.3f}")
        else:
            table.add_row(test.name, calls.get(test.name, ""), verdict, test.detail)
    if table.rows:
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
    """Tokens of a turn and how sure the agent was of them."""
    text, sure = f"{len(turn.token_ids)} tokens", turn.perplexity
    if sure is not None:
        text += f", perplexity {sure:.2f}"
    return text + (", cut at the limit" if turn.finish_reason == "length" else "")
