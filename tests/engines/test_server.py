"""The server of our own: started, waited for, started again, ended with all its children; and its command line."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from sweetrl.config.settings import parse_settings
from sweetrl.engines.policy import watched
from sweetrl.engines.vllm_server import ManagedServer, free_port, gpus_of, vllm_command
from sweetrl.errors import UserError

SERVER = """
import subprocess, sys
from http.server import BaseHTTPRequestHandler, HTTPServer
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print("child", child.pid, flush=True)
class Health(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/health" else 404)
        self.end_headers()
    def log_message(self, *arguments): ...
HTTPServer(("127.0.0.1", int(sys.argv[1])), Health).serve_forever()
"""


def alive(pid: int) -> bool:
    """Whether the process runs (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_the_gpus_of_a_server(tmp_path: Path) -> None:
    command = ["vllm", "serve", "m", "-tp", "4", "--pipeline-parallel-size=2", "--port", "80"]
    assert gpus_of(command, tmp_path) == 0  # a machine without GPUs
    (tmp_path / "nvidiactl").touch()
    assert gpus_of(command, tmp_path) == 0
    (tmp_path / "nvidia0").touch()
    assert gpus_of(command, tmp_path) == 8
    assert gpus_of([*command, "--tensor-parallel-size", "1"], tmp_path) == 2  # the last one counts, as for vLLM
    assert gpus_of(["vllm", "serve", "m"], tmp_path) == 1


def test_a_server_is_started_again_and_ends_with_its_children(tmp_path: Path) -> None:
    port = free_port()
    with closing(ManagedServer([sys.executable, "-c", SERVER, str(port)], port, tmp_path / "log")) as server:
        server.wait_ready(60)
        assert server.url == f"http://127.0.0.1:{port}/v1"
        first = server.process.pid
        os.kill(first, signal.SIGKILL)
        deadline = time.monotonic() + 60
        while server.process.pid == first and time.monotonic() < deadline:
            time.sleep(0.02)
        server.wait_ready(60)
        assert server.process.pid != first and server.restarts == 1 and not server.given_up
        pids = [int(line.split()[1]) for line in (tmp_path / "log").read_text().splitlines()]
        pids += [server.process.pid]
    deadline = time.monotonic() + 120
    while any(map(alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not [pid for pid in pids if alive(pid)]
    with pytest.raises(httpx.ConnectError):
        httpx.get(server.url)


def test_kill_9_leaves_nothing_of_the_server(tmp_path: Path) -> None:
    port, log = free_port(), tmp_path / "log"
    program = (
        "import sys, time; from pathlib import Path; from sweetrl.engines.vllm_server import ManagedServer\n"
        f"server = ManagedServer([sys.executable, '-c', {SERVER!r}, '{port}'], {port}, Path({str(log)!r}))\n"
        "server.wait_ready(60); print(server.process.pid, flush=True); time.sleep(600)"
    )
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    pids = [int(process.stdout.readline()), int(log.read_text().split()[1])]
    assert all(map(alive, pids))
    process.kill()
    process.wait()
    process.stdout.close()
    deadline = time.monotonic() + 120
    while any(map(alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not [pid for pid in pids if alive(pid)]


def test_a_server_that_cannot_live_says_why(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "raise SystemExit('no such model')"]
    server = ManagedServer(command, free_port(), tmp_path / "log", restarts=1)
    with pytest.raises(UserError, match="ended with status 1 before it answered: no such model"):
        server.wait_ready(60)
    assert server.given_up
    server.close()
    slow = ManagedServer([sys.executable, "-c", "import time; time.sleep(600)"], free_port(), tmp_path / "slow")
    with pytest.raises(UserError, match=r"has not answered within 0.1 s; raise `engine.start_seconds`"):
        slow.wait_ready(0.1)
    slow.close()
    with pytest.raises(UserError, match="`no-such-program` cannot be started"):
        ManagedServer(["no-such-program"], free_port(), tmp_path / "none")


def test_a_server_that_cannot_be_started_again_is_given_up(tmp_path: Path) -> None:
    command = tmp_path / "server"
    command.write_text("#!/bin/sh\nrm $0\nexit 3\n")
    command.chmod(0o755)
    server = ManagedServer([str(command)], free_port(), tmp_path / "log")
    try:
        with pytest.raises(UserError, match="ended with status 3"):
            server.wait_ready(30.0)
    finally:
        server.close()


def test_the_command_line() -> None:
    words = vllm_command("vllm serve {model}", "--enforce-eager --seed '1'", "/models/a b", 81, "base", 12)
    assert words[:6] == ["vllm", "serve", "/models/a b", "--enforce-eager", "--seed", "1"]
    assert words[words.index("--port") + 1] == "81"
    assert words[words.index("--max-lora-rank") + 1] == "16"
    with pytest.raises(UserError, match=r"no \{model\} in it"):
        vllm_command("vllm serve", "", "m", 81, "base", 8)
    with pytest.raises(UserError, match="fix the quotes"):
        vllm_command("vllm 'serve {model}", "", "m", 81, "base", 8)


@pytest.mark.parametrize(
    ("dtype", "gpus", "named"), [("float32", 1, True), ("float32", 0, False), ("bfloat16", 1, False)]
)
def test_float32_is_named_where_a_server_on_a_gpu_cannot_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str, gpus: int, named: bool
) -> None:
    """vLLM's kernels for adapters assert half precision, and its last words do not say so."""
    monkeypatch.chdir(tmp_path)
    Path("models/base").mkdir(parents=True)
    Path("models/base/config.json").write_text('{"model_type": "llama"}')
    monkeypatch.setattr("sweetrl.engines.vllm_server.gpus_of", lambda command: gpus)
    Path("server.py").write_text("raise SystemExit('Engine core initialization failed')")
    engine = {"kind": "vllm", "command": f"'{sys.executable}' server.py {{model}}", "start_seconds": 60.0}
    settings = parse_settings({"engine": engine, "model": {"dtype": dtype}})
    with pytest.raises(UserError) as caught, watched(settings.engine, settings.model, Path("stage.log")):
        pass
    assert "ended with status 1 before it answered: Engine core initialization failed" in str(caught.value)
    assert str(caught.value).endswith("only: set `model.dtype: bfloat16`.") == named
