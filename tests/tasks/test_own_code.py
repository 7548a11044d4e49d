"""Code of your own in a project, with real DVC: its changes are seen, and a stage refuses where they would not be."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import yaml

from sweetrl.colbench.store import read_task_table
from tasks.pipeline import StageFailed, changed_stages, execute_stage
from tests.tasks.fake_project import quiet, start_dvc

ROOT = Path(__file__).resolve().parents[2]
DOMAIN = """
import sweetrl

class Forms(sweetrl.Domain):
    prompt = "Ask for the word, then say it."

    def tasks(self, split, count, seed, difficulty):
        for number in range(count):
            yield sweetrl.Task(f"{split}-{number}", "Say my word.", ground_truth=f"word of {split} {number}")
"""
OWN = {name: f"mine/{name}.py" for name in ("suite", "method")}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with the pipelines and sources of this one, under DVC, and a domain of its own."""
    root = tmp_path / "project"
    shutil.copytree(ROOT / "src", root / "src", ignore=shutil.ignore_patterns("__pycache__"))
    (root / "iterations").mkdir()
    for name in ("dvc.yaml", "iterations/dvc.yaml"):
        shutil.copy(ROOT / name, root / name)
    (root / "mine").mkdir()
    (root / OWN["suite"]).write_text(DOMAIN)
    set_parameters(root, {"suite": OWN["suite"]})
    start_dvc(root, no_scm=True)
    monkeypatch.setenv("SWEETRL_TRACKING", "off")
    return root


def set_parameters(root: Path, sources: dict[str, str]) -> None:
    tree = yaml.safe_load((ROOT / "params.yaml").read_text())
    tree["suite"] = "mine.suite:Forms"
    tree["sources"] |= sources
    tree["tasks"] |= {"train": 3, "validation": 1, "test": 2}
    (root / "params.yaml").write_text(yaml.safe_dump(tree))


def words(root: Path) -> list[str]:
    return [task.ground_truth for task in read_task_table(root / "data/tasks/train.parquet")]


@pytest.mark.slow
def test_a_stage_runs_again_when_the_code_of_its_own_domain_changes(project: Path) -> None:
    def status() -> str:
        assert changed_stages(project, ["tasks"]) == {"tasks"}
        found = execute_stage(project, "tasks", {}, quiet).status
        assert changed_stages(project, ["tasks"]) == set()
        return found

    assert status() == "ran"
    assert words(project) == [f"word of train {number}" for number in range(3)]
    (project / OWN["suite"]).write_text(DOMAIN.replace("word of", "sentence of"))
    assert status() == "ran"
    assert words(project) == [f"sentence of train {number}" for number in range(3)]
    (project / OWN["suite"]).write_text(DOMAIN)
    assert status() == "restored"
    assert words(project) == [f"word of train {number}" for number in range(3)]
    (project / OWN["method"]).write_text("# nothing that tasks depend on")
    assert changed_stages(project, ["tasks"]) == set()


def test_a_stage_refuses_to_run_where_dvc_would_not_see_a_change(project: Path) -> None:
    set_parameters(project, {})
    with pytest.raises(StageFailed) as failed:
        execute_stage(project, "tasks", {}, quiet)
    assert failed.value.explained
    assert "written in mine/suite.py, but `sources.suite` is src/sweetrl/backend; set it" in failed.value.reason
    assert not (project / "data/tasks").exists()
    set_parameters(project, {"suite": "mine"})  # a folder around it will do
    assert execute_stage(project, "tasks", {}, quiet).status == "ran"
