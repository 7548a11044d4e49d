"""A team's servers on this machine, as real as packages give them: PostgreSQL, an S3, MLflow, Prefect and its worker.

Each can be stopped, killed and started again at the same address, with the same data.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import pwd
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from tests.signals import as_at_a_terminal, healthy

START_SECONDS = 600.0  # beside other busy processes MLflow's server takes minutes
KEY, SECRET = "team", "of-the-team"
PASSWORD = "only-in-tests"
PR_SET_PDEATHSIG = 1
_returned: set[int] = set()


def own_port() -> int:
    """Return a free port below the system's ephemeral ports: nobody takes it while its server is down.

    No port is returned twice: that of a server which is not yet started is free, too.
    """
    while True:
        port = random.SystemRandom().randrange(20000, 32000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            if port not in _returned:
                _returned.add(port)
                return port


def die_with_parent() -> None:
    as_at_a_terminal()  # what the worker starts inherits it
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def postgres_programs() -> Path | None:
    """Return the folder with PostgreSQL's programs, the newest there is; None where it is not installed."""
    programs = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[4]))
    if programs:
        return programs[-1].parent
    on_path = shutil.which("initdb")
    return Path(on_path).parent if on_path else None


def program(name: str) -> str | None:
    """Return a program of this environment or of the system."""
    beside = Path(sys.executable).parent / name
    return str(beside) if beside.exists() else shutil.which(name)


class Server:
    """A program in a process group of its own that answers at 127.0.0.1:`port`; its output is in `log`."""

    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM
    stop_seconds: ClassVar[float] = 20.0
    user: str | None = None

    def __init__(self, folder: Path, environment: Mapping[str, str] | None = None) -> None:
        self.folder, self.port = folder, own_port()
        self.cwd = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.log = folder / "log"
        self.environment = {**plain_environment(), **(environment or {})}
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def name(self) -> str:
        return type(self).__name__

    def command(self) -> list[str]:
        raise NotImplementedError

    def answers(self) -> bool:
        raise NotImplementedError

    def start(self, wait: bool = True) -> None:
        """Start it, and wait until it answers."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command(),
                cwd=self.cwd,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=die_with_parent,
                user=self.user,
                group=self.user,
                extra_groups=[] if self.user else None,
            )
        if wait:
            self.wait()

    def wait(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not self.answers():
            assert self.process is not None and self.process.poll() is None, f"{self.name} ended:\n{self.tail()}"
            assert time.monotonic() < deadline, f"{self.name} did not start in {START_SECONDS:g} s:\n{self.tail()}"
            time.sleep(0.2)

    def stop(self, hard: bool = False) -> None:
        """End it and everything that it has started: by its documented signal, or with kill -9."""
        if self.process is None:
            return
        if not hard:
            with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
                self.process.send_signal(self.stop_signal)
                self.process.wait(self.stop_seconds)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.process = None

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-3000:]


def plain_environment() -> dict[str, str]:
    """The environment of a user with an activated environment, without the variables of this test run."""
    own = ("MLFLOW_", "PREFECT_", "SWEETRL_", "AWS_", "PYTEST_", "COV_")
    plain = {
        name: value for name, value in os.environ.items() if not name.startswith(own) and "proxy" not in name.lower()
    }
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    quiet = {
        "DO_NOT_TRACK": "1",
        "DVC_NO_ANALYTICS": "1",
        "HF_HUB_OFFLINE": "1",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "TOKENIZERS_PARALLELISM": "false",
        "OMP_NUM_THREADS": "1",
        "OMP_THREAD_LIMIT": "1",
        "COLUMNS": "200",
    }
    return {**plain, **quiet, "PATH": path}


class Postgres(Server):
    """PostgreSQL with one database for each of `databases`; as root it runs as the user whom Debian has made for it.

    `superuser` is the role that may do everything.
    """

    stop_signal = signal.SIGINT  # its "fast shutdown"; SIGTERM would wait for the clients

    def __init__(self, databases: tuple[str, ...] = ("mlflow", "prefect"), superuser: str = "sweetrl") -> None:
        # pytest's own folders are for root alone.
        super().__init__(Path(tempfile.mkdtemp(prefix="sweetrl-postgres-")))
        programs = postgres_programs()
        assert programs is not None
        self.programs = programs
        if os.getuid() == 0:
            self.user = "postgres"
            account = pwd.getpwnam(self.user)
            os.chown(self.folder, account.pw_uid, account.pw_gid)
        self.data = self.folder / "data"
        secret = self.folder / "password"
        secret.write_text(PASSWORD)
        secret.chmod(0o644)
        self.run("initdb", "-D", str(self.data), "-U", superuser, "--auth=scram-sha-256", f"--pwfile={secret}")
        self.start()
        for name in databases:
            self.run("createdb", "-h", "127.0.0.1", "-p", str(self.port), "-U", superuser, name)

    def run(self, name: str, *arguments: str) -> None:
        subprocess.run(
            [str(self.programs / name), *arguments],
            cwd=self.folder,
            env={**self.environment, "PGPASSWORD": PASSWORD, "LC_ALL": "C.UTF-8"},
            user=self.user,
            group=self.user,
            extra_groups=[] if self.user else None,
            check=True,
            capture_output=True,
        )

    def command(self) -> list[str]:
        options = {
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": str(self.folder),
            "max_connections": "200",
        }
        pairs = [word for name, value in options.items() for word in ("-c", f"{name}={value}")]
        return [str(self.programs / "postgres"), "-D", str(self.data), "-p", str(self.port), *pairs]

    def answers(self) -> bool:
        command = [str(self.programs / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.port)]
        return subprocess.run(command, check=False).returncode == 0

    def url(self, driver: str, database: str) -> str:
        return f"postgresql+{driver}://sweetrl:{PASSWORD}@127.0.0.1:{self.port}/{database}"

    def remove(self) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)


class ObjectStore(Server):
    """An S3 in its own folder `store`, for the keys KEY and SECRET."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        (folder / "store").mkdir(exist_ok=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def client(self) -> Any:
        return s3_client(self.url)

    def answers(self) -> bool:
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            self.client().list_buckets()
            return True
        except (BotoCoreError, ClientError):
            return False


