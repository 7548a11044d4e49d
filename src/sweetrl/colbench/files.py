"""The official ColBench files, both ways: task files and trajectory files, JSON Lines, streamed.

Task row:        {"problem_description", "ground_truth", "test_cases": {name: call}[, "hidden_information", "id"]}
                 (what a row must hold is the domain's business: `Domain.parse_task`)
Trajectory row:  {"task", "dialogue_history": [{"role", "content"[, "input", "output"]}, ...], "answer"[, "reward",
                 "solved"]}

A trajectory file of k attempts at n tasks has k * n rows in k contiguous blocks: row b * n + i is attempt b at task i.
`input` (the agent's whole formatted prompt, quadratic in the dialogue's length) is written for others and ignored here;
`output` is the agent's raw reply. Both directions keep one row in memory, plus 8 bytes for each task.
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
from typing import IO, TYPE_CHECKING, Any, cast

from sweetrl.colbench.jsonl import field, kind, read_rows
from sweetrl.colbench.scoring import unpriced
from sweetrl.errors import UserError
from sweetrl.io import atomic_path
from sweetrl.types import AgentTurn, Message, Role, Task, Trajectory

if TYPE_CHECKING:
    from sweetrl.colbench.domain import Domain

NO_ANSWER = "No answer"  # what official files hold where a dialogue ended without an answer

PromptFormat = Callable[[Sequence[Message]], str]


# Tasks


def read_tasks(path: Path, domain: Domain) -> Iterator[Task]:
    """Yield the tasks of an official task file in file order.

    A row without "id" is called "<file stem>-<row>", row counting from 0 in five digits; keys that are not known are
    ignored. Raises UserError naming file, line and key for a bad row, an id that is there twice, or an empty file.
    """
    path = Path(path)
    seen: set[str] = set()
    for index, (number, row) in enumerate(read_rows(path)):
        where = f"{path}: line {number}"
        task = domain.parse_task(row, where, f"{path.stem}-{index:05d}")
        if task.id in seen:
            raise UserError(f"{where}: another task is called {task.id!r}; give every task its own `id`.")
        seen.add(task.id)
        yield task
    if not seen:
        raise UserError(f"{path}: the file holds no tasks; expected one JSON object a line.")


def check_ids(tasks: Iterable[Task], where: str) -> None:
    """Raise a UserError that begins with `where` for two tasks of one id: results are told apart by it."""
    seen: set[str] = set()
    for task in tasks:
        if task.id in seen:
            raise UserError(f"{where}: two tasks are called {task.id!r}; give every task its own `id`.")
        seen.add(task.id)


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


def read_trajectories(path: Path, domain: Domain) -> Iterator[Trajectory]:
    """Yield the trajectories of an official trajectory file in file order, block by block.

    k is the most attempts for which the file repeats its tasks block by block. Attempt b of every task gets the same
    task id. Token ids are not part of these files, so turns come without. Raises UserError for a bad row, for an empty
    file, and for rows that repeat a task in no blocks.
    """
    path = Path(path)
    block = _block_length(path, domain)
    seen: set[str] = set()
    for index, (number, row) in enumerate(read_rows(path)):
        where = f"{path}: line {number}"
        attempt, position = divmod(index, block)
        task = domain.parse_task(field(row, "task", dict, where), f"{where}: task", f"{path.stem}-{position:05d}")
        if attempt == 0 and task.id in seen:
            raise UserError(f"{where}: two tasks are called {task.id!r}; give every task its own `id`.")
        seen.add(task.id)
        yield parse_trajectory(row, task, attempt, where, domain)


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
    order = array("Q")
    lengths = [0] * attempts
    with atomic_path(path) as temporary, ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent)))
        # One file for each block, joined at the end: the blocks need not fit in memory, whatever order they come in.
        blocks = [stack.enter_context((folder / str(number)).open("w+b")) for number in range(attempts)]
        for trajectory in trajectories:
            _append(path, blocks, lengths, order, trajectory, form)
        for attempt, length in enumerate(lengths):
            if length != max(lengths):
                raise UserError(
                    f"{path}: attempt {attempt + 1} was made at {length} of {max(lengths)} tasks; "
                    f"every task needs all {attempts} attempts."
                )
        with temporary.open("wb") as target:
            for block in blocks:
                block.seek(0)
                shutil.copyfileobj(block, target)
    return sum(lengths)


def neutral_format(messages: Sequence[Message]) -> str:
    """Format a prompt without any model's special tokens: "role: text" paragraphs, then an open "assistant:"."""
    return "".join(f"{message.role}: {message.content}\n\n" for message in messages) + "assistant:"


