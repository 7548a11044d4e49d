"""The S3 of the compose file: its command and its health check; and a registry of sixty champions on PostgreSQL."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import httpx
import pytest
import yaml

from sweetrl.config.settings import TrackingSettings
from sweetrl.tracking.registry import Registry
from tests.services.servers import KEY, SECRET, ObjectStore, Postgres, program
from tests.tracking.test_history import sixty_champions

COMPOSE = Path(__file__).resolve().parents[2] / "infra/compose.yaml"
S3 = yaml.safe_load(COMPOSE.read_text(encoding="utf-8"))["services"]["s3"]


class OfCompose(ObjectStore):
    """The compose file's S3: its command and its health check, with places of this machine in them."""

    def here(self, words: str) -> str:
        (self.folder / "s3_key").write_text(KEY)
        (self.folder / "s3_secret").write_text(SECRET)
        rclone = program("rclone")
        assert rclone is not None
        places = {
            "/run/secrets": str(self.folder),
            "/data": str(self.folder / "store"),
            "exec rclone": f"exec {rclone}",
        }
        for there, here in {**places, ":9000": f":{self.port}", "$$": "$"}.items():
            words = words.replace(there, here)
        return words

    def command(self) -> list[str]:
        return [*S3["entrypoint"], *(self.here(words) for words in S3["command"])]

    def healthy(self) -> bool:
        kind, check = S3["healthcheck"]["test"]
        assert kind == "CMD-SHELL"
        done = subprocess.run(["sh", "-c", self.here(check)], env=self.environment, check=False, capture_output=True)
        return done.returncode == 0


def test_the_s3_of_the_compose_file_lets_in_only_who_has_its_key(tmp_path: Path) -> None:
    store = OfCompose(tmp_path)
    if shutil.which("wget") is not None:
        assert not store.healthy()  # nobody answers yet
    store.start()
    try:
        assert [bucket["Name"] for bucket in store.client().list_buckets()["Buckets"]] == ["dvc", "mlflow"]
        assert httpx.get(store.url, trust_env=False).status_code in (400, 403)
        if shutil.which("wget") is not None:
            assert store.healthy()
    finally:
        store.stop(hard=True)


def test_sixty_champions_and_ten_steps_back_on_postgresql(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = Postgres(("mlflow",))
    try:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("MLFLOW_TRACKING_URI", server.url("psycopg2", "mlflow"))
        sixty_champions(Registry(TrackingSettings(), tmp_path))
    finally:
        server.remove()
