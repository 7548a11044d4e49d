"""`sweetrl tasks`: the tasks of a split as a file, equal to those of the stage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sweetrl.colbench.find import find_domain, load_domain
from sweetrl.colbench.store import read_task_table
from sweetrl.config.settings import Settings
from sweetrl.errors import UserError
from sweetrl.stages.standalone import read_any_tasks
from sweetrl.stages.tasks import split_tasks
from sweetrl.stages.tasks import tasks as stage
from sweetrl.types import Task
from tests.stages.conftest import sweetrl


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("params.yaml").write_text("seed: 3\ntasks: {train: 12, validation: 4, test: 5, difficulty: 2}\n")


def tasks(split: str, out: str, *words: Any) -> tuple[dict[str, str], list[Task]]:
    """What the command prints, and the tasks that it writes."""
    facts = dict(line.split("\t") for line in sweetrl("tasks", "--split", split, "--out", out, *words).splitlines())
    return facts, read_any_tasks(Path(out), find_domain(facts["domain"]))


@pytest.mark.parametrize("suite", ["backend", "frontend"])
@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_they_are_those_of_the_stage(suite: str, split: str) -> None:
    sizes = {"train": 12, "validation": 4, "test": 5, "difficulty": 1}
    expected = split_tasks(load_domain(Settings.model_validate({"seed": 8, "suite": suite, "tasks": sizes})))[split]
    some = ["--suite", suite, "--seed", 8, "--difficulty", 1]
    facts, written = tasks(split, "some.jsonl", "--count", 3, *some)
    assert written == expected[:3]
    assert (facts["domain"], facts["tasks"], facts["seed"], facts["difficulty"]) == (suite, "3", "8", "1")
    assert tasks(split, "all.parquet", *some)[1] == expected


def test_without_more_they_are_those_of_params_yaml() -> None:
    stage(Settings.model_validate({"seed": 3, "tasks": {"train": 12, "validation": 4, "test": 5, "difficulty": 2}}))
    for split in ("train", "validation", "test"):
        assert tasks(split, f"{split}.jsonl")[1] == read_task_table(Path(f"data/tasks/{split}.parquet"))


def test_more_than_the_stage_makes_go_on_behind_them_and_never_into_another_split() -> None:
    more = tasks("validation", "more.jsonl", "--count", 9)[1]
    train = tasks("train", "train.jsonl")[1]
    assert more[:4] == tasks("validation", "four.jsonl")[1] and len(more) == 9
    assert not {task.id for task in more} & {task.id for task in train}
    with pytest.raises(UserError, match=r"`tasks\.train` is 12; raise it"):
        tasks("train", "many.jsonl", "--count", 13)
