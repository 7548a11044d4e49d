"""`dvc repro` and the flow give the same bytes. In a file of its own, so that it runs beside the flow's tests."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from sweetrl.config.settings import load_settings
from sweetrl.tracking.store import connect
from tasks.workspace import git
from tests.end_to_end.conftest import Clone


@pytest.mark.timeout(3600)
@pytest.mark.slow  # `make test-flows`
def test_dvc_repro_in_a_clean_clone_gives_the_same_results(
    clone_project: Callable[..., Clone], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    other = clone_project(tmp_path / "other")
    other.check("dvc", "repro", "-q")
    kept = request.getfixturevalue("first_kept")  # only now: until here both ran side by side
    assert other.lock() == Clone(kept).lock(), "run files included"
    git(other.root, "add", "dvc.lock")
    shutil.copy(kept / "dvc.lock", other.root / "dvc.lock")  # as if it had been committed before
    assert git(other.root, "status", "--porcelain").stdout == "A  dvc.lock\n", "a first run leaves the clone clean"
    settings = load_settings(other.root / "params.yaml")
    runs = connect(settings.tracking, other.root).stage_runs(other.root)
    assert runs.keys() == other.lock().keys() - {"pretrain"}
