"""What dvc.lock says of a project's data: the last hash of each, and nothing of sources."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from sweetrl.errors import UserError
from sweetrl.tracking.dvc_lock import data_hashes


def rows(found: dict[str, str]) -> list[dict[str, str]]:
    return [{"path": path, "hash": "md5", "md5": content} for path, content in found.items()]


def test_data_have_the_hash_of_their_last_stage(tmp_path: Path) -> None:
    outs = {"data/trajectories": "t", "reports/runs/collect.json": "r"}
    stages = {
        "collect": {"cmd": "x", "deps": rows({"models/base": "b", "src/sweetrl": "s"}), "outs": rows(outs)},
        "train-policy": {"cmd": "x", "deps": rows({"data/trajectories": "u"}), "outs": rows({"models/policy": "p"})},
    }
    assert data_hashes(tmp_path) == {}
    (tmp_path / "dvc.lock").write_text(yaml.safe_dump({"stages": stages}))
    assert data_hashes(tmp_path) == {"data/trajectories": "u", "models/base": "b", "models/policy": "p"}


def test_a_lock_of_another_form_is_one_sentence(tmp_path: Path) -> None:
    for wrong in ("stages: []", "stages: {a: 3}", "stages: {a: {outs: [3]}}"):
        (tmp_path / "dvc.lock").write_text(wrong)
        with pytest.raises(UserError, match=r"dvc\.lock: this is not what DVC writes"):
            data_hashes(tmp_path)
    (tmp_path / "dvc.lock").write_text("stages: {a: {outs: [{path: data}]}}")
    assert data_hashes(tmp_path) == {}
