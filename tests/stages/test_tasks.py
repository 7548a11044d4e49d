"""Stage `tasks`: what goes into the splits, and one sentence for a domain or a file that cannot fill them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sweetrl.api.rollouts import tasks_of
from sweetrl.backend.suite import generate
from sweetrl.colbench.find import load_domain
from sweetrl.colbench.store import read_task_table
from sweetrl.config.settings import Settings, parse_settings
from sweetrl.errors import UserError
from sweetrl.paths import TASKS, TEST_TASKS, TRAIN_TASKS, VALIDATION_TASKS
from sweetrl.stages.tasks import tasks
from sweetrl.types import Task

COUNTS = {"train": 3, "validation": 2, "test": 2}
DOMAIN = """
import sweetrl

class Words(sweetrl.Domain):
    sizes = {"train": 5, "test": 2}  # how many there are
    test = "test word"
    hidden = None

    def tasks(self, split, count, seed, difficulty):
        for number in range(min(count, self.sizes[split])):
            word = self.test if split == "test" else "word"
            hidden = self.hidden if split == "test" else None
            yield sweetrl.Task(f"{split}-{number}", "Say my word.", f"{word} {number}", hidden_information=hidden)

class Again(Words):
    def tasks(self, split, count, seed, difficulty):
        for task in super().tasks(split, count, seed, difficulty):
            yield sweetrl.Task(task.id, "Say my word.", f"{split} word") if split == "test" else task

class Few(Words):
    sizes = {"train": 4, "test": 2}

class FewTests(Words):
    sizes = {"train": 5, "test": 1}

class Twice(Words):
    def tasks(self, split, count, seed, difficulty):
        for number, task in enumerate(super().tasks(split, count, seed, difficulty)):
            yield sweetrl.Task(task.id, "Say my word.", "word 0") if task.id == "train-4" else task

class Same(Words):
    test = "word"

class Secret(Same):
    hidden = "what only the user of a test task knows"
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_code: Callable[..., Path]) -> Path:
    """A project's folder with domains of its own."""
    monkeypatch.chdir(tmp_path)
    own_code(tmp_path, DOMAIN)
    return tmp_path


def settings(suite: str, **changes: Any) -> Settings:
    return parse_settings({"suite": suite, "tasks": {**COUNTS, **changes}})


def written() -> dict[str, list[Task]]:
    paths = {"train": TRAIN_TASKS, "validation": VALIDATION_TASKS, "test": TEST_TASKS}
    return {name: read_task_table(path) for name, path in paths.items()}


@pytest.mark.parametrize("name", ["Words", "Secret"])
def test_a_domain_fills_the_splits_in_its_order(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    tasks(settings(f"mine:{name}"))
    assert {split: [task.id for task in some] for split, some in written().items()} == {
        "train": ["train-0", "train-1", "train-2"],
        "validation": ["train-3", "train-4"],
        "test": ["test-0", "test-1"],
    }
    assert {task.suite for some in written().values() for task in some} == {f"mine:{name}"}
    assert "3 train, 2 validation, 2 test tasks (synthetic)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Few", "4 training tasks; lower `tasks.train`"),
        ("FewTests", "1 test tasks, but `tasks.test` is 2"),
        ("Same", r"the test task test-0 \(row 1\) is also a training or validation task"),
        ("Twice", r"the validation task train-4 \(row 5\) is also a training task"),
    ],
)
def test_a_domain_that_cannot_fill_the_splits_is_refused(name: str, words: str) -> None:
    with pytest.raises(UserError, match=f"mine:{name}: {words}"):
        tasks(settings(f"mine:{name}"))
    assert not TASKS.exists()


