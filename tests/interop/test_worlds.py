"""The tasks that all adapters share; it needs none of the other libraries."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import sweetrl
from sweetrl.colbench.files import task_row
from sweetrl.interop.worlds import World
from sweetrl.stages.tasks import split_tasks


@pytest.mark.parametrize("source", ["synthetic", "files"])
def test_test_tasks_are_behind_those_that_have_served(source: str, tmp_path: Path) -> None:
    """As in the pipeline, whose gate counts what each test task has decided."""
    tasks = list(sweetrl.domain("backend").tasks("test", 4, 7, 3))
    for split, some in (("train", tasks[:2]), ("test", tasks[1:])):
        (tmp_path / f"{split}.jsonl").write_text("".join(json.dumps(task_row(task)) + "\n" for task in some))
    files = {f"{split}_file": str(tmp_path / f"{split}.jsonl") for split in ("train", "test")}
    sizes = {"train": 1, "validation": 1, "test": 2, "test_first": 1}
    domain = sweetrl.domain("backend", tasks={"source": source, **sizes, **files})
    assert World(domain).tasks("test") == split_tasks(domain)["test"]
