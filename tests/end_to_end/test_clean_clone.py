"""`dvc repro` and the flow give the same bytes. In a file of its own, so that it runs beside the flow's tests."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.end_to_end.conftest import Clone


@pytest.mark.timeout(3600)
@pytest.mark.slow  # `make test-flows`
def test_dvc_repro_in_a_clean_clone_gives_the_same_results(
    clone_project: Callable[..., Clone], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    other = clone_project(tmp_path / "other")
    other.check("dvc", "repro", "-q")
    first, _ = request.getfixturevalue("first")  # only now: until here both ran side by side
    assert other.lock() == first.lock()
    run = json.loads((other.root / "reports/runs/evaluate.json").read_text())
    assert run["parent_run_id"] is None and run["run_id"]