class SeaweedFS(ObjectStore):
    """SeaweedFS: an S3 server that is used in practice, with keys, and with its data on the disk."""

    stop_signal = signal.SIGINT

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.ports = {name: own_port() for name in ("master", "volume", "filer")}
        self.grpc = {name: own_port() for name in ("master", "volume", "filer", "s3")}
        keys = [{"accessKey": KEY, "secretKey": SECRET}]
        rights = ["Admin", "Read", "List", "Tagging", "Write"]
        identities = {"identities": [{"name": "team", "credentials": keys, "actions": rights}]}
        (folder / "s3.json").write_text(json.dumps(identities))

    def command(self) -> list[str]:
        weed = program("weed")
        assert weed is not None
        ports = [f"-{name}.port={port}" for name, port in self.ports.items()]
        ports += [f"-{name}.port.grpc={port}" for name, port in self.grpc.items()]
        small = ["-master.volumeSizeLimitMB=64", "-volume.max=50", "-volume.minFreeSpace=1MiB"]
        small += ["-master.telemetry=false", "-master.electionTimeout=1s", "-volume.preStopSeconds=0"]
        small += ["-s3.port.iceberg=0", "-s3.port.lance=0"]
        places = [
            "-ip=127.0.0.1",
            "-ip.bind=127.0.0.1",
            f"-dir={self.folder / 'store'}",
            f"-s3.config={self.folder / 's3.json'}",
        ]
        return [weed, "server", "-s3", f"-s3.port={self.port}", *ports, *small, *places]


def s3_client(url: str) -> Any:
    """Return boto3's client for the S3 at `url`, which tries once."""
    import boto3
    from botocore.config import Config

    once = Config(
        retries={"total_max_attempts": 1}, s3={"addressing_style": "path"}, connect_timeout=5, read_timeout=20
    )
    return boto3.client(
        "s3",
        endpoint_url=url,
        aws_access_key_id=KEY,
        aws_secret_access_key=SECRET,
        region_name="us-east-1",
        config=once,
    )


def s3_environment(url: str) -> dict[str, str]:
    """The variables by which boto3, DVC and MLflow's server find the S3 at `url`, and nothing on the network."""
    return {
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": url,
        "AWS_EC2_METADATA_DISABLED": "true",
    }


class MLflow(Server):
    """MLflow's server on PostgreSQL, through which all artifacts go to the S3."""

    def __init__(self, folder: Path, database: str, s3: str, bucket: str) -> None:
        own = {"MLFLOW_S3_ENDPOINT_URL": s3, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
        super().__init__(folder, s3_environment(s3) | own)
        self.database, self.bucket = database, bucket

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def command(self) -> list[str]:
        stores = ["--backend-store-uri", self.database, "--artifacts-destination", f"s3://{self.bucket}/mlflow"]
        address = ["--host", "127.0.0.1", "--port", str(self.port), "--workers", "1"]
        return [sys.executable, "-m", "mlflow", "server", *address, *stores]

    def answers(self) -> bool:
        return healthy(self.url)


PREFECT_PASSWORD = "sweetrl:as-in-docs"


class Prefect(Server):
    """Prefect's server on PostgreSQL."""

    def __init__(self, folder: Path, database: str) -> None:
        super().__init__(
            folder,
            {
                "PREFECT_API_DATABASE_CONNECTION_URL": database,
                "PREFECT_HOME": str(folder / "home"),
                "PREFECT_SERVER_UI_ENABLED": "false",
                "PREFECT_SERVER_API_AUTH_STRING": PREFECT_PASSWORD,
                "PREFECT_SERVER_CSRF_PROTECTION_ENABLED": "true",
                "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": "http://localhost:4200",
                # In memory, the default, a restart of the server loses who holds a place, and it is never free again.
                "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect.server.concurrency.lease_storage.filesystem",
            },
        )

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/api"

    def command(self) -> list[str]:
        return [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(self.port)]

    def answers(self) -> bool:
        return healthy(self.url)


class Worker(Server):
    """A process worker of the work pool `pool`; what it starts survives it only if it is killed with kill -9."""

    stop_signal = signal.SIGINT

    def __init__(self, folder: Path, environment: Mapping[str, str], pool: str) -> None:
        super().__init__(folder, environment)
        self.pool = pool

    def command(self) -> list[str]:
        return [sys.executable, "-m", "prefect", "worker", "start", "--pool", self.pool, "--name", self.folder.name]

    def start(self, wait: bool = True) -> None:
        self.log.unlink(missing_ok=True)
        super().start(wait)

    def answers(self) -> bool:
        return "started!" in self.log.read_text(errors="replace")
