"""A served agent for tests: the endpoint over HTTP in a thread, and what one asks it."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import uvicorn

from sweetrl.config.settings import EngineSettings, Settings
from sweetrl.engines.vllm_server import free_port
from sweetrl.serve.alias import Follower
from sweetrl.serve.endpoint import Endpoint
from tests.signals import until

REQUEST = [{"role": "user", "content": "I want a function that computes the price of a ticket."}]


@dataclass
class Running:
    url: str
    endpoint: Endpoint
    client: httpx.Client

    def post(self, body: Any, **options: Any) -> httpx.Response:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.client.post(f"{self.url}/v1/chat/completions", content=content, timeout=60, **options)

    @property
    def version(self) -> str:
        """The version that answers now."""
        return self.endpoint.follower.speaker.handed.version


@contextlib.contextmanager
def running(
    reference: str, settings: Settings, seconds: float = 0.1, engine: EngineSettings | None = None
) -> Iterator[Running]:
    follower = Follower(reference, settings, seconds, engine or EngineSettings())
    with follower.started(Path("serve.log")):
        yield from answering(Endpoint(follower))


def answering(made: Endpoint) -> Iterator[Running]:
    port = free_port()
    server = uvicorn.Server(uvicorn.Config(made.app(), host="127.0.0.1", port=port, log_level="warning"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        until(lambda: server.started)
        with httpx.Client(trust_env=False) as client:
            yield Running(f"http://127.0.0.1:{port}", made, client)
    finally:
        server.should_exit = True
        thread.join(30)
