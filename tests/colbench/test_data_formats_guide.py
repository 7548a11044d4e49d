"""docs/data-formats.md names every column that is written, with its type, and every outcome and format."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from sweetrl.colbench.store import TASKS_FORMAT, TRAJECTORIES_FORMAT, task_schema, trajectory_schema
from sweetrl.types import Outcome, Result

GUIDE = (Path(__file__).resolve().parents[2] / "docs" / "data-formats.md").read_text(encoding="utf-8")
ROWS = [line for line in GUIDE.splitlines() if line.startswith("| `")]


@pytest.mark.parametrize("schema", [task_schema(), trajectory_schema()], ids=["tasks", "trajectories"])
def test_every_column_has_a_row(schema) -> None:  # type: ignore[no-untyped-def]
    fields = list(schema)
    if "turns" in schema.names:
        fields += list(schema.field("turns").type.value_type)
    for field in fields:
        named = [line for line in ROWS if f"`{field.name}`" in line.split("|")[1]]
        assert named, f"docs/data-formats.md does not explain the column {field.name}"
        kind = str(field.type)
        if kind in ("string", "int32", "int64", "double", "bool"):
            assert any(kind in line.split("|")[2] for line in named), f"{field.name} is a {kind}"


def test_every_column_of_the_results_has_a_row() -> None:
    table = GUIDE[GUIDE.index("## What `evaluate` writes") :]
    named = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    assert [column for column in Result.__dataclass_fields__ if not any(f"`{column}`" in cell for cell in named)] == []


def test_outcomes_and_formats_are_named() -> None:
    (row,) = (line for line in ROWS if line.startswith("| `outcome` |"))
    assert [outcome for outcome in get_args(Outcome) if f"`{outcome}`" not in row] == []
    assert f"= {TASKS_FORMAT}`" in GUIDE and f"= {TRAJECTORIES_FORMAT}`" in GUIDE
