"""DVC must look at the data that params.yaml names: the base model's folder, files of tasks, prompts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sweetrl.config.settings import Settings, parse_settings
from sweetrl.errors import UserError
from sweetrl.paths import ROOT_VARIABLE
from sweetrl.stages.parameters import check_declared
from sweetrl.stages.run import StageRun


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


def test_a_place_outside_of_sources_is_refused(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = parse_settings({"model": {"base": "models/llama"}, "sources": {"base": "models/base"}})
    words = r"`model.base: models/llama` is not in `sources.base` \(models/base\)"
    with pytest.raises(UserError, match=words):
        check_declared(wrong)
    with pytest.raises(UserError, match=r"`tasks.test_file: elsewhere.jsonl` is not in `sources.tasks` \(data"):
        check_declared(settings(test="elsewhere.jsonl", tasks="data"))
    with monkeypatch.context() as patch:  # a stage that another one runs in a folder of its own
        patch.setenv(ROOT_VARIABLE, str(project))
        check_declared(wrong)
    (project / "dvc.yaml").unlink()
    check_declared(wrong)


def test_a_prompt_of_ones_own_lies_where_dvc_looks(project: Path) -> None:
    Path("mine.txt").write_text("Ask.")
    Path("src/sweetrl/prompts").mkdir(parents=True)
    Path("src/sweetrl/prompts/mine.txt").write_text("Ask.")
    for right in (
        {"agent": {"prompt": "short"}},
        {"agent": {"prompt": "src/sweetrl/prompts/mine.txt"}, "judge": {"prompt": "judge_any"}},
        {"agent": {"prompt": "mine.txt"}, "sources": {"suite": "."}},
        {"simulator": {"kind": "scripted", "prompt": "mine.txt"}},  # not read
        {"agent": {"prompt": "none.txt"}},  # which is said where it is read
        {"agent": {"prompt": "Ask. " * 100}},
    ):
        check_declared(parse_settings(right))
    for key, wrong in (
        ("agent", {"agent": {"prompt": "mine.txt"}}),
        ("judge", {"judge": {"prompt": str(project / "mine.txt")}, "sources": {"suite": "src"}}),
        ("simulator", {"simulator": {"kind": "llm", "prompt": "mine.txt"}}),
    ):
        with pytest.raises(UserError, match=rf"`{key}\.prompt: .*mine\.txt`: DVC looks into"):
            check_declared(parse_settings(wrong))


def test_unfinished_work_belongs_to_the_words_of_a_prompt(project: Path) -> None:
    prompt = Path("src/sweetrl/prompts/mine.txt")
    prompt.parent.mkdir(parents=True)
    settings = parse_settings({"agent": {"prompt": str(prompt)}})
    places = []
    for words in ("Ask.", "Ask twice.", "Ask."):
        prompt.write_text(words)
        places.append(StageRun("collect", settings).scratch())
    assert places[0] == places[2] != places[1]
