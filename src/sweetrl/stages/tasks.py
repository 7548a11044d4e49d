"""Stage `tasks`: the training, validation and test tasks, generated from the seed or read from official files."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from sweetrl.colbench.domain import Domain
from sweetrl.colbench.files import check_ids, read_tasks
from sweetrl.colbench.store import write_task_table
from sweetrl.errors import UserError
from sweetrl.paths import TASKS
from sweetrl.plugins import load_domain
from sweetrl.running.stage import stage_main, stage_run
from sweetrl.settings import Settings
from sweetrl.types import Task


def split_tasks(domain: Domain) -> dict[str, list[Task]]:
    """Return the tasks of each split, in order; no content is in two splits.

    Validation tasks come from the training side (the end of it), so that the test tasks stay untouched by any choice.
    """
    settings = domain.settings
    wanted = settings.tasks
    if wanted.source == "synthetic":
        count, seed, difficulty = wanted.train + wanted.validation, settings.seed, wanted.difficulty
        learn = [domain.own(task) for task in islice(domain.tasks("train", count, seed, difficulty), count)]
        last = wanted.test_first + wanted.test
        test = [domain.own(task) for task in islice(domain.tasks("test", last, seed, difficulty), last)]
        _check_generated(domain, learn, test)
        test = test[wanted.test_first :]
        return {"train": learn[: wanted.train], "validation": learn[wanted.train :], "test": test}
    for key, name in (("train_file", wanted.train_file), ("test_file", wanted.test_file)):
        if not name:
            raise UserError(
                f"params.yaml: `tasks.{key}` is empty; name an official task file or set `tasks.source: synthetic`."
            )
    learn = list(islice(read_tasks(Path(wanted.train_file), domain), wanted.train + wanted.validation))
    if len(learn) <= wanted.validation:
        raise UserError(
            f"{wanted.train_file}: {len(learn)} tasks cannot give {wanted.validation} validation tasks and leave any "
            "to train on; lower `tasks.validation` in params.yaml."
        )
    last = wanted.test_first + wanted.test
    test = list(islice(read_tasks(Path(wanted.test_file), domain), last))
    before, test = test[: wanted.test_first], test[wanted.test_first :]
    if wanted.test_first and len(test) < wanted.test:
        raise UserError(
            f"{wanted.test_file}: {len(test)} tasks are behind the first {wanted.test_first} (tasks.test_first), and "
            f"`tasks.test` asks for {wanted.test}; put new tasks at its end, or lower them in params.yaml."
        )
    known = {(task.problem_description, task.ground_truth) for task in learn}
    for row, task in enumerate(test, start=wanted.test_first + 1):
        if (task.problem_description, task.ground_truth) in known:
            raise UserError(
                f"{wanted.test_file}: row {row} is also in {wanted.train_file}; take it out of one of them."
            )
    cut = len(learn) - wanted.validation
    if (place := _repeated(learn[:cut], learn[cut:])) is not None:
        raise UserError(
            f"{wanted.train_file}: row {cut + place + 1}, a validation task (tasks.validation), is also among the "
            "training tasks before it; take one of the two out."
        )
    if (place := _repeated(before, test)) is not None:
        raise UserError(
            f"{wanted.test_file}: row {wanted.test_first + place + 1} is also among the first {wanted.test_first}, "
            "which have served (tasks.test_first); take it out."
        )
    return {"train": learn[:cut], "validation": learn[cut:], "test": test}


def _repeated(known: Sequence[Task], tasks: Sequence[Task]) -> int | None:
    """The place of the first of `tasks` whose content is among the `known`, or None."""
    contents = {_content(task) for task in known}
    return next((place for place, task in enumerate(tasks) if _content(task) in contents), None)


def _content(task: Task) -> tuple[str | None, ...]:
    return task.problem_description, task.ground_truth, task.hidden_information


def _check_generated(domain: Domain, learn: list[Task], test: list[Task]) -> None:
    wanted = domain.settings.tasks
    if len(learn) < wanted.train + wanted.validation:
        raise UserError(
            f"{domain.spec}: there are {len(learn)} training tasks, but `tasks.train` and `tasks.validation` ask for "
            f"{wanted.train + wanted.validation}; lower them in params.yaml."
        )
    if len(test) < wanted.test_first + wanted.test:
        which = f" behind the first {wanted.test_first} (tasks.test_first)" if wanted.test_first else ""
        raise UserError(
            f"{domain.spec}: there are {len(test)} test tasks, but `tasks.test` asks for {wanted.test}{which}; lower "
            "it in params.yaml."
        )
    before, behind = test[: wanted.test_first], test[wanted.test_first :]
    if (place := _repeated(before, behind)) is not None:
        raise UserError(
            f"{domain.spec}: the test task {behind[place].id} is also among the first {wanted.test_first}, which have "
            "served (tasks.test_first); `tasks` must go on with tasks of other contents."
        )
    check_ids(learn, f"{domain.spec}: training tasks")
    check_ids(test, f"{domain.spec}: test tasks")
    train, validation = learn[: wanted.train], learn[wanted.train :]
    for split, known, tasks in (("test", learn, test), ("validation", train, validation)):
        if (place := _repeated(known, tasks)) is not None:
            raise UserError(
                f"{domain.spec}: the {split} task {tasks[place].id} is also a training task; `tasks` must keep the "
                "contents of the splits apart."
            )


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
        run.summary = (
            ", ".join(f"{count:,} {split}" for split, count in counts.items()) + f" tasks ({settings.tasks.source})"
        )


def main() -> None:
    """Run the stage."""
    stage_main(tasks)


if __name__ == "__main__":
    main()
