"""Consent and outcome over HTTP: requests, and the rows that are kept of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from sweetrl.config.settings import Settings
from sweetrl.serve.alias import Follower, Speaker
from sweetrl.serve.endpoint import Endpoint
from sweetrl.serve.recorder import Recorder
from sweetrl.serve.source import Handed
from sweetrl.tracking.chat_agent import AgentConfig
from sweetrl.types import Completion

FEW = {"role": "user", "content": "I want a function."}


class Agent:
    """An agent that says the number of the turn."""

    context = 99
    config = AgentConfig("b", max_turns=3, max_new_tokens=8, temperature=0.0, system_prompt="You are.")

    def __init__(self) -> None:
        self.engine = self

    def prompt_ids(self, messages: Any) -> tuple[int, ...]:
        self.turn = len(messages) // 2 + 1
        return (1,)

    def sample(self, prompts: Any, sampling: Any) -> list[list[Completion]]:
        return [[Completion((1,), (), f"turn {self.turn}", "stop") for _ in range(sampling.n)] for _ in prompts]

    def close(self) -> None:
        pass


def client_of(recorder: Recorder | None, host: str | None = "127.0.0.1") -> TestClient:
    agent: Any = Agent()
    follower = Follower("agent@champion", Settings(), 10.0)
    follower.speaker = Speaker(Handed("agent", "4", Path("adapter"), "b", agent.config), agent)
    return TestClient(Endpoint(follower, recorder, host).app(), "http://127.0.0.1:8000")


@pytest.fixture
def client(tmp_path: Path) -> Iterator[TestClient]:
    with client_of(Recorder(tmp_path / "kept")) as test_client:
        yield test_client


def ask(client: TestClient, *messages: dict[str, str], **values: Any) -> dict[str, Any]:
    headers = values.pop("headers", None)
    body = {"model": "agent", "messages": list(messages), **values}
    response = client.post("/v1/chat/completions", json=body, headers=headers)
    assert response.status_code == 200, response.text
    return response.json()["sweetrl"]


def test_a_dialogue_with_consent_and_outcome_is_kept(tmp_path: Path) -> None:
    with client_of(Recorder(tmp_path / "kept")) as client:
        name = ask(client, FEW, metadata={"consent": "true"})["dialogue"]
        more = [{"role": "assistant", "content": "turn 1"}, {"role": "user", "content": "It adds."}]
        assert ask(client, FEW, *more, metadata={"consent": "true", "dialogue": name})["dialogue"] == name
        feedback = client.post("/v1/feedback", json={"dialogue": name, "reward": 0.5, "task_id": "adding"})
        assert feedback.json() == {"dialogue": name, "status": "kept"}
        again = client.post("/v1/feedback", json={"dialogue": name, "reward": 1})
        assert again.status_code == 404 and "no open dialogue" in again.json()["error"]["message"]
    (file,) = (tmp_path / "kept").glob("served-*.jsonl")
    row = json.loads(file.read_text())
    assert (row["reward"], row["task_id"], row["model"], row["consent"]) == (0.5, "adding", "agent version 4", True)
    assert [message["content"] for message in row["messages"]] == [FEW["content"], "turn 1", "It adds.", "turn 2"]


def test_without_consent_an_answer_names_no_dialogue(client: TestClient, tmp_path: Path) -> None:
    for metadata in (None, {}, {"consent": "false"}, {"consent": "yes"}, {"user": "7"}):
        assert "dialogue" not in ask(client, FEW, metadata=metadata)
    assert "dialogue" not in ask(client, FEW, metadata={"consent": "true"}, n=2)
    assert {path.name for path in (tmp_path / "kept").iterdir()} == {".lock", ".gitignore"}


@pytest.mark.parametrize(
    ("body", "place"),
    [
        ({"dialogue": "a"}, "The body"),
        ({"dialogue": "a", "outcome": "good"}, "`outcome`"),
        ({"dialogue": "a", "reward": float("nan")}, "`reward`"),
        ({"dialogue": "a", "reward": 1, "reference": "x" * 2**17}, "`reference`"),
        ({"dialogue": "a", "reward": 1, "who": "me"}, "`who`"),
        (b"[" * 5000, ""),
    ],
)
def test_odd_feedback_is_refused_with_a_sentence(client: TestClient, body: Any, place: str) -> None:
    response = client.post("/v1/feedback", content=body if isinstance(body, bytes) else json.dumps(body).encode())
    message = response.json()["error"]["message"]
    assert response.status_code == 400 and message.endswith(".") and message.startswith(f"{place}: " if place else "")


def test_feedback_is_no_page_where_nothing_is_kept() -> None:
    with client_of(None) as client:
        assert "dialogue" not in ask(client, FEW, metadata={"consent": "true"})
        assert client.post("/v1/feedback", json={}).status_code == 404


OWN = [{"Host": name} for name in ("127.0.0.1:8000", "localhost", "LOCALHOST:9000", "[::1]:8000", "10.0.0.7")]
OWN += [{"Host": "localhost:8000", "Origin": "http://localhost:8000", "Sec-Fetch-Site": "same-origin"}]
FOREIGN = [
    {"Host": "evil.example"},
    {"Host": "evil.example:8000", "Origin": "http://evil.example:8000"},
    {"Host": "localhost.evil.example"},
    {"Origin": "https://evil.example"},
    {"Origin": "null"},
    {"Origin": "http://127.0.0.1:3000"},
    {"Sec-Fetch-Site": "cross-site"},
]


def test_names_of_this_machine_are_answered(client: TestClient) -> None:
    for headers in OWN:
        assert ask(client, FEW, headers=headers)["turn"] == 1


@pytest.mark.parametrize("headers", FOREIGN)
def test_web_sites_write_no_dialogues(client: TestClient, tmp_path: Path, headers: dict[str, str]) -> None:
    body = json.dumps({"model": "agent", "messages": [FEW], "metadata": {"consent": "true"}})
    headers = {**headers, "Content-Type": "text/plain"}
    for page in ("/v1/chat/completions", "/v1/feedback"):
        refused = client.post(page, content=body, headers=headers)
        error = refused.json()["error"]
        assert refused.status_code == 403 and error["type"] == "invalid_request_error"
        assert error["message"].endswith(".") and error["message"].count(".") == 1
    assert client.get("/v1/models", headers=headers).status_code == 403
    assert not list((tmp_path / "kept").glob(".open-*"))


def test_where_others_reach_it_the_endpoint_takes_every_name() -> None:
    with client_of(None, host=None) as client:
        for headers in FOREIGN:
            assert ask(client, FEW, headers=headers)["turn"] == 1
