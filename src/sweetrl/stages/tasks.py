"""Stage `tasks`: the training, validation and test tasks, generated from the seed or read from official files."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

from sweetrl.colbench.domain import Domain
from sweetrl.colbench.files import check_ids, read_tasks
from sweetrl.colbench.find import load_domain
from sweetrl.colbench.store import write_task_table
from sweetrl.config.settings import Settings
from sweetrl.errors import UserError
from sweetrl.paths import TASKS
from sweetrl.stages.run import stage_main, stage_run
from sweetrl.types import Split, Task


def split_tasks(domain: Domain) -> dict[str, list[Task]]:
    """Return the tasks of each split, in order; no content is in two splits.

    Validation tasks come from the training side (the end of it), so that the test tasks stay untouched by any choice.
    """
    sizes = domain.settings.tasks
    synthetic = sizes.source == "synthetic"
    learn, tests = _generated(domain) if synthetic else _read(domain)
    train_file, test_file = (domain.spec, domain.spec) if synthetic else (sizes.train_file, sizes.test_file)
    cut, first = len(learn) - sizes.validation, sizes.test_first
    train, validation, test = learn[:cut], learn[cut:], tests[first:]
    if len(test) < sizes.test and (first or synthetic):
        behind = f" behind the first {first} (tasks.test_first)" if first else ""
        raise UserError(f"{test_file}: {len(test)} test tasks{behind}, but `tasks.test` is {sizes.test}; lower it.")
    served = f"among the first {first} test tasks, which have served (tasks.test_first)"
    for file, split, tasks, offset, others, what in (
        (train_file, "validation", validation, cut, train, "a training task"),
        (test_file, "test", test, first, learn, "a training or validation task"),
        (test_file, "test", test, first, tests[:first], served),
    ):
        # In files, tasks that differ in what only the user knows are one content: their reference is the same.
        parts = 2 if others is learn and not synthetic else 3
        contents = {_content(task)[:parts] for task in others}
        for row, task in enumerate(tasks, offset + 1):
            if _content(task)[:parts] in contents:
                raise UserError(f"{file}: the {split} task {task.id} (row {row}) is also {what}; keep them apart.")
    return {"train": train, "validation": validation, "test": test}


def _generated(domain: Domain) -> tuple[list[Task], list[Task]]:
    """Return the domain's own tasks: those to learn from with those for validation, and the test tasks."""
    sizes = domain.settings.tasks
    count = sizes.train + sizes.validation
    learn, tests = own_tasks(domain, "train", count), own_tasks(domain, "test", sizes.test_first + sizes.test)
    if len(learn) < count:
        raise UserError(f"{domain.spec}: {len(learn)} training tasks; lower `tasks.train` and `tasks.validation`.")
    return learn, tests


def own_tasks(domain: Domain, split: Split, count: int) -> list[Task]:
    """Return the first `count` tasks that the domain generates from the seed; fewer where it has no more."""
    seed, difficulty = domain.settings.seed, domain.settings.tasks.difficulty
    tasks = [domain.own(task) for task in islice(domain.tasks(split, count, seed, difficulty), count)]
    check_ids(tasks, f"{domain.spec}: {split} tasks")
    return tasks


def _read(domain: Domain) -> tuple[list[Task], list[Task]]:
    """Return the tasks of official files: those to learn from with those for validation, and the test tasks."""
    sizes = domain.settings.tasks
    for key in ("train_file", "test_file"):
        if not getattr(sizes, key):
            raise UserError(f"params.yaml: `tasks.{key}` is empty; name a task file, or set `tasks.source: synthetic`.")
    learn = list(islice(read_tasks(Path(sizes.train_file), domain), sizes.train + sizes.validation))
    if len(learn) <= sizes.validation:
        raise UserError(f"{sizes.train_file}: {len(learn)} tasks are too few; lower `tasks.validation` in params.yaml.")
    return learn, list(islice(read_tasks(Path(sizes.test_file), domain), sizes.test_first + sizes.test))


def _content(task: Task) -> tuple[str | None, ...]:
    return task.problem_description, task.ground_truth, task.hidden_information


def tasks(settings: Settings) -> None:
    """Write data/tasks/{train,validation,test}.parquet."""
    with stage_run("tasks", settings, torch=False) as run:
        for name in (settings.tasks.train_file, settings.tasks.test_file):
            if settings.tasks.source == "files" and name:
                run.log_input(name, name)
        counts = {}
        for split, members in split_tasks(load_domain(settings)).items():
            counts[split] = write_task_table(TASKS / f"{split}.parquet", members)
        run.log_metrics({f"{split}_tasks": float(count) for split, count in counts.items()})
        each = ", ".join(f"{count:,} {split}" for split, count in counts.items())
        run.summary = f"{each} tasks ({settings.tasks.source})"


if __name__ == "__main__":
    stage_main(tasks)
