"""From a clean clone to a registered, evaluated version, and again with nothing to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.signals import at_work

if TYPE_CHECKING:
    from tests.end_to_end.conftest import Clone

STAGES = ["tasks", "collect", "validate", "train-critic", "rank", "train-policy", "evaluate", "summary"]

# Whole pipelines beside other work: a run may take several times as long as on an idle machine.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]  # `make test-flows`


def test_the_first_run_ends_with_a_summary(first: tuple[Clone, str]) -> None:
    _, printed = first
    for stage in STAGES:
        assert any(line.split()[:2] == [stage, "ran"] for line in printed.splitlines()), f"{stage} is not reported"
    assert "success rate" in printed and "tests passed" in printed and "99.5\u00a0% interval" in printed
    assert "model: sweetrl-agent version 1 registered (@challenger)" in printed
    assert "gate: not promoted: the challenger is not shown to be better than its base" in printed
    assert "mlflow ui --backend-store-uri sqlite:///" in printed
    assert "reports/report.html" in printed
    assert "Traceback" not in printed


def test_nothing_is_left_running_and_everything_lies_inside_the_project_and_is_ignored_by_git(
    first: tuple[Clone, str],
) -> None:
    from tasks.workspace import git

    clone, _ = first
    assert at_work(clone.root) == []
    changed = git(clone.root, "status", "--porcelain").stdout.split()
    assert changed == ["??", "dvc.lock"]
    assert (clone.root / ".prefect").is_dir() and (clone.root / "mlflow.db").is_file()
    assert not any((clone.root / ".scratch").glob("*-????????????????")), "finished stages leave no scratch folder"


def test_the_lineage_of_the_registered_version_is_complete(
    first: tuple[Clone, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from sweetrl.config.settings import load_settings
    from sweetrl.tracking.lineage import lineage
    from tasks.workspace import git

    clone, _ = first
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    settings = load_settings(clone.root / "params.yaml")
    origins = lineage("sweetrl-agent@champion", settings.tracking, clone.root)
    assert origins.commit == git(clone.root, "rev-parse", "HEAD").stdout.strip()
    assert origins.run is not None and origins.run.name == "train-policy"
    assert origins.parent is not None and origins.parent.name == "train" and origins.parent.status == "FINISHED"
    assert {stage.name for stage in origins.stages} == set(STAGES)
    assert all(stage.status == "FINISHED" and stage.commit == origins.commit for stage in origins.stages)
    locked = {path: value for outs in clone.lock().values() for path, value in outs.items()}
    data = {path: value for path, value in locked.items() if not path.startswith("reports/runs/")}
    assert {path: value for path, value in origins.data.items() if path in locked} == data
    assert origins.params["collect.tasks"] == "12"
    collect = next(stage for stage in origins.stages if stage.name == "collect")
    assert {item.path: item.hash for item in collect.inputs}["data/tasks/train.parquet"] == locked[
        "data/tasks/train.parquet"
    ]
    assert "success_after" in origins.evaluation and origins.cost["seconds"] > 0


def test_a_second_run_has_nothing_to_do(first: tuple[Clone, str]) -> None:
    clone, _ = first
    lock = (clone.root / "dvc.lock").read_bytes()
    done = clone.check("flows.run")
    for stage in ["pretrain", *STAGES]:
        assert any(line.split()[:2] == [stage, "skipped"] for line in done.stdout.splitlines()), stage
    assert "version 1 is registered already (@champion)" in done.stdout
    assert "nothing had changed" in done.stdout
    assert (clone.root / "dvc.lock").read_bytes() == lock
