"""prefect.yaml and infra/ name flows, files and parameters that exist."""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
DEPLOYMENTS = yaml.safe_load((ROOT / "prefect.yaml").read_text())["deployments"]


@pytest.mark.parametrize("deployment", DEPLOYMENTS, ids=lambda deployment: deployment["name"])
def test_a_deployment_names_a_flow_and_its_parameters(deployment: dict) -> None:
    path, name = deployment["entrypoint"].split(":")
    assert (ROOT / path).exists()
    flow = getattr(importlib.import_module(path.removesuffix(".py").replace("/", ".")), name)
    assert flow.name == name
    inspect.signature(flow.fn).bind(**deployment["parameters"])
    assert deployment["work_pool"]["name"] == "sweetrl"


def test_the_compose_file_names_files_that_exist() -> None:
    services = yaml.safe_load((ROOT / "infra/compose.yaml").read_text())["services"]
    assert set(services) == {"database", "s3", "mlflow", "prefect", "worker"}
    for service in services.values():
        if "build" in service:
            assert (ROOT / "infra" / service["build"]["context"] / service["build"]["dockerfile"]).exists()
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert not source.startswith(".") or (ROOT / "infra" / source).exists()
        assert set(service.get("depends_on", {})) <= set(services)


def test_the_lock_has_an_sqlalchemy_with_which_prefects_server_starts_scheduled_runs() -> None:
    """With 2.1 its scheduler ends in an error each time, in its own log only: no nightly run ever begins."""
    pinned = dict(line.split("==") for line in (ROOT / "requirements.lock").read_text().split() if "==" in line)
    assert pinned["prefect"].startswith("3.8.") and pinned["SQLAlchemy"].startswith("2.0.")
