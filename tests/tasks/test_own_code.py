"""A project's own code, with real DVC: a stage refuses to run where DVC would not see that code's changes."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import yaml

from tasks.pipeline import StageFailed, execute_stage
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


def test_a_stage_refuses_to_run_where_dvc_would_not_see_a_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "dvc.yaml", tmp_path / "dvc.yaml")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/suite.py").write_text(DOMAIN)
    tree = yaml.safe_load((ROOT / "params.yaml").read_text()) | {"suite": "mine.suite:Forms"}
    tree["tasks"] |= {"train": 3, "validation": 1, "test": 2}
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(tree))
    start_dvc(tmp_path, no_scm=True)
    monkeypatch.setenv("SWEETRL_TRACKING", "off")
    with pytest.raises(StageFailed) as failed:
        execute_stage(tmp_path, "tasks", {}, quiet)
    assert failed.value.explained
    assert "written in mine/suite.py, but `sources.suite` is src/sweetrl/backend; set it" in failed.value.reason
    assert not (tmp_path / "data/tasks").exists()
    tree["sources"]["suite"] = "mine"  # a folder around it will do
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(tree))
    assert execute_stage(tmp_path, "tasks", {}, quiet).status == "ran"
