"""Opening the store: what is wrong with its address, its server or its answer is one sentence."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from sweetrl.config.settings import Settings
from sweetrl.engines.vllm_server import free_port
from sweetrl.errors import UserError
from sweetrl.tracking.store import connect

EXPERIMENT = {"experiment_id": "7", "name": "sweetrl", "lifecycle_stage": "active"}


class Server(ThreadingHTTPServer):
    """Answers the question for an experiment with what `answers` says; nothing may be written there."""

    answers = (200, json.dumps({"experiment": EXPERIMENT}))


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        assert isinstance(self.server, Server)
        status, text = self.server.answers
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *words: object) -> None:
        """Say nothing."""


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    with Server(("127.0.0.1", 0), Handler) as made:
        threading.Thread(target=made.serve_forever, daemon=True).start()
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{made.server_port}")
        yield made
        made.shutdown()


def test_who_may_only_read_opens_the_store(server: Server) -> None:
    assert connect(Settings().tracking).experiment_id == "7"


@pytest.mark.parametrize(
    "answers",
    [(200, "<html>Log in"), (200, '{"experiment": {"experiment_id": [1]}}'), (401, "no"), (403, "no"), (500, "x")],
)
def test_a_server_that_is_none_of_mlflow_or_refuses_is_one_sentence(server: Server, answers: tuple[int, str]) -> None:
    server.answers = answers
    with pytest.raises(UserError, match="MLflow's store does not answer") as told:
        connect(Settings().tracking)
    assert "\n" not in str(told.value)


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize("uri", ["mlruns", "file:///tmp/mlruns", "ftp://host/path", "unknown+db://u@h/x"])
def test_an_address_that_cannot_be_is_one_sentence(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    with pytest.raises(UserError, match="correct MLFLOW_TRACKING_URI"):
        connect(Settings().tracking)


@pytest.mark.usefixtures("server")
def test_a_password_in_the_address_is_in_no_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://me:secret@127.0.0.1:{free_port()}")
    with pytest.raises(UserError, match=r"http://127") as told:
        connect(Settings().tracking)
    assert "secret" not in str(told.value)


@pytest.mark.usefixtures("server")
def test_a_database_without_its_driver_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg2", None)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "postgresql://me:secret@127.0.0.1/mlflow")
    with pytest.raises(UserError, match=r"postgresql://127.*`pip install 'sweetrl\[postgres\]'`"):
        connect(Settings().tracking)
