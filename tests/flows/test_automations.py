"""Notifications: the automations of prefect.yaml on a real Prefect server, whose words a webhook receives."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from queue import Empty, Queue
from typing import Any

import pytest
import yaml
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tests.services.servers import PREFECT_PASSWORD, Prefect
from tests.signals import answering

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 60.0  # until a notification arrives
REASON = "version 2 has won and is not merged: dvc.lock has uncommitted changes"


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Prefect]:
    made = Prefect(tmp_path / "prefect", f"sqlite+aiosqlite:///{tmp_path}/prefect.db")
    made.start()
    yield made
    made.stop(hard=True)


@pytest.fixture
def inbox() -> Iterator[tuple[str, Queue[dict[str, str]]]]:
    """The address of a webhook, and what it receives."""
    received: Queue[dict[str, str]] = Queue()

    async def take(request: Request) -> Response:
        received.put(await request.json())
        return Response()

    with answering(Starlette(routes=[Route("/", take, methods=["POST"])])) as url:
        yield url, received


@pytest.mark.slow
def test_a_winner_that_waits_is_reported_by_webhook_once_and_each_project_has_its_own(
    server: Prefect, inbox: tuple[str, Queue[dict[str, str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    from prefect.blocks.notifications import CustomWebhookNotificationBlock
    from prefect.client.orchestration import get_client
    from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings
    from prefect.states import Failed

    from flows.deploy import PROJECT, automate
    from tasks.status import last_night
    from tasks.training import Waiting

    def automations(project: str) -> list[dict[str, Any]]:
        return yaml.safe_load((ROOT / "prefect.yaml").read_text().replace(PROJECT, project))["automations"]

    url, received = inbox
    monkeypatch.setenv("PREFECT_API_URL", server.url)
    server_settings = {PREFECT_API_URL: server.url, PREFECT_API_AUTH_STRING: PREFECT_PASSWORD}
    with temporary_settings(server_settings), get_client(sync_client=True) as client:
        assert "no notification block team" in automate(client, automations("own"), "team")
        assert not client.read_automations()
        sent = {"subject": "{{subject}}", "body": "{{body}}"}
        block: Any = CustomWebhookNotificationBlock(name="team", url=url, json_data=sent)
        block.save("team")
        for project in ("own", "other", "own"):
            assert "tells of" in automate(client, automations(project), "team")
        assert {automation.name: automation.enabled for automation in client.read_automations()} == {
            "own.needs-a-person": True,
            "own.refused": False,
            "other.needs-a-person": True,
            "other.refused": False,
        }
        flow = client.create_flow_from_name("retrain")
        deployment = client.create_deployment(flow, name="own.nightly")
        run = client.create_flow_run_from_deployment(deployment)
        client.set_flow_run_state(run.id, Failed(name=Waiting.__name__, message=REASON), force=True)
        night = last_night("own")
        assert night is not None and (night.state, night.message, night.failed) == ("Waiting", REASON, True)
        assert last_night("other") is None
    notification = received.get(timeout=SECONDS)
    assert notification["subject"] == "own: retrain ended as Waiting"
    assert notification["body"].startswith(REASON)
    with pytest.raises(Empty):
        received.get(timeout=3)
