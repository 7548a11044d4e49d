"""DVC must look at the data that params.yaml names: the base model's folder and files of tasks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sweetrl.errors import UserError
from sweetrl.paths import ROOT_VARIABLE
from sweetrl.running.sources import check_declared
from sweetrl.settings import Settings, parse_settings


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "dvc.yaml").write_text("stages: {}")
    (tmp_path / "models/llama").mkdir(parents=True)
    (tmp_path / "data").mkdir()
    for name in ("train.jsonl", "test.jsonl"):
        (tmp_path / "data" / name).touch()
    (tmp_path / "elsewhere.jsonl").touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def settings(base: str = "models/llama", test: str = "data/test.jsonl", **sources: str) -> Settings:
    values: dict[str, Any] = {
        "model": {"base": base},
        "tasks": {"source": "files", "train_file": "data/train.jsonl", "test_file": test},
        "sources": sources,
    }
    return parse_settings(values)


def test_what_is_read_must_be_what_dvc_depends_on(project: Path) -> None:
    for right in (
        settings(tasks="data"),
        settings(tasks=str(project)),
        settings(base="models/none"),
        settings(base="owner/model-on-a-hub"),
        settings(),
    ):
        check_declared(right)
    check_declared(parse_settings({"model": {"base": "models/llama"}, "sources": {"base": "models/llama"}}))


def test_another_place_is_said_with_the_key_to_set(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = parse_settings({"model": {"base": "models/llama"}, "sources": {"base": "models/base"}})
    said = r"`model.base: models/llama` is read, but `sources.base` is models/base; set it to models/llama"
    with pytest.raises(UserError, match=said):
        check_declared(wrong)
    with pytest.raises(UserError, match=r"`tasks.test_file: elsewhere.jsonl` is read, but `sources.tasks` is data"):
        check_declared(settings(test="elsewhere.jsonl", tasks="data"))
    with monkeypatch.context() as patch:  # a stage that another one runs in a folder of its own
        patch.setenv(ROOT_VARIABLE, str(project))
        check_declared(wrong)
    (project / "dvc.yaml").unlink()
    check_declared(wrong)
