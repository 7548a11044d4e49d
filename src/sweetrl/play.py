"""`sweetrl play`: a person at the terminal is the user of a task, and the trained agent writes the program.

The person takes the human simulator's place in an ordinary rollout, so protocol, token ids and scoring are those of
training and evaluation.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sweetrl.colbench.environment import marked_answer
from sweetrl.colbench.simulators import Simulator, SimulatorError
from sweetrl.colbench.types import Message, Task, Trajectory
from sweetrl.errors import UserError
from sweetrl.settings import Settings
from sweetrl.show import print_message, print_tests

if TYPE_CHECKING:
    from rich.console import Console

    from sweetrl.engines.base import Engine
    from sweetrl.engines.chat import ChatFormat

TEST_TASKS = Path("data/tasks/test.parquet")
POLICY = Path("models/policy")


class TerminalPerson(Simulator):
    """The person is whoever sits at the terminal; the end of the input (Ctrl-D) ends the dialogue."""

    name = "person"

    def __init__(self, console: Console) -> None:
        self.console = console

    def reply(self, task: Task, messages: Sequence[Message], seed: int) -> str:
        """Show the agent's words and return what the person types."""
        print_message(self.console, messages[-1])
        try:
            said = self.console.input("[bold green]you[/] > " if self.console.is_terminal else "").strip()
        except EOFError:
            raise SimulatorError("you left the dialogue") from None
        if not self.console.is_terminal:  # piped words leave no trace of their own
            print_message(self.console, Message("user", said))
        return said


def play_task(
    settings: Settings, console: Console, reference: str, tasks: Path | None, policy: str, seed: int, blind: bool
) -> Trajectory:
    """Play one dialogue at the terminal, score it, print the verdict; return the scored trajectory."""
    task = find_task(reference, tasks, settings)
    console.print(f"[dim]loading the agent ({policy}) ...[/]", highlight=False)
    engine, chat, name = load_agent(policy, settings)
    try:
        introduce(console, task, settings.agent.rounds, blind)
        return play(settings, console, task, engine, chat, name, seed)
    finally:
        engine.close()


def play(
    settings: Settings, console: Console, task: Task, engine: Engine, chat: ChatFormat, name: str, seed: int
) -> Trajectory:
    """Run the dialogue and score its answer."""
    from dataclasses import replace

    from sweetrl.colbench.rewards import Scorer
    from sweetrl.rollout.run import rollout

    (trajectory,) = rollout(
        [(task, 0)],
        engine,
        chat,
        TerminalPerson(console),
        settings.agent,
        reply_characters=settings.simulator.reply_characters,
        seed=seed,
        policy_name=name,
    )
    if trajectory.outcome == "lost":
        console.print(f"\nThe dialogue ended without an answer: {trajectory.error}.", style="yellow", markup=False)
        return trajectory
    print_message(console, trajectory.messages[-1])
    if marked_answer(trajectory.messages[-1].content) is None:
        console.print("Out of rounds: the last reply is the answer.", style="yellow")
    if not task.test_cases:
        console.print("This task has no hidden tests, so there is no score.", style="yellow")
        return trajectory
    with Scorer(settings.reward) as scorer:
        (verdict,) = scorer.score([(task, trajectory.answer)])
    scored = replace(trajectory, reward=verdict.reward, tests=tuple(verdict.tests))
    print_tests(console, scored)
    return scored


def introduce(console: Console, task: Task, rounds: int, blind: bool) -> None:
    """Tell the person who they are and what they want; what they know and the agent does not, unless `blind`."""
    from rich.panel import Panel
    from rich.syntax import Syntax
    from rich.text import Text

    console.print(Panel(Text(task.problem_description), title=f"task {task.id}: you ask for", border_style="green"))
    if not blind:
        if task.hidden_information:
            console.print(Panel(Text(task.hidden_information), title="what only you know", border_style="magenta"))
        lexer = "html" if task.suite == "frontend" else "python"
        program = Syntax(task.ground_truth, lexer, background_color="default", word_wrap=True)
        console.print(Panel(program, title="what you have in mind (never paste it)", border_style="magenta"))
    console.print(
        f"The agent has {rounds} turns. Answer its questions in a sentence or two; Ctrl-D leaves.\n", style="dim"
    )


def find_task(reference: str, tasks: Path | None, settings: Settings) -> Task:
    """Return the task called `reference` (an id or a number) in a table or file.

    Without a file: the pipeline's test tasks, or where it has not run yet, freshly generated ones (only by number).
    """
    if tasks is None and not TEST_TASKS.exists():
        return _generated(reference, settings)
    found = _read_tasks(tasks or TEST_TASKS)
    for task in found:
        if task.id == reference:
            return task
    if reference.isdecimal() and int(reference) < len(found):
        return found[int(reference)]
    raise UserError(
        f"{tasks or TEST_TASKS}: there is no task {reference!r}; give one of its ids (the first is {found[0].id!r}) "
        f"or a number from 0 to {len(found) - 1}."
    )


def _read_tasks(path: Path) -> list[Task]:
    from sweetrl.colbench.files import read_tasks
    from sweetrl.colbench.store import read_task_table

    if path.suffix == ".parquet":
        return read_task_table(path)
    found = list(read_tasks(path))
    if not found:
        raise UserError(f"{path}: the file holds no tasks; give another.")
    return found


def _generated(reference: str, settings: Settings) -> Task:
    from sweetrl.colbench.synthetic import generate

    if not reference.isdecimal():
        raise UserError(
            f"{TEST_TASKS}: not there yet, so there is no task {reference!r}; give a number, or run `sweetrl run`."
        )
    number = int(reference)
    *_, task = generate("test", number + 1, settings.seed, settings.tasks.difficulty)
    return task


def load_agent(policy: str, settings: Settings) -> tuple[Engine, ChatFormat, str]:
    """Return engine, chat format and name of the agent to talk with.

    `policy` is "auto" (the trained adapter if there is one, else the base), "policy", "base", an adapter's folder, or
    a registered MODEL@ALIAS.
    """
    from sweetrl.engines.transformers import TransformersEngine

    model = settings.model
    adapter = _adapter(policy, settings)
    engine = TransformersEngine(model.base, adapter, model.dtype, model.device, model.threads)
    return engine, engine.chat, engine.name


def _adapter(policy: str, settings: Settings) -> Path | None:
    if policy == "auto":
        return POLICY if POLICY.exists() else None
    if policy == "base":
        return None
    if policy == "policy":
        return POLICY
    if "@" in policy:
        return _registered(policy, settings)
    return Path(policy)


def _registered(policy: str, settings: Settings) -> Path:
    import atexit
    import shutil
    import tempfile

    from sweetrl.tracking.lineage import split_reference
    from sweetrl.tracking.registry import Registry

    name, alias = split_reference(policy, settings.tracking.model)
    registry = Registry(settings.tracking.model_copy(update={"model": name}))
    folder = Path(tempfile.mkdtemp(prefix="sweetrl-play-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return _adapter_folder(registry.download(registry.get(alias), "artifacts", folder))


def _adapter_folder(artifacts: Path) -> Path:
    for config in sorted(artifacts.rglob("adapter_config.json")):
        return config.parent
    raise UserError(f"{artifacts}: the registered version holds no adapter; register it again with `sweetrl run`.")
