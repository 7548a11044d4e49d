"""A vLLM server that we start, watch and end. It dies with us, and is started again when it dies on its own."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from math import prod
from pathlib import Path

from sweetrl.errors import UserError
from sweetrl.io import private_file

logger = logging.getLogger("sweetrl")

RESTARTS = 3
# Adapters are loaded at run time; no telemetry, no downloads from the hub.
ENVIRONMENT = {
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
}

# Reads until the process at the other end of the pipe is gone, and then kills a group of processes.
_GUARD = "import os, sys; sys.stdin.buffer.read(); os.killpg(int(sys.argv[1]), 9)"


class ManagedServer:
    """`command` as a process of its own on `port`, with its output in the file `log`; close it.

    A process that ends by itself is started again, `restarts` times at most. `close` ends the process and all that it
    has started, and so does our own end, even by kill -9: an orphaned engine would keep its GPUs from the next run.
    """

    def __init__(self, command: Sequence[str], port: int, log: Path, restarts: int = RESTARTS) -> None:
        self.command, self.port, self.log = list(command), port, Path(log)
        self.url = f"http://127.0.0.1:{port}/v1"
        self.restarts = 0
        self._allowed = restarts
        self._closing = threading.Event()
        self._changing = threading.Lock()
        private_file(self.log)
        self.process, self._guard = self._start()
        threading.Thread(target=self._watch, name="sweetrl-server", daemon=True).start()

    @property
    def given_up(self) -> bool:
        """Whether the process has ended and is not started again."""
        return self.restarts >= self._allowed and self.process.poll() is not None

    def wait_ready(self, seconds: float, advice: str = "") -> None:
        """Return when the server's health page answers; UserError where it ends, or takes more than `seconds`.

        `advice` is a half sentence on what often ends it; it stands behind the server's last words.
        """
        import httpx

        address = self.url.removesuffix("/v1") + "/health"
        deadline = time.monotonic() + seconds
        # No proxy of the environment stands between us and our own machine. Making a client takes longer than asking.
        with httpx.Client(timeout=2.0, trust_env=False) as client:
            while time.monotonic() < deadline:
                if self.given_up:
                    raise UserError(
                        f"{self.log}: the server `{self.command[0]}` ended with status {self.process.returncode} "
                        f"before it answered: {self.last_words()}{advice and f'; {advice}.'}"
                    )
                with contextlib.suppress(httpx.HTTPError):
                    if client.get(address).status_code == 200:
                        return
                time.sleep(0.25)
        raise UserError(
            f"{self.log}: the server has not answered within {seconds:g} s; raise `engine.start_seconds`, or fix what "
            f"it says last: {self.last_words()}"
        )

    def last_words(self) -> str:
        """The last line of the log that is not empty."""
        with self.log.open(encoding="utf-8", errors="replace") as lines:
            last = deque((line.strip() for line in lines if line.strip()), maxlen=1)
        return last[0][:300] if last else ""

    def close(self) -> None:
        """End the server: by SIGTERM, and after 20 seconds by SIGKILL."""
        with self._changing:
            self._closing.set()
        self._signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(20)
        self._end()
        self.process.wait()

    def _start(self) -> tuple[subprocess.Popen[bytes], subprocess.Popen[bytes]]:
        """Start the server in a group of its own, and a guard that ends the group when we are gone."""
        try:
            with self.log.open("ab") as output:
                process = subprocess.Popen(
                    self.command,
                    env=ENVIRONMENT | os.environ,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
        except OSError as error:
            raise UserError(
                f"engine.command: `{self.command[0]}` cannot be started ({error.strerror}); install vLLM, or name a "
                "running server in `engine.urls`."
            ) from error
        guard = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _GUARD, str(process.pid)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        return process, guard

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)

    def _end(self) -> None:
        """End what is left of the group, and its guard: the group's number may soon be another's."""
        self._signal(signal.SIGKILL)
        self._guard.kill()
        self._guard.communicate()

    def _watch(self) -> None:
        while not self._closing.wait(0.25):
            if self.process.poll() is None:
                continue
            with self._changing:
                if self._closing.is_set() or self.restarts >= self._allowed:
                    return
                self._end()
                self.restarts += 1
                logger.warning(
                    "the server ended with status %s; starting it again (%s; it said last: %s)",
                    self.process.returncode,
                    self.log,
                    self.last_words(),
                )
                try:
                    self.process, self._guard = self._start()
                except UserError as error:  # as where the command has gone since
                    self.restarts = self._allowed
                    logger.warning("%s", error)


def vllm_command(template: str, arguments: str, model: str, port: int, served: str, rank: int) -> list[str]:
    """Return the command line of a vLLM server of `model` that loads adapters up to `rank` while it runs."""
    try:
        words = [word.replace("{model}", model) for word in shlex.split(template)]
        more = shlex.split(arguments)
    except ValueError as error:
        raise UserError(f"engine.command or engine.arguments: {error}; fix the quotes.") from error
    if model not in words:
        raise UserError(
            f"engine.command: {template!r} has no {{model}} in it; put it where the model's folder belongs."
        )
    if trusting := [word for word in [*words, *more] if word.replace("_", "-").startswith("--trust")]:
        raise UserError(
            f"engine.command or engine.arguments: {trusting[0]!r} would run code that a model's folder brings; leave "
            "it out, and start a server that needs it yourself (`engine.urls`)."
        )
    # The smallest limit that vLLM knows and that `rank` fits in.
    limit = next((limit for limit in (8, 16, 32, 64, 128, 256, 320, 512) if rank <= limit), rank)
    needed = ["--host", "127.0.0.1", "--port", str(port), "--served-model-name", served]
    needed += ["--enable-prompt-tokens-details", "--enable-lora", "--max-lora-rank", str(limit)]
    return [*words, *more, *needed]


def gpus_of(command: Sequence[str], devices: Path = Path("/dev")) -> int:
    """Return how many GPUs of this machine a vLLM server uses: what its parallel sizes make; 0 where there are none."""
    if not any(devices.glob("nvidia[0-9]*")) and not (devices / "kfd").exists():
        return 0
    option = r"-([tpd])(?:p|(?:ensor|ipeline|ata)-parallel-size)[ =](\d+)"
    sizes = dict(re.findall(option, " ".join(command)))  # the last one of each counts, as for vLLM
    return prod(map(int, sizes.values()))


def free_port() -> int:
    """Return a port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
