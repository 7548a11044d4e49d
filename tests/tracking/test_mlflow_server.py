"""The registry behind a real MLflow server, which may refuse requests that an sqlite store accepts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sweetrl.config.settings import Settings, parse_settings
from sweetrl.engines.vllm_server import free_port
from sweetrl.errors import UserError
from sweetrl.stages.registration import register_policy
from sweetrl.tracking.comparisons import measured
from sweetrl.tracking.lineage import lineage
from sweetrl.tracking.registry import Registry
from sweetrl.tracking.runs import RunLog
from tests.serve.made import write_rewards
from tests.signals import mlflow_server

pytestmark = pytest.mark.slow  # the server takes half a minute to start


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of an MLflow server."""
    with mlflow_server(tmp_path_factory.mktemp("server"), free_port()) as url:
        yield url


@pytest.fixture
def project(server: str, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with a policy of bytes: registering and comparing need no model."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    monkeypatch.setenv("SWEETRL_TRACKING", "on")
    (tmp_path / "models/base").mkdir(parents=True)
    (tmp_path / "models/base/config.json").write_text("{}")
    (tmp_path / "models/policy").mkdir()
    (tmp_path / "data/tasks").mkdir(parents=True)
    (tmp_path / "data/tasks/test.parquet").write_bytes(b"test tasks")
    (tmp_path / "params.yaml").write_text("seed: 7\n")
    write_rewards(tmp_path, {"a": 1.0})
    return tmp_path


def train(project: Path, settings: Settings, name: str) -> str:
    log = RunLog(settings.tracking, "train", root=project)
    log.log_params({"name": name})
    run = log.open()
    (project / "models/policy/adapter_config.json").write_text(f'{{"name": "{name}"}}')
    registered = register_policy(settings, project, run)
    log.finish()
    assert registered.created
    return registered.version


def test_a_version_is_registered_found_promoted_and_read_back_through_http(project: Path, server: str) -> None:
    settings = parse_settings({"tracking": {"model": "agent-at-a-server"}})
    registry = Registry(settings.tracking, project)
    assert registry.store.uri == server
    assert registry.aliases() == {} and registry.versions() == []
    with pytest.raises(UserError, match="no version is registered yet"):
        registry.get("champion")
    first, second = train(project, settings, "first"), train(project, settings, "second")
    assert not register_policy(settings, project).created
    assert len(registry.versions()) == 2 and registry.aliases() == {"challenger": second}
    registry.promote(first, "the first")
    registry.promote(second, "better")
    assert registry.aliases() == {"champion": second}
    assert [entry.reason for entry in registry.history()] == ["the first", "better"]
    champion = registry.get("champion")
    assert measured(registry, champion).rewards == {"a": 1.0}
    stored = registry.download(champion, "artifacts/policy", project / "fetched")
    assert (stored / "adapter_config.json").read_text() == '{"name": "second"}'
    origins = lineage("agent-at-a-server@champion", settings.tracking, project)
    assert origins.version == second and origins.run is not None
    assert origins.run.params == {"name": "second"}
    registry.promote(first, "restored")
    assert [entry.version for entry in registry.history()] == [first, second, first]
