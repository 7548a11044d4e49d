"""The official ColBench files, both ways: task files and trajectory files, JSON Lines, streamed.

Task row:        {"problem_description", "ground_truth", "test_cases": {name: call}[, "hidden_information", "id"]}
                 (what a row must hold is the domain's business: `Domain.parse_task`)
Trajectory row:  {"task", "dialogue_history": [{"role", "content"[, "input", "output"]}, ...], "answer"[, "reward",
                 "solved"]}

A trajectory file of k attempts at n tasks has k * n rows in k contiguous blocks: row b * n + i is attempt b at task i;
other orders are read, too. `input` (the agent's whole formatted prompt, quadratic in the dialogue's length) is written
for others and ignored here; `output` is the agent's raw reply. Both directions keep one row in memory, and what tells
tasks apart.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field

from sweetrl.colbench.jsonl import Row, read_as, read_rows
from sweetrl.colbench.scoring import unpriced
from sweetrl.errors import UserError
from sweetrl.io import atomic_path
from sweetrl.thoughts import split_thoughts
from sweetrl.types import AgentTurn, Message, Role, Task, Trajectory

if TYPE_CHECKING:
    from sweetrl.colbench.domain import Domain

NO_ANSWER = "No answer"  # what official files hold where a dialogue ended without an answer

PromptFormat = Callable[[Sequence[Message]], str]


# Tasks


def read_tasks(path: Path, domain: Domain) -> Iterator[Task]:
    """Yield the tasks of an official task file in file order.

    A row without "id" is called "<file stem>-<row>", row counting from 0 in five digits; other keys are ignored.
    Raises UserError naming file, line and key for a bad row, an id that is there twice, or an empty file.
    """
    path = Path(path)
    ids: set[str] = set()
    for index, (number, row) in enumerate(read_rows(path)):
        where = f"{path}: line {number}"
        yield _new(domain.parse_task(row, where, f"{path.stem}-{index:05d}"), ids, where)
    if not ids:
        raise UserError(f"{path}: the file holds no tasks; expected one JSON object a line.")


def check_ids(tasks: Iterable[Task], where: str) -> None:
    """Raise a UserError that begins with `where` for two tasks of one id: results are told apart by it."""
    ids: set[str] = set()
    for task in tasks:
        _new(task, ids, where)


def _new(task: Task, ids: set[str], where: str) -> Task:
    """Return `task` and add its id to `ids`; a UserError where `ids` has it already."""
    if task.id in ids:
        raise UserError(f"{where}: two tasks are called {task.id!r}; give every task its own `id`.")
    ids.add(task.id)
    return task


def task_row(task: Task) -> dict[str, Any]:
    """Return the official row of `task` (with its id, which official readers ignore)."""
    row: dict[str, Any] = {
        "id": task.id,
        "problem_description": task.problem_description,
        "ground_truth": task.ground_truth,
    }
    if task.test_cases:
        row["test_cases"] = dict(task.test_cases)
    if task.hidden_information is not None:
        row["hidden_information"] = task.hidden_information
    return row


# Trajectories


class MessageRow(Row):
    """One message of an official dialogue."""

    role: str
    content: str
    output: str | None = None


class TrajectoryRow(Row):
    """A row of a trajectory file; `answer` is null where there is none."""

    task: dict[str, Any]
    dialogue_history: list[MessageRow] = Field(min_length=1)
    answer: str | None
    reward: float | None = None
    solved: bool | None = None


def read_trajectories(path: Path, domain: Domain) -> Iterator[Trajectory]:
    """Yield the trajectories of an official trajectory file in file order.

    Attempts at a task are counted from 0 as they come, and have the same task id: without an "id" the row's, it is
    "<file stem>-<number>", tasks being counted from 0 as they first appear. Token ids are not part of these files, so
    turns come without. Raises UserError for a bad row, and for an empty file.
    """
    path = Path(path)
    ids: set[str] = set()
    seen: dict[int, tuple[str, int]] = {}  # of each task its id, and how many attempts there have been
    for number, row in read_rows(path):
        where = f"{path}: line {number}"
        trajectory = parse_trajectory(row, where, domain)
        task, key = trajectory.task, task_digest(trajectory.task)
        name, attempt = seen.get(key) or (task.id or f"{path.stem}-{len(seen):05d}", 0)
        seen[key] = name, attempt + 1
        named = replace(task, id=name)
        yield replace(trajectory, task=named if attempt else _new(named, ids, where), attempt=attempt)
    if not seen:
        raise UserError(f"{path}: the file holds no trajectories; expected one JSON object a line.")


def write_trajectories(
    path: Path,
    trajectories: Iterable[Trajectory],
    attempts: int,
    tokenizer_format: PromptFormat | None = None,
) -> int:
    """Write `trajectories` as an official trajectory file of `attempts` contiguous blocks; return how many rows.

    All or nothing. They may come in any order that keeps each attempt's tasks in one and the same order (task by task,
    or block by block). `tokenizer_format` makes each turn's `input` from the messages before it; put a chat template
    (and the system prompt) there, the default writes "role: text" paragraphs. Raises UserError where an attempt is
    missing, repeated or out of order.
    """
    path = Path(path)
    if attempts < 1:
        raise UserError(f"{path}: cannot write k = {attempts} attempts a task; give 1 or more.")
    form = tokenizer_format or neutral_format
    with atomic_path(path) as temporary, ExitStack() as stack:
        # One file for each block, joined at the end: the blocks need not fit in memory, whatever order they come in.
        blocks = [stack.enter_context(tempfile.TemporaryFile(dir=path.parent)) for _ in range(attempts)]
        orders = [array("Q") for _ in blocks]
        for trajectory in trajectories:
            name, attempt = trajectory.task.id, trajectory.attempt
            if not 0 <= attempt < attempts:
                raise UserError(f"{path}: task {name!r} has an attempt {attempt + 1}, but k is {attempts}; raise k.")
            orders[attempt].append(task_digest(trajectory.task))
            blocks[attempt].write((json.dumps(trajectory_row(trajectory, form), ensure_ascii=False) + "\n").encode())
        for attempt, order in enumerate(orders, start=1):
            if order != orders[0]:
                raise UserError(
                    f"{path}: attempt {attempt} was not made at the tasks of attempt 1, in their order; every task "
                    f"needs all {attempts} attempts."
                )
        with temporary.open("wb") as target:
            for block in blocks:
                block.seek(0)
                shutil.copyfileobj(block, target)
    return sum(map(len, orders))


def neutral_format(messages: Sequence[Message]) -> str:
    """Format a prompt without any model's special tokens: "role: text" paragraphs, then an open "assistant:"."""
    return "".join(f"{message.role}: {message.content}\n\n" for message in messages) + "assistant:"


