"""DVC's data and MLflow's artifacts on every S3 there is here: a production server and a gateway."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
import yaml

from tests.services.servers import (
    KEY,
    SECRET,
    ObjectStore,
    Rclone,
    SeaweedFS,
    plain_environment,
    program,
    s3_environment,
)

COMPOSE = Path(__file__).resolve().parents[2] / "infra/compose.yaml"


class OfCompose(Rclone):
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
        service = yaml.safe_load(COMPOSE.read_text(encoding="utf-8"))["services"]["s3"]
        return [*service["entrypoint"], *(self.here(words) for words in service["command"])]

    def healthy(self) -> bool:
        service = yaml.safe_load(COMPOSE.read_text(encoding="utf-8"))["services"]["s3"]
        kind, check = service["healthcheck"]["test"]
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


@pytest.mark.parametrize("kind", [SeaweedFS, Rclone])
def test_data_pushed_to_an_s3_are_the_same_in_another_checkout(kind: type[ObjectStore], tmp_path: Path) -> None:
    store = kind(tmp_path / "s3")
    store.start()
    try:
        store.client().create_bucket(Bucket="team")
        for name in ("here", "there"):
            (tmp_path / name).mkdir()

        def run(place: str, *arguments: str) -> str:
            environment = {**plain_environment(), **s3_environment(store.url)}
            done = subprocess.run(
                [sys.executable, "-m", "dvc", *arguments],
                cwd=tmp_path / place,
                env=environment,
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, done.stdout + done.stderr
            return done.stdout

        for place in ("here", "there"):
            run(place, "init", "-q", "--no-scm")
            run(place, "remote", "add", "-q", "-d", "store", "s3://team/data")
        data = tmp_path / "here/data"
        data.mkdir()
        (data / "large").write_bytes(bytes(range(256)) * 40_000)  # more than one part
        (data / "small").write_text("a dialogue")
        run("here", "add", "-q", "data")
        run("here", "push", "-q")
        assert "new" not in run("here", "status", "--cloud")
        (tmp_path / "there/data.dvc").write_bytes((tmp_path / "here/data.dvc").read_bytes())
        run("there", "pull", "-q")
        for path in data.iterdir():
            assert (tmp_path / "there/data" / path.name).read_bytes() == path.read_bytes()
    finally:
        store.stop(hard=True)
