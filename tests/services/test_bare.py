"""The path of docs/operations.md from bare machines to a champion of the worker: each of its lines, in one shell."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from sweetrl.config.settings import TrackingSettings
from sweetrl.tracking.registry import CHAMPION, Registry
from tasks.workspace import git
from tests.end_to_end.conftest import make_clone
from tests.services.servers import (
    KEY,
    PASSWORD,
    SECRET,
    START_SECONDS,
    Postgres,
    SeaweedFS,
    die_with_parent,
    own_port,
    plain_environment,
)
from tests.services.team import make_stand_in
from tests.signals import healthy, until

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "docs" / "site"))
from blocks import blocks  # type: ignore[import-not-found]  # noqa: E402

REASON = "tests/services/test_bare.py runs it"
MADE = "make environment && source .venv/bin/activate"  # this environment stands for it


class Shell:
    """A bash that stays: what it starts in the background writes where it does, and ends with it."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.log, (self.ends, written) = folder / "log", os.pipe()
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                ["bash", "--norc"],
                cwd=folder,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                pass_fds=[written],
                start_new_session=True,
                preexec_fn=die_with_parent,
            )
        self.written = written
        os.close(written)

    def run(self, command: str, seconds: float = 1200.0) -> None:
        """Run one command of the page, which must succeed."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{{\n{command}\n}} </dev/null\necho $? >&{self.written}\n".encode())
        self.process.stdin.flush()
        ready, _, _ = select.select([self.ends], [], [], seconds)
        assert ready, f"no end after {seconds:g} s: {command}\n{self.tail()}"
        assert os.read(self.ends, 16) == b"0\n", f"{command}\n{self.tail()}"

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-6000:]

    def close(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        os.close(self.ends)


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[tuple[Postgres, SeaweedFS]]:
    """PostgreSQL without a role or a database for sweetrl, and an S3 without a bucket."""
    database, store = Postgres((), superuser="postgres"), SeaweedFS(tmp_path / "s3")
    try:
        store.start()
        yield database, store
    finally:
        store.stop(hard=True)
        database.remove()


def activated(folder: Path) -> Path:
    """Fill a folder with the programs that an environment has: those of this one."""
    folder.mkdir()
    for name, module in (("mlflow", "mlflow"), ("prefect", "prefect"), ("dvc", "dvc"), ("sweetrl", "sweetrl.cli")):
        (folder / name).write_text(f'#!/bin/sh\nexec {sys.executable} -m {module} "$@"\n')
        (folder / name).chmod(0o755)
    return folder


def test_from_bare_machines_to_a_champion_of_the_worker(tmp_path: Path, machines: tuple[Postgres, SeaweedFS]) -> None:
    database, store = machines
    make_clone(tmp_path / "first", **{"evaluate.resamples": 20000, "evaluate.confidence": 0.95})
    make_stand_in(tmp_path / "first")
    origin = tmp_path / "origin.git"
    git(tmp_path, "clone", "-q", "--bare", str(tmp_path / "first"), str(origin))
    ports = {"5000": str(own_port()), "4200": str(own_port())}
    values = {
        "PASS": PASSWORD,
        "KEY": KEY,
        "SECRET": SECRET,
        "GIT": str(origin),
        "BUCKET": "bare",
        "HOST": "127.0.0.1",
    }
    values |= {"DATABASE": f"127.0.0.1:{database.port}", "S3": store.url.removeprefix("http://"), **ports}
    environment = {
        **plain_environment(),
        "AWS_EC2_METADATA_DISABLED": "true",
        "PREFECT_HOME": str(tmp_path / "prefect"),
    }
    environment |= {"PGHOST": "127.0.0.1", "PGPORT": str(database.port), "PGUSER": "postgres", "PGPASSWORD": PASSWORD}
    environment["PATH"] = f"{activated(tmp_path / 'bin')}:{database.programs}:{environment['PATH']}"
    environment |= {"PYTHONPATH": str(tmp_path / "agent/src"), "GIT_CONFIG_GLOBAL": str(tmp_path / "nobody")}
    (tmp_path / "nobody").write_text("[user]\n    name = worker\n    email = worker@example.org\n")
    page = [block for block in blocks(ROOT / "docs/operations.md") if block.skipped == REASON]
    lines = [line for block in page for line in block.commands()]
    assert len(lines) > 15 and sum(MADE in line for line in lines) == 1
    shell = Shell(tmp_path, environment)
    try:
        for line in lines:
            shell.run(re.sub(r"\b[A-Z0-9]+\b", lambda word: values.get(word[0], word[0]), line.replace(MADE, "true")))
            if "server" in line and line.endswith("&"):
                port = next(port for name, port in ports.items() if f"--port {name}" in line)
                address = f"http://127.0.0.1:{port}" + ("/api" if "prefect" in line else "")
                until(partial(healthy, address), f"{line}\n{shell.tail()}", START_SECONDS)
        uri = f"http://127.0.0.1:{ports['5000']}"
        registry = Registry(TrackingSettings(uri=uri))
        champion = registry.get(CHAMPION)
        assert f"version {champion.version}" in shell.tail()
        assert len(registry.versions()) == 2, "the first run's, and the worker's"
        git(origin, "merge-base", "--is-ancestor", registry.get("2").tags["git_commit"], f"retrain/{branch(origin)}")
        assert git(origin, "rev-parse", "main").stdout == git(tmp_path / "agent", "rev-parse", "main").stdout
        assert git(tmp_path / "agent", "status", "--porcelain").stdout == ""
    finally:
        shell.close()


def branch(origin: Path) -> str:
    """The name of the only retraining's branch."""
    (name,) = git(origin, "for-each-ref", "--format=%(refname:short)", "refs/heads/retrain").stdout.split()
    return name.partition("/")[2]
