"""DVC's data and MLflow's artifacts on every S3 there is here: a production server, a gateway, and AWS's answers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.services.servers import Moto, ObjectStore, Rclone, SeaweedFS, plain_environment, s3_environment


@pytest.mark.parametrize("kind", [SeaweedFS, Rclone, Moto])
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
