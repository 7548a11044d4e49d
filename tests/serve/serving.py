"""A served agent for tests: the endpoint over HTTP in a thread, and requests to it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from sweetrl.config.settings import EngineSettings, Settings
from sweetrl.serve.alias import Follower
from sweetrl.serve.endpoint import Endpoint
from tests.signals import answering

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
    with (
        follower.started(Path("serve.log")),
        httpx.Client(trust_env=False) as client,
        answering((endpoint := Endpoint(follower)).app()) as url,
    ):
        yield Running(url, endpoint, client)
