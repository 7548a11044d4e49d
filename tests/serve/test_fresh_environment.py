"""A registered version on a machine that has a package index and nothing of the project: `mlflow models serve`."""

from __future__ import annotations

import os
import subprocess
import venv
from pathlib import Path

import httpx
import mlflow
import pytest

from sweetrl.config.settings import Settings
from sweetrl.engines.vllm_server import free_port
from sweetrl.stages.registration import register_policy
from sweetrl.tracking.registry import Registry
from tests.signals import healthy, until

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
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "MLFLOW_TRACKING_URI")}
    environment |= {"PATH": f"{place / 'bin'}:{environment['PATH']}", "VIRTUAL_ENV": str(place)}
    environment |= {"MLFLOW_DISABLE_TELEMETRY": "true", "OMP_NUM_THREADS": "1"}

    def inside(*command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, cwd=elsewhere, env=environment, capture_output=True, text=True, check=False)

    installed = inside(str(place / "bin/pip"), "install", "-q", "-r", str(stored / "requirements.txt"))
    assert installed.returncode == 0, installed.stderr[-3000:]
    assert inside(str(place / "bin/python"), "-c", "import sweetrl").returncode != 0

    port = free_port()
    command = [str(place / "bin/mlflow"), "models", "serve", "-m", str(stored), "--env-manager", "local"]
    command += ["-h", "127.0.0.1", "-p", str(port), "--workers", "1"]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            command, cwd=elsewhere, env=environment, stdout=log, stderr=log, start_new_session=True
        )
    try:
        url = f"http://127.0.0.1:{port}"
        with httpx.Client(trust_env=False, timeout=60) as client:
            until(lambda: healthy(url, "ping") or process.poll() is not None, "the server did not start", 300)
            assert process.poll() is None, (tmp_path / "log").read_text()[-3000:]
            body = {"dataframe_records": [TURN], "params": {"temperature": 0.0}}
            assert client.post(f"{url}/invocations", json=body).json() == {"predictions": here}
    finally:
        os.killpg(process.pid, 15)
        process.wait(30)
