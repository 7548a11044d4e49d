"""The flow `ingest`: its options, what it prints, and that its event is the one that retraining waits for."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from flows import ingest as module
from sweetrl.ingest.batches import Made
from tasks import steps
from tasks.ingestion import Ingested

ROOT = Path(__file__).resolve().parents[2]
MADE = Made("000003", "in", "dialogues", "dialogues-000003", files=2, rows=5, bad=1, holds=("dialogues-000003",))


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the flow's steps are called with; the project has a source."""
    (tmp_path / "params.yaml").write_text("ingest: {source: in}\n")
    monkeypatch.chdir(tmp_path)
    calls: list[Any] = []

    def take(*arguments: Any) -> Ingested:
        calls.append(arguments[:-1])
        return Ingested(MADE, "dialogues-000003", ("data to store",))

    monkeypatch.setattr(module.ingestion, "ingest", take)
    monkeypatch.setattr(module, "step", lambda name, action: action)
    monkeypatch.setattr(module, "send", lambda *event: calls.append(event))
    monkeypatch.setattr(module, "get_run_logger", lambda: SimpleNamespace(info=lambda text: calls.append(text)))
    monkeypatch.setattr("flows.console.command_line", lambda action: action() or 0)
    return calls


def test_what_waits_is_announced(calls: list[Any], tmp_path: Path) -> None:
    module.ingest.fn(str(tmp_path), kind="tasks", again=True)
    assert calls == [
        (tmp_path, "", "tasks", True, True),
        ("arrived", "data", "sweetrl-agent", {"batch": "dialogues-000003", "kind": "dialogues"}),
    ]
    calls.clear()
    module.ingest.fn(str(tmp_path), announce=False)
    assert len(calls) == 1


def test_by_its_schedule_it_has_nothing_to_do_without_a_source(calls: list[Any], tmp_path: Path) -> None:
    (tmp_path / "params.yaml").write_text("seed: 7\n")
    assert module.ingest.fn(str(tmp_path)) == Ingested(None)
    assert calls == ["ingest.source is empty in params.yaml: there is nowhere to look for new files"]


def test_the_command_line(calls: list, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(module, "ingest", module.ingest.fn)
    monkeypatch.setattr("sys.argv", ["ingest", "s3://team/x/", "--kind", "dialogues", "--no-push", "--no-event"])
    with pytest.raises(SystemExit, match="0"):
        module.main()
    assert calls == [(Path.cwd(), "s3://team/x/", "dialogues", False, False)]
    assert capsys.readouterr().out.splitlines() == [
        "dialogues-000003: 5 rows of 2 new files, 1 put aside (data/ingest/quarantine/000003.jsonl)",
        "pushed:  data to store",
        "waiting: dialogues-000003 (`python -m flows.retrain` takes it)",
    ]
    monkeypatch.setattr("sys.argv", ["ingest", "--no-event", "--json"])
    with pytest.raises(SystemExit, match="0"):
        module.main()
    printed = json.loads(capsys.readouterr().out)
    assert printed["made"]["batch"] == printed["waiting"] == "dialogues-000003"
    assert (printed["made"]["rows"], printed["made"]["bad"], printed["pushed"]) == (5, 1, ["data to store"])
    monkeypatch.setattr(module.ingestion, "ingest", lambda *arguments: Ingested(None))
    with pytest.raises(SystemExit, match="0"):
        module.main()
    assert json.loads(capsys.readouterr().out) == {"made": None, "waiting": "", "pushed": []}


def test_the_event_is_the_one_that_starts_the_nightly_retraining(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Any] = []
    monkeypatch.setattr(steps, "emit_event", lambda **values: sent.append(values))
    monkeypatch.setattr(steps, "get_run_logger", lambda: SimpleNamespace(info=lambda *arguments: None))
    steps.announce("arrived", "data", "mine", {"batch": "dialogues-000003"})
    (event,) = sent
    text = (ROOT / "prefect.yaml").read_text().replace("{{ $SWEETRL_PROJECT }}", "mine")
    deployments = {deployment["name"]: deployment for deployment in yaml.safe_load(text)["deployments"]}
    triggers = deployments["mine.nightly"]["triggers"]
    trigger = next(trigger for trigger in triggers if event["event"] in trigger["expect"])
    assert event["resource"]["prefect.resource.id"] == trigger["match"]["prefect.resource.id"]
    assert event["payload"] == {"batch": "dialogues-000003"}
    assert deployments["mine.ingest"]["schedules"] and deployments["mine.ingest"]["triggers"]
