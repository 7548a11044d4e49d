"""A project folder with a small random agent, as the pipeline leaves one: base, adapter, results, dvc.lock."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from sweetrl.config.settings import Settings, load_settings
from tests.serve.made import MODEL, make_project, write_results


@pytest.fixture(scope="module")
def project(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    root = tmp_path_factory.mktemp("project")
    make_project(root, tiny_model)
    write_results(root, 0.5)
    agent = {"max_turns": 3, "max_new_tokens": 12, "temperature": 0.0}
    values = {"seed": 7, "agent": agent, "model": {"threads": 1}, "tracking": {"model": MODEL}}
    (root / "params.yaml").write_text(yaml.safe_dump(values))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        yield root


@pytest.fixture(scope="module")
def settings(project: Path) -> Settings:
    return load_settings(project / "params.yaml")