def trajectory_row(trajectory: Trajectory, tokenizer_format: PromptFormat = neutral_format) -> dict[str, Any]:
    """Return the official row of one trajectory; without an answer it says "No answer", as official files do."""
    raw = {turn.message_index: turn.raw for turn in trajectory.turns}
    history: list[dict[str, str]] = []
    for index, message in enumerate(trajectory.messages):
        entry: dict[str, str] = {"role": message.role, "content": message.content}
        if message.role == "assistant":
            entry["input"] = tokenizer_format(trajectory.messages[:index])
            entry["output"] = raw.get(index, message.content)
        history.append(entry)
    row: dict[str, Any] = {
        "task": task_row(trajectory.task),
        "dialogue_history": history,
        "answer": NO_ANSWER if trajectory.answer is None else trajectory.answer,
    }
    free = unpriced(trajectory)  # official files know no price of questions
    if free.reward is not None:
        row["reward"] = free.reward
    if free.solved not in (None, replace(free, solved=None).success):
        row["solved"] = trajectory.solved  # the reward does not say it
    return row


def parse_trajectory(row: dict[str, Any], where: str, domain: Domain) -> Trajectory:
    """Build a Trajectory (attempt 0; a task without an id has none) from one official row; `where` opens messages."""
    read = read_as(TrajectoryRow, row, where)
    messages: list[Message] = []
    turns: list[AgentTurn] = []
    for index, entry in enumerate(read.dialogue_history):
        role, content = speaker(entry.role, index, f"{where}: dialogue_history[{index}]"), entry.content
        if role == "assistant":
            content = split_thoughts(content, domain.settings.model.marks)[1]
        messages.append(Message(role, content))
        if role == "assistant":
            turns.append(AgentTurn(index, entry.content if entry.output is None else entry.output))
    outcome, answer = domain.outcome(messages), read.answer
    if outcome == "lost" and answer == NO_ANSWER:
        answer = None
    return Trajectory(
        task=domain.parse_task(read.task, f"{where}: task", ""),
        attempt=0,
        messages=tuple(messages),
        turns=tuple(turns),
        answer=domain.read_answer(answer, messages),
        reward=None if read.reward is None else within_bounds(read.reward, domain, where),
        outcome=outcome,
        solved=read.solved,
    )


def speaker(role: str, number: int, where: str) -> Role:
    """Return `role` as the speaker of message `number` (from 0); a UserError where it is the other side's turn."""
    expected: Role = "assistant" if number % 2 else "user"
    if role != expected:
        raise UserError(
            f"{where}: expected the {expected}'s turn, found role {role!r}; the two alternate, and the user begins: "
            "join neighbouring messages of one side."
        )
    return expected


def within_bounds(reward: float, domain: Domain, where: str) -> float:
    """Return a reward of a file; a UserError where the domain gives no such reward."""
    low, high = domain.reward_bounds
    if not low <= reward <= high:
        meaning = domain.shown_labels.reward.lower()
        raise UserError(
            f"{where}: `reward` is {reward:g}, outside {low:g} to {high:g} ({meaning}); scale the rewards to this."
        )
    return reward


def named_by_content(task: Task) -> Task:
    """Return a task from elsewhere with a digest of its content behind its id: no other content can have that id.

    A task that is named so already stays as it is.
    """
    digest = f"{task_digest(replace(task, id='')):016x}"
    return task if task.id.endswith(f"-{digest}") else replace(task, id=f"{task.id or 'task'}-{digest}")


def task_digest(task: Task) -> int:
    """Return 64 bits that tell tasks apart."""
    content = (task.id, task.problem_description, task.ground_truth, task.test_cases, task.hidden_information)
    return int.from_bytes(hashlib.blake2b(json.dumps(content).encode(), digest_size=8).digest(), "big")