def test_two_tasks_of_one_id_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Results are told apart by it: the last one would stand for both."""
    domain = load_domain(settings("mine:Words"))
    made = type(domain).tasks
    monkeypatch.setattr(
        type(domain), "tasks", lambda self, *given: (replace(task, id="one") for task in made(self, *given))
    )
    with pytest.raises(UserError, match="mine:Words: train tasks: two tasks are called 'one'"):
        tasks(settings("mine:Words"))
    with pytest.raises(UserError, match="two tasks are called 'one'"):
        tasks_of(domain, 2, 2)


def test_a_domain_that_has_fewer_is_taken_where_fewer_are_asked_for() -> None:
    tasks(settings("mine:Few", validation=1))
    tasks(settings("mine:FewTests", test=1))
    assert [len(some) for some in written().values()] == [3, 2, 1]


def test_files_are_cut_into_the_splits(write_tasks: Callable[..., Path]) -> None:
    learn, test = list(generate("train", 9, seed=1)), list(generate("test", 4, seed=1))
    files = {"source": "files", "train_file": "train.jsonl", "test_file": "test.jsonl"}
    with pytest.raises(UserError, match=r"params\.yaml: `tasks\.test_file` is empty"):
        tasks(settings("backend", **files | {"test_file": ""}))
    write_tasks(Path("train.jsonl"), learn)
    write_tasks(Path("test.jsonl"), test)
    tasks(settings("backend", **files))
    splits = {split: [task.ground_truth for task in some] for split, some in written().items()}
    references = [task.ground_truth for task in (*learn, *test)]
    assert splits == {"train": references[:3], "validation": references[3:5], "test": references[9:11]}

    write_tasks(Path("train.jsonl"), learn[:2])
    with pytest.raises(UserError, match=r"train\.jsonl: 2 tasks are too few"):
        tasks(settings("backend", **files))
    write_tasks(Path("train.jsonl"), [*learn[:2], test[1]])
    with pytest.raises(UserError, match=r"test\.jsonl: the test .* \(row 2\) is also a training or val"):
        tasks(settings("backend", **files))
    write_tasks(Path("train.jsonl"), [*learn[:4], replace(learn[1], id="again")])
    with pytest.raises(UserError, match=r"train\.jsonl: the validation task .* \(row 5\) is also a training task"):
        tasks(settings("backend", **files))
    write_tasks(Path("train.jsonl"), [*learn[:2], replace(learn[1], id="again"), *learn[3:5]])
    tasks(settings("backend", **files))  # twice on one side


def test_fresh_test_tasks_are_those_behind(write_tasks: Callable[..., Path]) -> None:
    tasks(settings("backend"))
    first = written()
    tasks(settings("backend", test_first=2))
    second = written()
    assert [task.id for task in second["test"]] == ["synthetic-test-7-00002", "synthetic-test-7-00003"]
    assert (first["train"], first["validation"]) == (second["train"], second["validation"])
    tasks(settings("backend", test=4))
    assert written()["test"] == first["test"] + second["test"]

    with pytest.raises(UserError, match=r"1 test tasks behind the first 1 \(tasks"):
        tasks(settings("mine:Words", test_first=1))
    with pytest.raises(UserError, match=r"test task test-1 \(row 2\) is also among the first 1 test tasks"):
        tasks(settings("mine:Again", test=1, test_first=1))
    learn, test = list(generate("train", 9, seed=1)), list(generate("test", 4, seed=1))
    files = {"source": "files", "train_file": "train.jsonl", "test_file": "test.jsonl"}
    write_tasks(Path("train.jsonl"), learn)
    write_tasks(Path("test.jsonl"), test)
    tasks(settings("backend", **files, test_first=2))
    assert [task.ground_truth for task in written()["test"]] == [task.ground_truth for task in test[2:]]
    with pytest.raises(UserError, match=r"test\.jsonl: 1 test tasks behind the first 3"):
        tasks(settings("backend", **files, test_first=3))
    write_tasks(Path("test.jsonl"), [*test[:3], replace(test[0], id="again")])
    with pytest.raises(UserError, match=r"test\.jsonl: .* \(row 4\) is also among the first 2 test tasks"):
        tasks(settings("backend", **files, test_first=2))
