"""Opening the store: what is wrong with its address, its server or its answer is one sentence."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from sweetrl.config.settings import Settings
from sweetrl.engines.vllm_server import free_port
from sweetrl.errors import UserError
from sweetrl.tracking.store import connect
from tests.signals import answering

EXPERIMENT = {"experiment_id": "7", "name": "sweetrl", "lifecycle_stage": "active"}


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """It answers the request for an experiment with `answers`; nothing may be written there."""
    made = SimpleNamespace(answers=(200, json.dumps({"experiment": EXPERIMENT})))

    async def answer(request: Request) -> Response:
        status, text = made.answers
        return Response(text, status)

    with answering(Starlette(routes=[Route("/{path:path}", answer, methods=["GET"])])) as url:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
        monkeypatch.setenv("MLFLOW_TRACKING_URI", url)
        yield made


def test_who_may_only_read_opens_the_store(server: Any) -> None:
    assert connect(Settings().tracking).experiment_id == "7"


@pytest.mark.parametrize("answers", [(200, "<html>Log in"), (200, '{"experiment": 1}'), (401, "no"), (500, "x")])
def test_a_server_that_is_none_of_mlflow_or_refuses_is_one_sentence(server: Any, answers: tuple[int, str]) -> None:
    server.answers = answers
    with pytest.raises(UserError, match="MLflow's store does not answer") as raised:
        connect(Settings().tracking)
    assert "\n" not in str(raised.value)


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize("uri", ["file:///tmp/mlruns", "unknown+db://u@h/x"])
def test_an_address_that_cannot_be_is_one_sentence(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    with pytest.raises(UserError, match="correct MLFLOW_TRACKING_URI"):
        connect(Settings().tracking)


@pytest.mark.usefixtures("server")
def test_a_password_in_the_address_is_in_no_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://me:secret@127.0.0.1:{free_port()}")
    with pytest.raises(UserError, match=r"http://127") as raised:
        connect(Settings().tracking)
    assert "secret" not in str(raised.value)


@pytest.mark.usefixtures("server")
def test_a_database_without_its_driver_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg2", None)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "postgresql://me:secret@127.0.0.1/mlflow")
    with pytest.raises(UserError, match=r"postgresql://127.*`pip install 'sweetrl\[postgres\]'`"):
        connect(Settings().tracking)
