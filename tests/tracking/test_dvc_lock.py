"""What dvc.lock says of a result: the stages behind it, and none that have run again since."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from sweetrl.errors import UserError
from sweetrl.tracking.lineage import LockedStage, locked_stages, stages_behind


def stage(deps: dict[str, str], outs: dict[str, str], **params: Any) -> dict[str, Any]:
    def rows(found: dict[str, str]) -> list[dict[str, str]]:
        return [{"path": path, "hash": "md5", "md5": content} for path, content in found.items()]

    return {"cmd": "x", "deps": rows(deps), "outs": rows(outs), "params": {"params.yaml": params}}


def test_the_stages_behind_a_result_are_those_whose_results_it_rests_on(tmp_path: Path) -> None:
    found = {
        "collect": stage({"models/base": "b"}, {"data/trajectories": "t", "reports/runs/collect.json": "r"}, seed=1),
        "train-critic": stage({"data/trajectories": "t"}, {"models/critic": "new"}, seed=2),
        "train-policy": stage(
            {"data/trajectories": "t", "models/critic": "old", "src/sweetrl": "s"}, {"models/policy": "p"}, seed=3
        ),
        "evaluate": stage({"models/policy": "p"}, {"reports/evaluation.json": "e"}, seed=4),
    }
    (tmp_path / "dvc.lock").write_text(yaml.safe_dump({"stages": found}))
    stages = locked_stages(tmp_path)
    behind = stages_behind(stages, Path("models/policy"), "p")
    assert [one.params["seed"] for one in behind] == [3, 1], "the critic has been trained again since"
    assert behind[0].data == {"data/trajectories": "t", "models/critic": "old", "models/policy": "p"}
    assert behind[1].data == {"models/base": "b", "data/trajectories": "t"}
    assert stages_behind(stages, Path("models/policy"), "another") == []


def test_a_lock_of_another_form_is_one_sentence(tmp_path: Path) -> None:
    assert locked_stages(tmp_path) == []
    for wrong in ("stages: []", "stages: {a: 3}", "stages: {a: {outs: [3]}}", "stages: {a: {params: {p: 3}}}"):
        (tmp_path / "dvc.lock").write_text(wrong)
        with pytest.raises(UserError, match=r"dvc\.lock: this is not what DVC writes"):
            locked_stages(tmp_path)
    (tmp_path / "dvc.lock").write_text("stages: {a: {outs: [{path: data}]}}")
    assert locked_stages(tmp_path) == [LockedStage()]
