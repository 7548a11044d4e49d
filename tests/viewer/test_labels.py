"""People's labels of dialogues: given in the page, kept in the project, and taken by an import as rewards."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from chromium import Chromium, serving
from made import TESTS, TRAINING

from sweetrl.colbench.store import TrajectoryStore, write_task_table
from sweetrl.config.settings import Settings
from sweetrl.errors import UserError
from sweetrl.ingest.checks import HELD_OUT, DialogueChecks
from sweetrl.stages.import_dialogues import import_standalone
from sweetrl.viewer import labels as labels_module
from sweetrl.viewer.run import open_viewer
from sweetrl.viewer.server import Viewer

FIRST = "#/dialogue/data%2Ftrajectories/{}/{}"


@pytest.fixture
def own(other: Path, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Viewer:
    """The viewer of a project that may be written to, from within it."""
    monkeypatch.chdir(other)
    return open_viewer(".", settings, tmp_path / "links")


@pytest.fixture
def client(own: Viewer) -> Iterator[httpx.Client]:
    with serving(own) as address, httpx.Client(base_url=address, trust_env=False, timeout=60) as http:
        yield http


def row_of(viewer: Viewer, task: str, attempt: int = 0, source: str = "data/trajectories") -> int:
    every = viewer.dialogues.every()
    rows = (row for row, spoken, shown in every if shown["source"] == source and spoken and spoken.task.id == task)
    return list(rows)[attempt]


def label(reward: float | None = None, note: str = "") -> dict[str, Any]:
    return {"reward": reward, "note": note}


def test_a_label_given_in_the_page_arrives_through_an_import_as_the_reward(
    own: Viewer, settings: Settings, chromium: Chromium
) -> None:
    with serving(own) as address, chromium.looking(address) as tab:
        for fragment, reward, note in (
            (FIRST.format(TRAINING[0].id, 0), "0.25", "Asks <b>twice</b>, tersely"),
            (FIRST.format(TRAINING[0].id, 1), "1", ""),
            (FIRST.format(TRAINING[1].id, 0), "", "for Bob"),
            (f"#/dialogue/data%2Fevaluation%2Fbase/{TESTS[1].id}/0", "1", "about a test task"),
        ):
            tab.js("document.querySelector('main').replaceChildren(); 0")
            tab.to(fragment)
            tab.until("!!document.querySelector('.card.label')")
            tab.js(f"document.querySelector('.card.label input').value = '{reward}'; 0")
            tab.js(f"document.querySelector('.card.label textarea').value = '{note}'; 0")
            tab.js("document.querySelector('#toast').textContent = ''; 0")
            tab.click(".card.label > .button")
            tab.until("document.querySelector('#toast').textContent === 'Kept in data/labels/'")
        tab.go(f"{address}#/dialogues?q=terse&columns=task,label")  # a note alone has the word
        tab.until("document.querySelector('.told').textContent.startsWith('1 dialogue of 64')")
        assert "0.25" in tab.text(".inner .row .label") and "<b>twice</b>" in tab.text(".inner .row .label")
        tab.to("#/dialogues?label=0.9..")
        tab.until("document.querySelectorAll('.inner .row').length === 2")
    write_task_table(Path("data/tasks/test.parquet"), TESTS)
    labels = Path("data/labels/labels.jsonl")
    counts = import_standalone(settings, [labels], Path("taken"), [Path("data/tasks/test.parquet")])
    assert (counts["dialogues"], counts["held_out"], counts["bad_rows"]) == (2, 1, 0)
    collected = list(TrajectoryStore("data/trajectories"))[:2]
    for imported, before, reward in zip(TrajectoryStore("taken"), collected, (0.25, 1.0), strict=True):
        assert (imported.reward, imported.messages) == (reward, before.messages) and before.reward != 0.25
        assert imported.task.ground_truth == before.task.ground_truth and imported.policy == "models/base"
    checks = DialogueChecks(settings, Path(), Path("docs"))
    assert checks.faults([labels])[0] == {(0, 3): HELD_OUT}, "nor does an ingest take it"
    assert [json.loads(line)["consent"] for line in labels.read_text().splitlines()] == [True] * 3, "of a script"
    again = open_viewer("taken", settings, Path("links")).meta()
    assert again["labels"] == {0: (0.25, "Asks <b>twice</b>, tersely"), 1: (1.0, "")}, "words have their label"


def test_of_two_people_nobody_overwrites_what_they_have_not_seen(own: Viewer, client: httpx.Client) -> None:
    row = row_of(own, TRAINING[0].id)
    first = {**label(1, "fine"), "before": label()}
    assert client.post(f"/api/label/{row}", json=first).json() == {str(row): [1.0, "fine"]}
    late = client.post(f"/api/label/{row}", json={**label(0), "before": label()})
    assert late.status_code == 400 and "Somebody else has said something" in late.json()["error"]
    assert client.get("/api/meta").json()["labels"] == {str(row): [1.0, "fine"]}
    rows = [row_of(own, task.id, attempt) for task in TRAINING[1:6] for attempt in (0, 1)]

    def post(number: int) -> None:
        client.post(f"/api/label/{number}", json={**label(0.5), "before": label()})

    threads = [threading.Thread(target=post, args=(number,)) for number in rows]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert client.get("/api/meta").json()["labels"].keys() == {str(number) for number in (row, *rows)}
    back = {**label(), "before": label(1, "fine")}
    assert client.post(f"/api/label/{row}", json=back).json() == {str(row): [None, ""]}
    assert str(row) not in client.get("/api/meta").json()["labels"], "taken back"


@pytest.mark.parametrize(
    ("reward", "note", "status", "why"),
    [
        (1.5, "", 400, "outside 0 to 1"),
        ("1", "", 422, ""),
        (1, "x" * 2_001, 422, ""),
        (1, "x" * 2**17, 400, "error parsing the body"),
    ],
)
def test_what_an_import_would_refuse_is_no_label(
    own: Viewer, client: httpx.Client, reward: Any, note: str, status: int, why: str
) -> None:
    row = row_of(own, TRAINING[0].id)
    refused = client.post(f"/api/label/{row}", json={**label(reward, note), "before": label()})
    assert refused.status_code == status and why in refused.text
    foreign = {"Origin": "https://evil.example"}
    assert client.post(f"/api/label/{row}", json={**label(1), "before": label()}, headers=foreign).status_code == 403
    assert own.meta()["labels"] == {}


def test_labels_have_a_place_and_an_end(own: Viewer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    read = own.dialogues.read
    change = labels_module.Change(reward=1.0, before=labels_module.Label())
    own.labels.put(*read(row_of(own, TRAINING[0].id)), change)
    spoken, domain = read(row_of(own, TRAINING[1].id))
    with pytest.raises(UserError, match="needs a request of the user and a reply of the assistant"):
        own.labels.put(replace(spoken, messages=spoken.messages[:1]), domain, change)
    with pytest.raises(UserError, match="of frontend, the project of backend"):
        own.labels.put(replace(spoken, task=replace(spoken.task, suite="frontend")), domain, change)
    monkeypatch.setattr(labels_module, "MOST_BYTES", Path("data/labels/labels.jsonl").stat().st_size)
    with pytest.raises(UserError, match="move the files away"):
        own.labels.put(spoken, domain, change)
    assert len(own.labels.all()) == 1
    (Path("data/labels/labels.jsonl")).write_text('{"messages": 3}\n')
    with pytest.raises(UserError, match=r"labels\.jsonl: line 1: `messages` must be a valid list"):
        own.meta()
    monkeypatch.chdir(tmp_path)
    assert labels_module.Labels("backend").folder is None
