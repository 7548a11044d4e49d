"""`sweetrl tasks`: generated tasks of one split as a file, those that the stage `tasks` makes from the same seed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from sweetrl.errors import UserError
from sweetrl.io import atomic_path
from sweetrl.settings import Settings
from sweetrl.types import Task


def with_count(settings: Settings, split: str, count: int | None, seed: int | None, difficulty: int | None) -> Settings:
    """Return `settings` in which the stage `tasks` generates `count` tasks of `split` at least, and few of others.

    What is None is as `settings` has it. The validation tasks follow the training tasks, so those are generated, too.
    Raises UserError where the training tasks would reach into the validation tasks.
    """
    wanted = settings.tasks
    sizes = {"train": wanted.train, "validation": wanted.validation, "test": wanted.test}
    if split == "train" and count is not None and count > wanted.train:
        raise UserError(
            f"params.yaml: `tasks.train` is {wanted.train}, and the tasks behind are for validation; raise it, or take "
            f"fewer than {count} training tasks."
        )
    sizes[split] = max(sizes[split], count or 0)
    sizes |= {"train": 1, "validation": 1} if split == "test" else {"test": 1}
    changed = {**sizes, "source": "synthetic", "difficulty": difficulty or wanted.difficulty}
    return settings.model_copy(
        update={"seed": settings.seed if seed is None else seed, "tasks": wanted.model_copy(update=changed)}
    )


def write_task_file(path: Path, tasks: Sequence[Task]) -> None:
    """Write `tasks` as an official task file, or as a table where the name ends in `.parquet`; all or nothing."""
    from sweetrl.colbench.files import task_row
    from sweetrl.colbench.store import write_task_table

    if path.suffix == ".parquet":
        write_task_table(path, tasks)
        return
    with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(task_row(task), ensure_ascii=False) + "\n" for task in tasks)