def _append(
    path: Path,
    blocks: Sequence[IO[bytes]],
    lengths: list[int],
    order: array[int],
    trajectory: Trajectory,
    form: PromptFormat,
) -> None:
    """Write one row to its block, if it is that block's turn for this task."""
    name, attempt = trajectory.task.id, trajectory.attempt
    if not 0 <= attempt < len(blocks):
        raise UserError(f"{path}: task {name!r} has an attempt {attempt + 1}, but k is {len(blocks)}; raise k.")
    digest, position = task_digest(trajectory.task), lengths[attempt]
    if position == len(order):
        order.append(digest)
    elif order[position] != digest:
        raise UserError(
            f"{path}: attempt {attempt + 1} at task {name!r} is out of order or there twice; "
            "every attempt needs the same tasks in the same order."
        )
    blocks[attempt].write((json.dumps(trajectory_row(trajectory, form), ensure_ascii=False) + "\n").encode())
    lengths[attempt] += 1


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
    if trajectory.reward is not None:
        row["reward"] = unpriced(trajectory).reward  # official files know no price of questions
    if trajectory.solved not in (None, replace(trajectory, solved=None).success):
        row["solved"] = trajectory.solved  # the reward does not say it
    return row


def parse_trajectory(row: dict[str, Any], task: Task, attempt: int, where: str, domain: Domain) -> Trajectory:
    """Build a Trajectory, attempt `attempt` at `task`, from one official row; `where` opens every message."""
    messages: list[Message] = []
    turns: list[AgentTurn] = []
    for index, entry in enumerate(field(row, "dialogue_history", list, where)):
        place = f"{where}: dialogue_history[{index}]"
        if not isinstance(entry, dict):
            raise UserError(f"{place}: a message must be an object, found {kind(entry)}.")
        role, expected = field(entry, "role", str, place), ("user", "assistant")[index % 2]
        if role != expected:
            raise UserError(f"{place}: expected the {expected}'s turn, found role {role!r}; the two alternate.")
        content = field(entry, "content", str, place)
        messages.append(Message(cast(Role, role), content))
        if role == "assistant":
            output = field(entry, "output", str, place, optional=True)
            turns.append(AgentTurn(index, content if output is None else output))
    if not messages:
        raise UserError(f"{where}: `dialogue_history` is empty; it starts with the user's request.")
    reward = field(row, "reward", float, where, optional=True)
    low, high = domain.reward_bounds
    if reward is not None and not low <= reward <= high:
        meaning = domain.shown_labels.reward.lower()
        raise UserError(f"{where}: `reward` is {reward:g}, outside {low:g} to {high:g} ({meaning}); correct it.")
    answer = field(row, "answer", str, where, optional="answer" in row)  # null: there is none
    outcome = domain.outcome(messages)
    if outcome == "lost" and answer == NO_ANSWER:
        answer = None
    answer = domain.read_answer(answer, messages)
    return Trajectory(
        task=task,
        attempt=attempt,
        messages=tuple(messages),
        turns=tuple(turns),
        answer=answer,
        reward=None if reward is None else float(reward),
        outcome=outcome,
        solved=field(row, "solved", bool, where, optional=True),
    )


def _block_length(path: Path, domain: Domain) -> int:
    """Return how many tasks a block has: the shortest whose repetition is the whole file."""
    digests = array("Q")
    for number, row in read_rows(path):
        where = f"{path}: line {number}"
        digests.append(task_digest(domain.parse_task(field(row, "task", dict, where), f"{where}: task", "")))
    rows = len(digests)
    if rows == 0:
        raise UserError(f"{path}: the file holds no trajectories; expected one JSON object a line.")
    for block in range(1, rows):
        if rows % block == 0 and digests[block:] == digests[: rows - block]:
            return block
    first: dict[int, int] = {}
    for index, digest in enumerate(digests):
        if digest in first:
            raise UserError(
                f"{path}: row {index + 1} repeats the task of row {first[digest] + 1}, but rows are no equal blocks; "
                "fix the file."
            )
        first[digest] = index
    return rows


def task_digest(task: Task) -> int:
    """Return 64 bits that tell tasks apart."""
    content = (task.id, task.problem_description, task.ground_truth, task.test_cases, task.hidden_information)
    return int.from_bytes(hashlib.blake2b(json.dumps(content).encode(), digest_size=8).digest(), "big")
