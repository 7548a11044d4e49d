"""docs/data-formats.md names every column that the store writes, with its type."""

from __future__ import annotations

from pathlib import Path

import pytest

from sweetrl.colbench.store import _task_schema, _trajectory_schema

GUIDE = (Path(__file__).resolve().parents[2] / "docs" / "data-formats.md").read_text(encoding="utf-8")
ROWS = [line for line in GUIDE.splitlines() if line.startswith("| `")]


@pytest.mark.parametrize("schema", [_task_schema(), _trajectory_schema()], ids=["tasks", "trajectories"])
def test_every_column_has_a_row(schema) -> None:  # type: ignore[no-untyped-def]
    fields = list(schema)
    if "turns" in schema.names:
        fields += list(schema.field("turns").type.value_type)
    for field in fields:
        named = [line for line in ROWS if f"`{field.name}`" in line.split("|")[1]]
        assert named, f"docs/data-formats.md does not explain the column {field.name}"
        kind = str(field.type)
        if kind in ("string", "int32", "int64", "double"):
            assert any(kind in line.split("|")[2] for line in named), f"{field.name} is a {kind}"
