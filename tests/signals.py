"""Programs that tests start, wait for and interrupt."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import uvicorn


def as_at_a_terminal() -> None:
    """In the child: take SIGINT, which whoever runs the tests in the background may have had ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def read_until(process: subprocess.Popen[str], words: str) -> None:
    """Read what a program prints up to the line that holds `words`."""
    assert process.stdout is not None
    assert any(words in line for line in process.stdout), f"it ended without {words!r}"


def at_work(root: Path) -> list[str]:
    """The command lines of processes at work below a folder."""
    commands = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if Path(process.cwd()).is_relative_to(root) and process.status() != psutil.STATUS_ZOMBIE:
                commands.append(" ".join(process.cmdline()))
    return commands


def ended(process: psutil.Process) -> bool:
    """Whether a process has ended; one that nobody has waited for yet has."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.status() == psutil.STATUS_ZOMBIE
    return True


def until(
    condition: Callable[[], object], otherwise: str = "it took too long", seconds: float = 60.0, pause: float = 0.05
) -> None:
    """Wait until `condition` holds; an AssertionError that says `otherwise` where it does not."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{otherwise} in {seconds:g} s"
        time.sleep(pause)


@contextlib.contextmanager
def answering(app: Any) -> Iterator[str]:
    """The address of an ASGI application that is served in a thread."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", ws_ping_interval=None))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        until(lambda: server.started, "the server did not start", 120)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(120)
        listener.close()


def healthy(url: str, page: str = "health") -> bool:
    with contextlib.suppress(httpx.HTTPError):
        return httpx.get(f"{url}/{page}", trust_env=False, timeout=5).status_code == 200
    return False


@contextlib.contextmanager
def mlflow_server(folder: Path, port: int) -> Iterator[str]:
    """The address of an MLflow server with one worker, whose store is `folder` and through which artifacts go."""
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    command += ["--backend-store-uri", f"sqlite:///{folder}/mlflow.db", "--artifacts-destination", str(folder / "kept")]
    # Its job runner is five processes that nothing here asks for.
    environment = {**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    environment.pop("MLFLOW_TRACKING_URI", None)
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log, start_new_session=True)
    try:
        url = f"http://127.0.0.1:{port}"
        until(lambda: healthy(url) or server.poll() is not None, "MLflow's server did not start", 300)
        assert server.poll() is None, (folder / "log").read_text()[-2000:]
        yield url
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        server.wait(30)


def only(place: Path) -> dict[str, str]:
    """The variables of somebody who has the environment `place` and nothing of the project."""
    prefixes = ("MLFLOW_", "PREFECT_", "PYTHONPATH", "SWEETRL_")
    plain = {name: value for name, value in os.environ.items() if not name.startswith(prefixes)}
    own = {"PATH": f"{place / 'bin'}:{plain['PATH']}", "VIRTUAL_ENV": str(place), "OMP_NUM_THREADS": "1"}
    return plain | own | {"MLFLOW_DISABLE_TELEMETRY": "true"}


@contextlib.contextmanager
def models_served(stored: Path, place: Path, folder: Path) -> Iterator[str]:
    """The address of `mlflow models serve` of a stored version, in the environment `place`, started in `folder`."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [str(place / "bin/mlflow"), "models", "serve", "-m", str(stored), "--env-manager", "local"]
    command += ["-h", "127.0.0.1", "-p", str(port), "--workers", "1"]
    with (folder / "log").open("wb") as log:
        run: Any = {"cwd": folder, "env": only(place), "stdout": log, "stderr": log, "start_new_session": True}
        server = subprocess.Popen(command, **run)
    try:
        url = f"http://127.0.0.1:{port}"
        until(lambda: healthy(url, "ping") or server.poll() is not None, "the server did not start", 300)
        assert server.poll() is None, (folder / "log").read_text()[-3000:]
        yield url
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGTERM)
        server.wait(30)
