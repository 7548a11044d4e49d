"""Files of answers to score: {"index", "answer"} rows, or official trajectory files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from sweetrl.colbench.jsonl import field, kind, read_rows
from sweetrl.errors import UserError
from sweetrl.types import Task


def read_answers(path: Path, tasks: Sequence[Task], source: Path) -> Iterator[tuple[int, str | None]]:
    """Yield (index of the task in `tasks`, answer) for every row of `path`, in order.

    A trajectory's task is found by its content. Raises UserError naming file, line and key for a bad row, a task that
    `source` (the file of `tasks`) does not hold, or an empty file.
    """
    by_content: dict[tuple[str, str], int] = {}
    for index, task in enumerate(tasks):
        by_content.setdefault((task.problem_description, task.ground_truth), index)
    empty = True
    for number, row in read_rows(path):
        empty = False
        where = f"{path}: line {number}"
        if "index" in row:
            index = field(row, "index", int, where)
            if not 0 <= index < len(tasks):
                raise UserError(f"{where}: `index` is {index}, but {source} holds tasks 0 to {len(tasks) - 1}.")
        elif "task" in row:
            inner = field(row, "task", dict, where)
            content = tuple(field(inner, key, str, f"{where}: task") for key in ("problem_description", "ground_truth"))
            found = by_content.get((content[0], content[1]))
            if found is None:
                raise UserError(
                    f"{where}: this task is not in {source}; give the task file the trajectories were made on."
                )
            index = found
        else:
            raise UserError(
                f"{where}: expected the keys `index` and `answer`, or an official trajectory with a `task`."
            )
        if "answer" not in row:
            raise UserError(f"{where}: the key `answer` is missing; add it (null where there is no answer).")
        answer = row["answer"]
        if answer is not None and not isinstance(answer, str):
            raise UserError(f"{where}: `answer` must be a string or null, found {kind(answer)}.")
        yield index, answer
    if empty:
        raise UserError(f"{path}: the file holds no answers; expected one JSON object a line.")
