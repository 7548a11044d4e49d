"""A registered version on a machine that has a package index and nothing of the project: `mlflow models serve`."""

from __future__ import annotations

import subprocess
import venv
from pathlib import Path

import httpx
import mlflow
import pytest

from sweetrl.config.settings import Settings
from sweetrl.stages.registration import register_policy
from sweetrl.tracking.registry import Registry
from tests.signals import models_served, only

pytestmark = pytest.mark.slow  # an environment with torch and mlflow is installed: some minutes

TURN = {"role": "user", "content": "I want a function that computes the price of a ticket."}


@pytest.mark.timeout(1800)
def test_a_version_is_served_in_an_environment_of_its_own(project: Path, settings: Settings, tmp_path: Path) -> None:
    version = register_policy(settings, project).version
    registry = Registry(settings.tracking, project)
    stored = registry.download(registry.get(version), "", tmp_path / "stored")
    here = mlflow.pyfunc.load_model(str(stored)).predict([TURN], params={"temperature": 0.0})

    place = tmp_path / "environment"
    venv.create(place, with_pip=True)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()

    def inside(*command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, cwd=elsewhere, env=only(place), capture_output=True, text=True, check=False)

    installed = inside(str(place / "bin/pip"), "install", "-q", "-r", str(stored / "requirements.txt"))
    assert installed.returncode == 0, installed.stderr[-3000:]
    assert inside(str(place / "bin/python"), "-c", "import sweetrl").returncode != 0

    body = {"dataframe_records": [TURN], "params": {"temperature": 0.0}}
    with models_served(stored, place, elsewhere) as url, httpx.Client(trust_env=False, timeout=60) as client:
        assert client.post(f"{url}/invocations", json=body).json() == {"predictions": here}
