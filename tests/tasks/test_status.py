"""What `sweetrl status` says of retrainings that ended in every way, with what each leaves to do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from flows.status import metrics
from sweetrl.config.settings import load_settings
from sweetrl.errors import UserError
from tasks import retraining, status
from tasks.journal import Journal
from tasks.training import Outcome
from tests.tasks.fake_project import Project, dying_at, git, in_child, light, python

WORSE = "mean reward changed by −19.0 points"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    made = Project.make(tmp_path)
    light(monkeypatch, made)
    (made.home / "mlflow.db").touch()
    (made.home / ".git/info/exclude").write_text("mlflow.db\n")
    monkeypatch.setattr(status, "tracking_enabled", lambda: True)
    monkeypatch.setattr(status, "open_reference", lambda *given: (made.registry(), ""))
    monkeypatch.chdir(made.home)
    return made


def look(project: Project) -> status.ProjectStatus:
    return status.project_status(load_settings(), project.home)


def fail(project: Project) -> None:
    project.failing = {"stage"}
    with pytest.raises(UserError):
        project.retrain()


def wait(project: Project) -> None:
    project.failing = {"gate"}
    with pytest.raises(UserError):
        project.retrain()
    project.failing = set()
    (project.home / "dvc.lock").write_text("being edited\n")
    assert project.retrain()[0].left


def lose(project: Project) -> None:
    project.better = False
    project.retrain()


def die(project: Project) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Journal, "note", dying_at(4, after=True))
        assert in_child(project.retrain) == 9


def harm(project: Project) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Outcome, "harm", WORSE)
        lose(project)


def withdraw(project: Project) -> None:
    fail(project)
    retraining.withdraw(project.home)


@pytest.mark.parametrize(
    ("end", "state", "code", "words"),
    [
        (Project.retrain, "promoted", 0, ""),
        (lose, "refused", 0, ""),
        (wait, "waiting", 4, "dvc.lock has uncommitted changes: commit or undo them; then `python -m flows.retrain"),
        (harm, "harm", 3, "flows.promote sweetrl-agent/3 --accept REASON"),
        (fail, "failed", 1, "--continue"),
        (die, "killed", 1, "--continue"),
        (withdraw, "withdrawn", 0, ""),
    ],
)
def test_the_state_of_the_last_retraining_says_what_to_do(
    project: Project, end: Any, state: str, code: int, words: str
) -> None:
    project.retrain()
    end(project)
    before = {path: path.read_bytes() for path in (project.home / ".git/sweetrl").rglob("*.jsonl")}
    seen = look(project)
    assert seen.last is not None and seen.last.state == state and seen.last.since
    assert seen.last_success is not None
    assert (seen.last_success == seen.last) is (state in ("promoted", "refused"))
    assert seen.champion is not None and seen.champion.version == project.champion()
    to_do = [row for row in seen.to_do() if "disk" not in row[1]]
    assert [number for number, _ in to_do] == ([code] if code else [])
    assert all(words in sentence for _, sentence in to_do)
    assert before == {path: path.read_bytes() for path in (project.home / ".git/sweetrl").rglob("*.jsonl")}


def test_a_night_that_failed_before_it_took_a_batch_is_shown(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    project.retrain()
    for ended, count in (("2000-01-01T02:00:00Z", 0), ("2100-01-01T02:00:00Z", 1)):
        night = status.Night("Failed", ended, "origin does not answer", True)
        monkeypatch.setattr(status, "last_night", lambda model, night=night: night)
        assert sum("origin does not answer" in sentence for _, sentence in look(project).to_do()) == count


def test_a_retraining_at_work_is_not_one_that_was_left(project: Project) -> None:
    die(project)
    (path,) = (project.home / ".git/sweetrl/retrain").glob("*.jsonl")
    with Journal(path):
        seen = look(project)
        assert seen.last is not None and seen.last.state == "running" and not seen.in_state("killed")
    with Journal(path):  # looking holds nothing
        pass


def test_prometheus_reads_what_waits(project: Project) -> None:
    project.retrain()
    wait(project)
    families = text_string_to_metric_families(metrics(look(project)))
    samples = [sample for family in families for sample in family.samples]
    rows = {(sample.name, *sorted(sample.labels.items())): sample.value for sample in samples}
    model = ("model", "sweetrl-agent")
    assert rows["sweetrl_waiting_winners", model] == 1
    assert rows["sweetrl_retraining", model, ("sweetrl_retraining", "waiting")] == 1
    assert rows["sweetrl_retraining", model, ("sweetrl_retraining", "promoted")] == 0
    assert rows["sweetrl_last_success_timestamp_seconds", model] > 1.7e9
    assert 0 <= rows["sweetrl_champion_age_seconds", model, ("version", "2")] < 600
    assert rows["sweetrl_server_up", model, ("server", "mlflow")] == 1


def test_without_mlflow_the_rest_is_shown(project: Project) -> None:
    """The command itself, while MLflow's server is gone."""
    fail(project)
    gone = {"MLFLOW_TRACKING_URI": "http://127.0.0.1:9", "SWEETRL_TRACKING": "on"}
    before = git(project.home, "status", "--porcelain", "--ignored")
    done = python("-m", "flows.status", cwd=project.home, **gone)
    assert done.returncode == 1 and done.stderr == ""
    rows = [tuple(line.split("\t")) for line in done.stdout.splitlines()]
    facts = dict(rows)
    assert facts["champion"] == "not known: MLflow does not answer"
    assert "failed" in facts["last retraining"] and "free" in facts["disk"]
    assert [name for name, _ in rows][-2:] == ["what to do", "what to do"]
    assert git(project.home, "status", "--porcelain", "--ignored") == before
    as_json = python("-m", "flows.status", "--json", cwd=project.home, **gone)
    assert as_json.returncode == 1 and len(json.loads(as_json.stdout)["to_do"]) == 2


def test_harm_that_was_accepted_is_nothing_to_do(project: Project) -> None:
    project.retrain()
    harm(project)
    assert look(project).harmful is not None
    project.registry().promote("3", "accepted: for the demo")
    assert look(project).harmful is None
