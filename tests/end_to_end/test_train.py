"""The whole thing: from a clean clone to a registered, evaluated version, and again with nothing to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.end_to_end.conftest import Clone

STAGES = ["tasks", "collect", "validate", "train-critic", "rank", "train-policy", "evaluate", "summary"]

# Whole pipelines beside other work: a run may take several times as long as on an idle machine.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]  # `make test-flows`


def test_the_first_run_ends_with_a_summary(first: tuple[Clone, str]) -> None:
    _, printed = first
    for stage in STAGES:
        assert any(line.split()[:2] == [stage, "ran"] for line in printed.splitlines()), f"{stage} is not reported"
    assert "success rate" in printed and "tests passed" in printed and "95% interval" in printed
    assert "model: sweetrl-agent version 1 registered (@champion)" in printed
    assert "mlflow ui --backend-store-uri sqlite:///" in printed
    assert "reports/report.html" in printed
    assert "Traceback" not in printed


def test_nothing_is_left_running(first: tuple[Clone, str]) -> None:
    clone, _ = first
    assert clone.processes() == []


def test_everything_lies_inside_the_project_and_is_ignored_by_git(first: tuple[Clone, str]) -> None:
    from tasks.workspace import git

    clone, _ = first
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
    found = lineage("sweetrl-agent@champion", settings.tracking, clone.root)
    assert found.commit == git(clone.root, "rev-parse", "HEAD").stdout.strip()
    assert found.run is not None and found.run.name == "train-policy"
    assert found.parent is not None and found.parent.name == "train" and found.parent.status == "FINISHED"
    assert {stage.name for stage in found.stages} == set(STAGES)
    assert all(stage.status == "FINISHED" and stage.commit == found.commit for stage in found.stages)
    locked = {path: value for outs in clone.lock().values() for path, value in outs.items()}
    assert {path: value for path, value in found.data.items() if path in locked} == locked
    assert found.params["collect.tasks"] == "12"
    collect = next(stage for stage in found.stages if stage.name == "collect")
    assert {item.path: item.hash for item in collect.inputs}["data/tasks/train.parquet"] == locked[
        "data/tasks/train.parquet"
    ]
    assert "success_after" in found.evaluation and found.cost["seconds"] > 0


def test_the_registered_version_answers_a_dialogue_turn(
    first: tuple[Clone, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import mlflow

    clone, _ = first
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{clone.root / 'mlflow.db'}")
    monkeypatch.chdir(clone.root.parent)  # the base is stored with the version
    mlflow.set_tracking_uri(f"sqlite:///{clone.root / 'mlflow.db'}")
    agent = mlflow.pyfunc.load_model("models:/sweetrl-agent@champion")
    from sweetrl.colbench.store import read_task_table

    task = read_task_table(clone.root / "data/tasks/test.parquet")[0]
    reply = agent.predict(
        [{"role": "user", "content": task.problem_description}], params={"seed": 1, "temperature": 0.5}
    )
    assert isinstance(reply, str) and reply.strip()


def test_a_second_run_has_nothing_to_do(first: tuple[Clone, str]) -> None:
    clone, _ = first
    lock = (clone.root / "dvc.lock").read_bytes()
    done = clone.run("flows.run")
    assert done.returncode == 0, done.stderr[-3000:]
    for stage in ["pretrain", *STAGES]:
        assert any(line.split()[:2] == [stage, "skipped"] for line in done.stdout.splitlines()), stage
    assert "version 1 is registered already (@champion)" in done.stdout
    assert "nothing had changed" in done.stdout
    assert (clone.root / "dvc.lock").read_bytes() == lock


def test_a_failing_stage_is_one_sentence_and_a_failed_run(
    first: tuple[Clone, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from tasks.workspace import change_parameters

    clone, _ = first
    before = (clone.root / "params.yaml").read_text()
    change_parameters(clone.root, {"model.base": "models/missing"})
    try:
        done = clone.run("flows.run")
    finally:
        (clone.root / "params.yaml").write_text(before)
    assert done.returncode == 1
    assert "error: stage collect failed: models/missing: " in done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    from sweetrl.config.settings import load_settings
    from sweetrl.tracking.store import connect

    store = connect(load_settings(clone.root / "params.yaml").tracking, clone.root)
    statuses = [run.info.status for run in store.client.search_runs([store.experiment_id])]
    assert "FAILED" in statuses and "RUNNING" not in statuses
    assert clone.processes() == []
